package gitsource

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"ichor.maesh.dev/internal/wholefile"
)

// recordVersion is the only version of the record that this program writes and reads.
const recordVersion = 1

// record is what must outlive the clone: which commits were seen and found good. It stands beside the clone, not in it.
type record struct {
	SchemaVersion int `json:"schemaVersion"`
	// Repository is the URL that the commits are from, without userinfo. A record of before it was kept has none.
	Repository string `json:"repository,omitempty"`
	Seen       string `json:"seen,omitempty"`
	Good       string `json:"good,omitempty"`
	// Rewound is the tip that was last let pass although it did not descend from what was seen before.
	Rewound string `json:"rewound,omitempty"`
}

func readRecord(path string) (record, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return record{SchemaVersion: recordVersion}, nil
	}
	if err != nil {
		return record{}, fmt.Errorf("reading the record of the last good revision: %w", err)
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("the record of the last good revision, %s, can't be read: it isn't whole; move it away to start "+
			"without it: then the next revision is taken without asking whether history was rewound", path)
	}
	if r.SchemaVersion != recordVersion {
		return record{}, fmt.Errorf("the record of the last good revision, %s, has schemaVersion %d and this program reads %d; use the "+
			"newer program, or another cache folder", path, r.SchemaVersion, recordVersion)
	}
	for _, commit := range []string{r.Seen, r.Good, r.Rewound} {
		if commit != "" && !isHash(commit) {
			return record{}, fmt.Errorf("the record of the last good revision, %s, holds something that is no commit; move it away to start "+
				"without it: then the next revision is taken without asking whether history was rewound", path)
		}
	}
	return r, nil
}

// write replaces the record, whole or not at all, and has it on disk when it returns nil.
func (r record) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Write(path, append(data, '\n'))
}

// isHash tells whether text is a full SHA-1 in lower-case hex.
func isHash(text string) bool {
	if len(text) != 40 {
		return false
	}
	for _, c := range text {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
