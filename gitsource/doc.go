// Package gitsource turns a branch of a Git repository into revisions that can be trusted to be what the branch says.
//
// A Source keeps a bare clone with the whole history in a cache folder. Poll asks the server where the branch stands and
// fetches only when it moved. Files are read straight from the object store; there is no worktree. Beside the clone stands a
// record of the last revision that was seen and the last that was found good: it outlives a restart, an unreachable server and
// a broken clone, which is thrown away and made anew. A branch whose new tip does not descend from the last one seen is
// refused unless that is asked for.
//
// A Remote is the other direction: files come to the tip of a branch in a commit of their own, made beside any checkout, and again
// where others push meanwhile. From a checkout the user's own git speaks to the server, with whatever lets the user in there.
//
// A cache folder belongs to one Source at a time. Every failure of Poll passes by itself once its cause is gone: credentials
// and certificates are read from their files each time.
package gitsource
