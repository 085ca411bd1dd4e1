package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/revision"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// loadTree reads a checkout.
func loadTree(folder string) (*schema.Fleet, []schema.Problem) {
	return schema.Load(os.DirFS(folder), []string{"."})
}

// recoveryMarker is where a recovery's marker is: beside the snapshots, or in a folder of this machine where the snapshot is a file.
type recoveryMarker struct {
	*backup.Marker
	close func() error
	// destination is the bucket of the snapshots; nil where the snapshot is a file.
	destination *backup.Opened
	// newest is the revision of the newest listed snapshot; zero where there is no list.
	newest int64
}

func (f *restoreFlags) openMarker(cmd *cobra.Command) (*recoveryMarker, error) {
	if f.file != "" {
		folder, err := statefile.OpenFolder(f.work, statefile.FolderOptions{})
		if err != nil {
			return nil, cannot(err, "give another folder with --work")
		}
		return &recoveryMarker{Marker: backup.NewMarker(folder, f.owner.Sealer), close: folder.Close}, nil
	}
	destination, err := f.destination(cmd)
	if err != nil {
		return nil, err
	}
	marker := &recoveryMarker{Marker: destination.Marker(), close: destination.Close, destination: destination}
	contents, err := destination.Look(cmd.Context())
	if err != nil {
		_ = destination.Close()
		return nil, cannot(fmt.Errorf("the snapshots can't be listed: %w", err), "with a snapshot on this machine, give --file")
	}
	for _, s := range contents.Snapshots {
		marker.newest = max(marker.newest, s.Revision)
	}
	return marker, nil
}

// read gives the marker that is there, nil where there is none.
func (m *recoveryMarker) read(ctx context.Context) (*recovery.Marker, error) {
	content, err := m.Read(ctx)
	if err != nil || content == nil {
		return nil, err
	}
	found, err := recovery.DecodeMarker(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Location(), err)
	}
	return found, nil
}

// readySnapshot is a snapshot that is ready to be uploaded, and which it is.
type readySnapshot struct {
	*revision.Prepared
	name, digest string
}

// prepare fetches, opens and checks the snapshot, and raises its revision as choose says.
func (f *restoreFlags) prepare(cmd *cobra.Command, a *app, name string, spool *backup.Spool, choose func(own int64) (int64, error)) (*readySnapshot, error) {
	var args []string
	if name != "latest" && f.file == "" {
		args = []string{name}
	}
	source, err := f.open(a, cmd, args)
	if err != nil {
		return nil, err
	}
	defer source.close()
	plain, size, err := f.plaintext(source)
	if err != nil {
		return nil, f.refuse(err)
	}
	ready, err := revision.Prepare(cmd.Context(), plain, size, spool, choose)
	var bad *revision.BadError
	if errors.As(err, &bad) {
		return nil, answerNo(fmt.Errorf("%s: %w", source.name, err), "take another snapshot: 'ichor backup list' names them")
	}
	if err != nil {
		return nil, f.refuse(fmt.Errorf("%s: %w", source.name, err))
	}
	return &readySnapshot{ready, source.name, source.SHA256()}, nil
}

// plaintext opens a sealed snapshot. A file that isn't sealed is taken as what talosctl or etcdctl saved.
func (f *restoreFlags) plaintext(source *backupSource) (io.Reader, int64, error) {
	size := source.size
	if source.listed != nil {
		size = source.listed.Size
	}
	if f.file != "" {
		magic := []byte("age-encryption.org/")
		start := make([]byte, len(magic))
		file, err := os.Open(f.file)
		if err != nil {
			return nil, 0, err
		}
		_, err = io.ReadFull(file, start)
		_ = file.Close()
		if err == nil && !bytes.Equal(start, magic) {
			return source.Checked, size, nil // its trailer is checked where it is opened
		}
	}
	plain, err := backup.OpenChecked(source.Checked, f.owner.Passphrase)
	return plain, size, err
}
