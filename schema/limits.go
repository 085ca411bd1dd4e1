package schema

import "fmt"

// The bounds of what is read. [Load] holds them all. They are far above what a fleet needs and far below what would hurt: a repository is
// written by others, and a file that expands without end must be an error and not a dead agent.
const (
	// MaxFileSize is the largest YAML file that is read as kinds, in bytes.
	MaxFileSize = 1 << 20
	// MaxRefSize is the largest file that a reference may point to, in bytes.
	MaxRefSize = 8 << 20
	// MaxTotalSize is how many bytes of YAML are read in all.
	MaxTotalSize = 64 << 20
	// MaxDocuments is how many documents a file may hold.
	MaxDocuments = 2000
	// MaxMarks is how many commas, colons, brackets, quotes, list items and line breaks a file may hold, and MaxTotalMarks how many all files may.
	// Each may become a value of some hundred bytes while YAML is parsed, before anything else can be counted.
	MaxMarks      = 150_000
	MaxTotalMarks = 6_000_000
	// MaxDepth is how deep mappings and lists may nest in a document, aliases followed.
	MaxDepth = 100
	// MaxValues is how many names and values a document may hold, aliases followed.
	MaxValues = 50_000
	// MaxFileValues is how many the documents of a file may hold together, and MaxTotalValues how many all documents may.
	MaxFileValues  = 300_000
	MaxTotalValues = 3_000_000
	// MaxExpandedSize is how many bytes of text a document may hold, aliases followed.
	MaxExpandedSize = 4 << 20

	// maxEntries is how many files and folders are looked at under the roots, and maxFolders how deep they may nest: a
	// Git tree of a few hundred bytes can name billions of them.
	maxEntries = 1_000_000
	maxFolders = 64
	// maxIgnoreSize and maxIgnoreLines bound a file of names to leave out.
	maxIgnoreSize  = 64 << 10
	maxIgnoreLines = 500
	// maxProblems is how many problems one document, and all of them, may have before the rest are counted only.
	maxProblems      = 20
	maxTotalProblems = 10_000
	// maxShown is how many characters of a value stand in a problem.
	maxShown = 64
)

// totalMessage is the problem of what passes MaxTotalValues.
func totalMessage() string {
	return fmt.Sprintf("the documents hold more than %d names and values together; give fewer roots", MaxTotalValues)
}

// Marks counts what may become a value in a text of YAML.
func Marks(data []byte) int {
	count := 0
	for at, c := range data {
		switch c {
		case ',', ':', '[', '{', '?', '"', '\'', '\n':
			count++
		case '-': // a list in a list in a list may stand on one line
			if at+1 < len(data) && (data[at+1] == ' ' || data[at+1] == '\t') {
				count++
			}
		}
	}
	return count
}

// budget is what is left of the bounds on values, in a file and in a document of it.
type budget struct {
	file, document int
	text           int
}

func (b *budget) nextFile()     { b.file = MaxFileValues }
func (b *budget) nextDocument() { b.document, b.text = MaxValues, MaxExpandedSize }
