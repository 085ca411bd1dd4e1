package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	testclock "k8s.io/utils/clock/testing"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/etcdfile"
	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// The keys of the tests' S3 server. A command that prints one of them fails its test.
const (
	canaryAccess = "CANARYACCESSKEY00"
	canarySecret = "canary/secret+key=0123456789"
)

// bucket is a command for scripts: `bucket NAME...` starts a real S3 server with these buckets, whose objects are files below $BUCKETS,
// and sets $S3 and the keys in the environment. It goes with the script.
func bucket(ts *testscript.TestScript, neg bool, names []string) {
	if neg || len(names) == 0 {
		ts.Fatalf("usage: bucket NAME...")
	}
	server, err := s3gateway.StartChild(context.Background(), s3gateway.Options{Dir: ts.MkAbs(".buckets"), Access: canaryAccess, Secret: canarySecret, Buckets: names, Domain: "s3.test"})
	ts.Check(err)
	ts.Defer(server.Stop)
	for name, value := range map[string]string{"S3": server.Endpoint, "BUCKETS": ts.MkAbs(".buckets"), "AWS_ACCESS_KEY_ID": canaryAccess, "AWS_SECRET_ACCESS_KEY": canarySecret} {
		ts.Setenv(name, value)
	}
}

// snapshot is a command for scripts: `snapshot BUCKET/PREFIX BUNDLE TIME KEYS` takes a snapshot of a made-up etcd with so many keys,
// stores and lists it, as the agent would.
func snapshot(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 4 {
		ts.Fatalf("usage: snapshot BUCKET/PREFIX BUNDLE TIME KEYS")
	}
	at, err := time.Parse(time.RFC3339, args[2])
	ts.Check(err)
	keys, err := strconv.Atoi(args[3])
	ts.Check(err)
	name, prefix, _ := strings.Cut(args[0], "/")
	ts.Check(storeSnapshot(statefile.S3Config{Endpoint: ts.Getenv("S3"), Bucket: name, Prefix: prefix,
		Credentials: &statefile.S3Credentials{AccessKeyID: canaryAccess, SecretAccessKey: canarySecret}},
		[]byte(ts.ReadFile(args[1])), at, ts.MkAbs(".work"), keys, 100))
}

// storeSnapshot takes a snapshot of a made-up etcd and stores it.
func storeSnapshot(config statefile.S3Config, bundleText []byte, at time.Time, work string, keys, valueSize int) error {
	bundle, err := talos.LoadBundle(bundleText)
	if err != nil {
		return err
	}
	material := bundle.SealingMaterial()
	owner, err := backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
	if err != nil {
		return err
	}
	spool, err := backup.OpenSpool(work)
	if err != nil {
		return err
	}
	ctx := context.Background()
	taken, err := backup.Take(ctx, []backup.Node{&madeUpMember{dir: work, keys: keys, valueSize: valueSize}}, spool, owner.Passphrase, testclock.NewFakeClock(at))
	if err != nil {
		return err
	}
	defer taken.Close()
	destination, err := backup.OpenDestination(ctx, config, owner)
	if err != nil {
		return err
	}
	defer destination.Close()
	return destination.Store(ctx, destination.Describe(taken, "v1.13.6", "v1.36.2"), taken)
}

// madeUpMember is a control plane whose etcd never ran.
type madeUpMember struct {
	dir             string
	keys, valueSize int
}

func (*madeUpMember) Name() string { return "cp-1" }

func (*madeUpMember) EtcdStatus(context.Context) (backup.EtcdStatus, error) {
	return backup.EtcdStatus{MemberID: 2, Leader: 1}, nil
}

func (m *madeUpMember) EtcdSnapshot(context.Context) (io.ReadCloser, error) {
	path := filepath.Join(m.dir, "made-up.snapshot")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if _, err := etcdfile.Write(path, etcdfile.Options{Keys: m.keys, ValueSize: m.valueSize}); err != nil {
		return nil, err
	}
	return os.Open(path)
}

// openBundle is a command for scripts: `openbundle FILE` writes a new cluster's secrets bundle in the clear.
func openBundle(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: openbundle FILE")
	}
	text, err := ownBundle()
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o600))
}

func newBundleText() ([]byte, error) {
	bundle, err := talos.GenerateBundle("v1.13")
	if err != nil {
		return nil, err
	}
	return bundle.Marshal()
}

// Making a bundle takes seconds, so tests share two.
var ownBundle, foreignBundle = sync.OnceValues(newBundleText), sync.OnceValues(newBundleText)

// flip is a command for scripts: `flip FILE OFFSET` changes one bit of a file, in place.
func flip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip FILE OFFSET")
	}
	offset, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(flipBit(ts.MkAbs(args[0]), offset))
}

func flipBit(path string, offset int64) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	var one [1]byte
	if _, err := file.ReadAt(one[:], offset); err != nil {
		return err
	}
	one[0] ^= 1
	_, err = file.WriteAt(one[:], offset)
	return err
}

func TestAgesReadWell(t *testing.T) {
	for want, got := range map[string]string{
		"59s": shortAge(59 * time.Second), "5m": shortAge(5*time.Minute + 30*time.Second), "47h05m": shortAge(47*time.Hour + 5*time.Minute),
		"3d2h": shortAge(74 * time.Hour), "in the future": shortAge(-time.Second),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
