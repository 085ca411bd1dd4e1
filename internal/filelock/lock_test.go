package filelock

import (
	"os"
	"path/filepath"
	"testing"
)

func TestALockIsHeldOnceAndEndsWithItsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		t.Helper()
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	first, second := open(), open()
	defer func() { _ = second.Close() }()
	if got, err := Try(first); !got || err != nil {
		t.Fatalf("a free lock: %v, %v", got, err)
	}
	if got, err := Try(second); got || err != nil {
		t.Fatalf("a lock that another open file holds: %v, %v", got, err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := Try(second); !got || err != nil {
		t.Fatalf("after its holder was closed: %v, %v", got, err)
	}
	if err := Release(second); err != nil {
		t.Fatal(err)
	}
	third := open()
	defer func() { _ = third.Close() }()
	if got, err := Try(third); !got || err != nil {
		t.Fatalf("after its holder gave it back: %v, %v", got, err)
	}
}
