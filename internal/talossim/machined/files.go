package machined

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// keepStatus leaves a gRPC status as it is and rewrites the paths of any other error.
func (v *volumes) keepStatus(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	return v.inside(err)
}

// virtualFiles are those that no partition holds.
func (m *Machine) virtualFile(p string) ([]byte, bool) {
	if p == bootIDPath {
		return []byte(m.bootID + "\n"), true
	}
	return nil, false
}

// Read streams a file; a missing one is NotFound.
func (a *api) Read(in *machine.ReadRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	if data, ok := a.m.virtualFile(path.Clean("/" + in.GetPath())); ok {
		return sendChunks(bytes.NewReader(data), srv)
	}
	real, info, err := a.m.volumes.stat("stat", in.GetPath())
	if errors.Is(err, fs.ErrNotExist) {
		return status.Error(codes.NotFound, err.Error())
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("path must be a regular file")
	}
	file, err := os.Open(real)
	if err != nil {
		return a.m.volumes.inside(err)
	}
	defer file.Close() //nolint:errcheck // only read from
	return sendChunks(file, srv)
}

// List walks a directory. A missing root is the stream's error; what goes wrong deeper stands in the entry.
func (a *api) List(in *machine.ListRequest, srv grpc.ServerStreamingServer[machine.FileInfo]) error {
	root := path.Clean("/" + in.GetRoot())
	depth := 1
	if in.GetRecurse() {
		if depth = int(in.GetRecursionDepth()); depth == 0 {
			depth = -1
		}
	}
	if root == "/" {
		return a.listRoot(srv)
	}
	real, _, err := a.m.volumes.stat("lstat", root)
	if err != nil {
		return err
	}
	return filepath.WalkDir(real, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(real, p) // below real by construction
		fi := &machine.FileInfo{Name: path.Join(root, rel), RelativeName: rel}
		level := strings.Count(rel, "/") + 1
		if rel == "." {
			level = 0
		}
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if err != nil {
			fi.Error = a.m.volumes.inside(err).Error()
		} else {
			fi.Size, fi.Mode, fi.Modified, fi.IsDir = info.Size(), uint32(info.Mode()), info.ModTime().Unix(), info.IsDir()
		}
		if !wantedType(in.GetTypes(), info) {
			return skipBelow(d, depth, level)
		}
		if err := srv.Send(fi); err != nil {
			return err
		}
		return skipBelow(d, depth, level)
	})
}

func skipBelow(d fs.DirEntry, depth, level int) error {
	if d != nil && d.IsDir() && depth >= 0 && level >= depth {
		return fs.SkipDir
	}
	return nil
}

func wantedType(types []machine.ListRequest_Type, info fs.FileInfo) bool {
	if len(types) == 0 || info == nil {
		return true
	}
	for _, t := range types {
		switch {
		case t == machine.ListRequest_REGULAR && info.Mode().IsRegular(),
			t == machine.ListRequest_DIRECTORY && info.IsDir(),
			t == machine.ListRequest_SYMLINK && info.Mode()&fs.ModeSymlink != 0:
			return true
		}
	}
	return false
}

// listRoot shows the directories that a machine's root always has.
func (a *api) listRoot(srv grpc.ServerStreamingServer[machine.FileInfo]) error {
	for _, name := range []string{".", "proc", "system", "var"} {
		fi := &machine.FileInfo{Name: path.Join("/", name), RelativeName: name, IsDir: true, Mode: uint32(fs.ModeDir | 0o755)}
		if err := srv.Send(fi); err != nil {
			return err
		}
	}
	return nil
}

// Copy streams a path as tar.gz; its errors stand in the messages.
func (a *api) Copy(in *machine.CopyRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	root := path.Clean(in.GetRootPath())
	if !path.IsAbs(root) {
		return fmt.Errorf("path is not absolute %v", root)
	}
	r, w := io.Pipe()
	result := make(chan error, 1)
	go func() {
		err := a.m.archive(root, w)
		_ = w.Close() // a pipe
		result <- err
	}()
	err := sendChunks(r, srv)
	_ = r.Close() // a pipe
	if archiveErr := <-result; archiveErr != nil && err == nil {
		return srv.Send(&common.Data{Metadata: &common.Metadata{Error: archiveErr.Error()}})
	}
	return err
}

func (m *Machine) archive(root string, w io.Writer) error {
	real, _, err := m.volumes.stat("lstat", root)
	if err != nil {
		return err
	}
	zw := gzip.NewWriter(w)
	tw := tar.NewWriter(zw)
	err = filepath.WalkDir(real, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		header, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		header.Name, _ = filepath.Rel(real, p) // below real by construction
		if err := tw.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		file, err := os.Open(p)
		if err != nil {
			return err
		}
		defer file.Close() //nolint:errcheck // only read from
		_, err = io.CopyN(tw, file, info.Size())
		return err
	})
	if err == nil {
		err = tw.Close()
	}
	if err == nil {
		err = zw.Close()
	}
	return m.volumes.inside(err)
}
