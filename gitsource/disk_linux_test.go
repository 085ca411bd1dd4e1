package gitsource_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/gittest"
)

// onSmallDisk names the variable that tells a test that it runs in a mount namespace of its own.
const onSmallDisk = "ICHOR_TEST_SMALL_DISK"

func TestAFullDiskStopsNothingForGood(t *testing.T) {
	if os.Getenv(onSmallDisk) == "" {
		inOwnNamespace(t)
		return
	}
	cache := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", cache, "tmpfs", 0, "size=192k"))
	t.Cleanup(func() { _ = syscall.Unmount(cache, syscall.MNT_DETACH) })
	r := gittest.New(t)
	small := r.Commit(gittest.Files{"f": "1"})
	config := gitsource.Config{URL: r.URL(), Cache: cache}
	s := open(t, config)
	require.Equal(t, small, poll(t, s).Commit)
	require.NoError(t, s.MarkGood(small))

	big := r.Commit(gittest.Files{"f": string(garbage(300_000))})
	fails(t, s, gitsource.ReasonCache, "the disk of the cache folder "+cache+" is full")
	left, err := filepath.Glob(filepath.Join(cache, "clone.git", "objects", "pack", "*"))
	require.NoError(t, err)
	require.Len(t, left, 2, "the first pack with its index, and nothing of the second")
	good, err := s.LastGood()
	require.NoError(t, err)
	require.Equal(t, "1", read(t, good, "f"))

	require.NoError(t, syscall.Mount("tmpfs", cache, "tmpfs", syscall.MS_REMOUNT, "size=8m"))
	require.Equal(t, big, poll(t, s).Commit, "it goes on by itself")

	fill(t, filepath.Join(cache, "junk"))
	err = s.MarkGood(big)
	require.ErrorContains(t, err, "is full")
	requireReason(t, err, gitsource.ReasonCache)
	good, err = s.LastGood()
	require.NoError(t, err)
	require.Equal(t, small, good.Commit)
	require.NoError(t, s.Close())
	s = open(t, config)
	good, err = s.LastGood()
	require.NoError(t, err)
	require.Equal(t, small, good.Commit, "the record is whole")
	require.NoError(t, os.Remove(filepath.Join(cache, "junk")))
	require.NoError(t, s.MarkGood(big))
}

// fill writes until the disk is full.
func fill(t *testing.T, file string) {
	t.Helper()
	junk, err := os.Create(file)
	require.NoError(t, err)
	defer func() { _ = junk.Close() }()
	for size := 1 << 16; size > 0; {
		if _, err := junk.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
}

// inOwnNamespace runs the calling test again where it may mount a small disk.
func inOwnNamespace(t *testing.T) {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), onSmallDisk+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := command.CombinedOutput()
	if err != nil && len(out) == 0 || strings.Contains(string(out), "operation not permitted") {
		t.Skipf("this machine gives tests no mount namespace (%v): the full disk is tested by TestAFullDiskIsSaidAsSuch alone", err)
	}
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name())
}
