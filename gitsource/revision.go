package gitsource

import (
	"io/fs"
	"time"
)

// Revision is one commit of the watched branch.
type Revision struct {
	Commit    string
	Committed time.Time // the committer's time
	Author    string
	Subject   string
	// Parents are the commits that it stands on, the first one being that of the branch.
	Parents []string
	// TreeHash names the content: two commits with the same TreeHash have the same files.
	TreeHash string
	// Tree is the commit's files, read straight from the object store. Symlinks appear with fs.ModeSymlink and are not
	// followed; submodules don't appear. FileInfo.Sys of a file is its content's hash as a string.
	Tree fs.FS
}
