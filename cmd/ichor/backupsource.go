package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/statefile"
)

// backupSource is one sealed snapshot that is read from the bucket or a file.
type backupSource struct {
	*backup.Checked
	// destination is nil for a file.
	destination *backup.Opened
	name        string
	size        int64 // sealed
	// listed is the index's entry; nil: the index doesn't vouch for it, and why is in unlisted.
	listed   *backup.Snapshot
	unlisted string
}

// open finds a snapshot and begins to read it. Without a name it is the newest.
func (f *backupFlags) open(a *app, cmd *cobra.Command, args []string) (*backupSource, error) {
	if err := f.load(cmd); err != nil {
		return nil, err
	}
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	source, err := f.find(cmd, name)
	if err != nil {
		return nil, f.refuse(err)
	}
	if source.listed == nil {
		fmt.Fprintf(a.err, "warning: %s is not in the index (%s): what proves that it is the cluster's own backup is missing, since every node of the cluster can make one that opens\n",
			a.clean(source.name), f.scrubber.Text(source.unlisted))
	}
	body, err := source.begin(cmd, f.file)
	if err != nil {
		source.close()
		return nil, f.refuse(err)
	}
	digest := ""
	if source.listed != nil {
		digest = source.listed.SHA256
	}
	source.Checked = backup.Check(a.progress(source.name, source.size, body), digest)
	return source, nil
}

func (f *backupFlags) find(cmd *cobra.Command, name string) (*backupSource, error) {
	if f.file != "" {
		if name != "" {
			return nil, usageError(errors.New("a name in the bucket and --file exclude each other"), "give one of them")
		}
		info, err := os.Stat(f.file)
		if err != nil {
			return nil, cannot(fmt.Errorf("--file: %w", err), "")
		}
		return &backupSource{name: filepath.Base(f.file), size: info.Size(), unlisted: "it is read from a file"}, nil
	}
	if _, ok := backup.ParseName(name); name != "" && !ok {
		return nil, usageError(fmt.Errorf("%q is not the name of a snapshot; one is like etcd-20261129T100000Z.snapshot.age", name), "'ichor backup list' names them; a file is given with --file")
	}
	destination, err := f.destination(cmd)
	if err != nil {
		return nil, err
	}
	source := &backupSource{destination: destination, name: name}
	if err := source.look(cmd); err != nil {
		source.close()
		return nil, err
	}
	return source, nil
}

// look asks the bucket and its index for the snapshot.
func (s *backupSource) look(cmd *cobra.Command) error {
	contents, err := s.destination.Look(cmd.Context())
	if err != nil {
		return err
	}
	found, err := contents.Find(s.name)
	switch size, there := contents.Sizes[s.name]; {
	case err == nil:
		s.name, s.size, s.listed = found.Name, found.SealedSize, &found
		return nil
	case backup.Bad(err):
		return err
	case there: // not in the index, and named all the same
		s.size, s.unlisted = size, "the index doesn't list it"
	case s.name == "" && len(contents.Sizes) > 0 && contents.IndexProblem == nil:
		return answerNo(fmt.Errorf("%s holds %d snapshots, and none that its index lists", s.destination.Location(), len(contents.Sizes)),
			"'ichor backup list' names them; name one to use it all the same")
	case contents.IndexProblem != nil && s.name == "":
		return answerNo(fmt.Errorf("which snapshot is the newest of this cluster can't be told: %w", contents.IndexProblem),
			"'ichor backup list' names what is there; name one to use it all the same")
	default:
		return fmt.Errorf("%s: %w", s.destination.Location(), err)
	}
	if contents.IndexProblem != nil {
		s.unlisted = contents.IndexProblem.Error()
	} else if !contents.Indexed {
		s.unlisted = "there is no index"
	}
	return nil
}

func (s *backupSource) begin(cmd *cobra.Command, file string) (io.ReadCloser, error) {
	if s.destination != nil {
		return s.destination.Fetch(cmd.Context(), s.name, "")
	}
	body, err := os.Open(file)
	if err != nil {
		return nil, cannot(fmt.Errorf("--file: %w", err), "")
	}
	return body, nil
}

// close gives up the reading and the connections.
func (s *backupSource) close() {
	if s.Checked != nil {
		_ = s.Checked.Close()
	}
	if s.destination != nil {
		_ = s.destination.Close()
	}
}

// refuse says how a command ends over an error: 1 when the snapshot is no good or not there, 2 when that can't be told.
func (f *backupFlags) refuse(err error) error {
	var exit *exitError
	var failed *drill.FailedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
	case backup.Bad(err), errors.Is(err, statefile.ErrNotFound), errors.As(err, &failed):
		err = answerNo(err, "")
	default:
		err = cannot(err, "")
	}
	return f.scrub(err)
}
