package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/filelock"
)

func TestWhatAKilledProcessLeftIsSweptByTheNext(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a[b]*")
	require.NoError(t, os.Mkdir(folder, 0o700))
	longAgo := time.Now().Add(-time.Hour)
	make := func(name string, at time.Time) string {
		name = filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(name, []byte("half of it"), 0o600))
		require.NoError(t, os.Chtimes(name, at, at))
		return name
	}
	stale := make(".ichor-123", longAgo)
	fresh := make(".ichor-124", time.Now())
	held := make(".ichor-125", longAgo)
	users := make(".ichor-notes", longAgo)
	other := make("ichor-126", longAgo)
	writing, err := os.OpenFile(held, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = writing.Close() }()
	free, err := filelock.Try(writing)
	require.NoError(t, err)
	require.True(t, free)
	require.NoError(t, os.Mkdir(filepath.Join(folder, ".ichor-127"), 0o700))

	require.NoError(t, writeWhole(filepath.Join(folder, "new"), []byte("whole"), 0o600, false))
	require.NoFileExists(t, stale)
	for _, name := range []string{fresh, held, users, other, filepath.Join(folder, "new")} {
		require.FileExists(t, name)
	}
	require.DirExists(t, filepath.Join(folder, ".ichor-127"))
}

func TestAFileThatIsBeingWrittenIsNotSweptHoweverLongItTakes(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, writeStream(filepath.Join(folder, "slow"), 0o600, false, func(w io.Writer) error {
		sweepTemporary(folder, time.Now().Add(24*time.Hour))
		_, err := w.Write([]byte("whole"))
		return err
	}))
	text, err := os.ReadFile(filepath.Join(folder, "slow"))
	require.NoError(t, err)
	require.True(t, bytes.Equal([]byte("whole"), text))

	require.ErrorContains(t, writeStream(filepath.Join(folder, "none"), 0o600, false, func(io.Writer) error { return errors.New("broke off") }), "broke off")
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
