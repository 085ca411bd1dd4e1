package diskspace

import (
	"path/filepath"
	"testing"
)

func TestAFolderHasRoomAndWhatIsNotThereHasNone(t *testing.T) {
	dir := t.TempDir()
	if free, err := Free(dir); err != nil || free <= 0 {
		t.Fatalf("%d bytes, %v", free, err)
	}
	if _, err := Free(filepath.Join(dir, "nothing")); err == nil {
		t.Fatal("no error for a folder that isn't there")
	}
}
