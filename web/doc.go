// Package web is what an agent shows: a page for people, the same as JSON, metrics, its health, and the webhook that makes
// the next pull immediate. It decides nothing and changes nothing.
//
// [Listen] checks who may come in and takes the address; [Server.Run] serves. The agent is given later, by [Server.Attach], so
// that the page can say what the agent waits for while it still waits for its state.
//
// Where to look: access.go (who may read what), secretfile.go (tokens, read anew when their file changes), hook.go (the
// webhook), status.go and stored.go (where the status comes from), page.go and page.html (the page), metrics.go.
// docs/web.md is for who runs it.
package web
