// Package plan says what the agent would do for a change before anybody merges it.
//
// It decides nothing by itself. It puts together what the agent would look at (the cluster as it stands at the base, or with a look
// at the machines what they really run), lets reconcile.Foretell follow the agent's own decisions from there to the end, and puts
// that into words. Of makes the Report; WriteText, WriteMarkdown and WriteJSON print it. docs/plan.md describes the JSON form, which
// is stable.
//
// Every text in a Report is free of secrets and of control characters.
package plan
