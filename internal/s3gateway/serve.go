package s3gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

// Region is the region of the server.
const Region = "us-east-1"

// HealthPath answers 200 once the server is up.
const HealthPath = "/healthz"

// Options of a server.
type Options struct {
	// Dir holds the buckets, each a folder. It is made if it isn't there; its file system needs extended attributes.
	Dir string
	// Listen is host:port.
	Listen string
	// Access and Secret are the keys of the only account.
	Access, Secret string
	// Buckets are made before the server starts.
	Buckets []string
	// ReadOnly refuses every write.
	ReadOnly bool
	// VersioningDir turns on versions of objects, for buckets that want them, and with it Object Lock. It lies beside Dir, not in it.
	VersioningDir string
	// Domain makes bucket.domain, as well as domain/bucket, the bucket.
	Domain string
	// CertFile and KeyFile turn on TLS.
	CertFile, KeyFile string
}

// Serve runs the server until the context ends, and then returns nil. It changes the process's working directory, and one
// process can run one server only.
func Serve(ctx context.Context, opts Options) error {
	for _, bucket := range opts.Buckets {
		if err := os.MkdirAll(filepath.Join(opts.Dir, bucket), 0o700); err != nil {
			return fmt.Errorf("making the bucket %s: %w", bucket, err)
		}
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return fmt.Errorf("making the S3 server's folder: %w", err)
	}
	if opts.VersioningDir != "" {
		if err := os.MkdirAll(opts.VersioningDir, 0o700); err != nil {
			return fmt.Errorf("making the S3 server's folder for versions: %w", err)
		}
	}
	backend, err := posix.New(opts.Dir, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 64, ValidateBucketNames: true, VersioningDir: opts.VersioningDir})
	if err != nil {
		return fmt.Errorf("opening the S3 server's folder %s: %w", opts.Dir, err)
	}
	defer backend.Shutdown()
	err = embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
		RootUserAccess: opts.Access, RootUserSecret: opts.Secret, Region: Region,
		Ports: []string{opts.Listen}, HealthPath: HealthPath, Quiet: true, KeepAlive: true,
		MaxConnections: 1000, MaxRequests: 1000, MultipartMaxParts: 10000,
		Readonly: opts.ReadOnly, VirtualDomain: opts.Domain, CertFile: opts.CertFile, KeyFile: opts.KeyFile,
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("serving S3 on %s: %w", opts.Listen, err)
	}
	return nil
}
