package statefile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
)

// Defaults of a bucket's store.
const (
	defaultS3Timeout = 10 * time.Second
	readAttempts     = 3
	listPageSize     = 1000
	readBackoff      = 150 * time.Millisecond
)

// S3Config says where a bucket is and how to get in.
type S3Config struct {
	// Endpoint is a URL (https://s3.example.com). Empty: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, else AWS's own.
	Endpoint string
	// Region; empty: AWS_REGION, AWS_DEFAULT_REGION, else what AWS says, or us-east-1 elsewhere.
	Region string
	Bucket string
	// Prefix is put before every key; with or without slashes around it.
	Prefix string
	// Credentials are used as they are; nil: the AWS_* environment, else the instance's.
	Credentials *S3Credentials
	// CA is PEM: certificate authorities that are trusted besides the system's.
	CA []byte
	// Addressing is auto, path or host; empty is auto.
	Addressing string
	// Requests counts what is sent, as to a bucket that is for Use ([BucketOfState], [BucketOfBackups]); nil: nothing is counted.
	Requests *Requests
	Use      string
	// Timeout bounds each call, and each page of a listing; zero is 10 s.
	Timeout time.Duration
}

type s3Store struct {
	client   *minio.Client
	core     minio.Core
	creds    *s3Keys
	bucket   string
	prefix   string // "" or "a/b/"
	location string
	timeout  time.Duration
	dates    *dates
	close    func()
}

// OpenS3 opens a store over a bucket; it sends nothing yet.
func OpenS3(_ context.Context, config S3Config) (Store, error) {
	transport, err := s3Transport(config.CA)
	if err != nil {
		return nil, err
	}
	store, err := openS3(config, transport)
	if err != nil {
		return nil, err
	}
	store.close = transport.CloseIdleConnections
	return store, nil
}

// openS3 is OpenS3 over a transport.
func openS3(config S3Config, transport http.RoundTripper) (*s3Store, error) {
	if config.Bucket == "" {
		return nil, errors.New("the S3 state has no bucket; write it as s3://bucket/prefix")
	}
	endpoint, err := s3Endpoint(config.Endpoint)
	if err != nil {
		return nil, err
	}
	lookup, err := bucketLookup(config.Addressing)
	if err != nil {
		return nil, err
	}
	prefix := strings.Trim(config.Prefix, "/")
	if prefix != "" {
		if err := CheckKey(prefix); err != nil {
			return nil, fmt.Errorf("the prefix in the bucket %s: %w", config.Bucket, err)
		}
		prefix += "/"
	}
	keys, err := newS3Keys(config.Credentials, endpoint)
	if err != nil {
		return nil, err
	}
	clock := &dates{through: config.Requests.through(answers{transport}, config.Use)}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds: keys.minio, Secure: endpoint.Scheme == "https", Transport: clock,
		Region: s3Region(config.Region, endpoint), BucketLookup: lookup,
		// A write is sent once: a second try could succeed where the first one had, and look like someone else's.
		MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("opening the bucket %s at %s: %w", config.Bucket, endpoint.Host, err)
	}
	store := &s3Store{
		client: client, core: minio.Core{Client: client}, creds: keys, bucket: config.Bucket, prefix: prefix,
		location: "s3://" + strings.ToLower(endpoint.Host) + "/" + config.Bucket + "/" + strings.TrimSuffix(prefix, "/"),
		timeout:  config.Timeout, dates: clock, close: func() {},
	}
	if store.timeout <= 0 {
		store.timeout = defaultS3Timeout
	}
	return store, nil
}

func (s *s3Store) Location() string { return s.location }

// Skew is how far this machine's clock was ahead of the bucket's server when that last answered; zero before.
func (s *s3Store) Skew() time.Duration { return time.Duration(s.dates.skew.Load()) }

func (s *s3Store) Close() error {
	s.close()
	return nil
}

func (s *s3Store) Get(ctx context.Context, key, known string) (*Object, error) {
	var object *Object
	err := s.read(ctx, "reading", key, func(ctx context.Context) error {
		var err error
		object, err = s.getOnce(ctx, key, known)
		return err
	})
	if err != nil {
		return nil, err
	}
	return object, nil
}

func (s *s3Store) getOnce(ctx context.Context, key, known string) (*Object, error) {
	var opts minio.GetObjectOptions
	if known != "" {
		if err := opts.SetMatchETagExcept(known); err != nil {
			return nil, err
		}
	}
	body, info, _, err := s.core.GetObject(ctx, s.bucket, s.prefix+key, opts)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	if info.Size > MaxObject {
		return nil, ErrTooLarge
	}
	data, err := io.ReadAll(io.LimitReader(body, MaxObject+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > MaxObject:
		return nil, ErrTooLarge
	case info.Size >= 0 && int64(len(data)) != info.Size:
		return nil, fmt.Errorf("%d bytes came of %d: %w", len(data), info.Size, io.ErrUnexpectedEOF)
	case info.ETag == "":
		return nil, errors.New("the store gave no ETag, so the object can't be swapped")
	case known != "" && info.ETag == known:
		return nil, ErrUnchanged // the server did not honour If-None-Match on a read
	}
	return &Object{Key: key, Data: data, ETag: info.ETag, Modified: info.LastModified}, nil
}

func (s *s3Store) Put(ctx context.Context, key string, data []byte, cond If) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	if len(data) > MaxObject {
		return "", fmt.Errorf("writing %s: %w", s.name(key), ErrTooLarge)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("writing %s was not begun: %w", s.name(key), err)
	}
	if _, err := s.creds.get(ctx); err != nil {
		return "", s.wrap("writing", key, err)
	}
	ctx, cancel, late := oneCall(ctx, s.timeout)
	defer cancel()
	// Without a connection nothing was sent; with one, anything may have been.
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	// The core's put is one request, never split into parts: the client drops the condition when it completes a split upload.
	// The content's own hash is signed, not that of chunks, which some servers store along with the content.
	sum := sha256.Sum256(data)
	opts := minio.PutObjectOptions{ContentType: "application/json", DisableMultipart: true, DisableContentSha256: true}
	switch {
	case cond.absent:
		opts.SetMatchETagExcept("*")
	case cond.etag != "":
		opts.SetMatchETag(cond.etag)
	}
	info, err := s.core.PutObject(ctx, s.bucket, s.prefix+key, bytes.NewReader(data), int64(len(data)), "", hex.EncodeToString(sum[:]), opts)
	switch {
	case err != nil:
		return "", s.wrap("writing", key, classifyWrite(late(err), connected.Load()))
	case info.ETag == "":
		return "", fmt.Errorf("writing %s: the store gave no ETag: %w", s.name(key), ErrUnacknowledged)
	}
	return info.ETag, nil
}

func (s *s3Store) Delete(ctx context.Context, key string) error {
	return s.read(ctx, "deleting", key, func(ctx context.Context) error {
		err := s.client.RemoveObject(ctx, s.bucket, s.prefix+key, minio.RemoveObjectOptions{})
		if errors.Is(classifyRead(err), ErrNotFound) {
			return nil
		}
		return err
	})
}

// List goes page by page, so that an early end saves the rest. Pages follow each other by their keys, as S3 promises.
func (s *s3Store) List(ctx context.Context, prefix, after string, fn func(ObjectInfo) error) error {
	for {
		var page []ObjectInfo
		last, more := "", false
		err := s.read(ctx, "listing", prefix, func(ctx context.Context) error {
			var err error
			page, last, more, err = s.listPage(ctx, prefix, after)
			return err
		})
		if err != nil {
			return err
		}
		if err := eachInOrder(page, fn); err != nil {
			return err
		}
		if !more {
			return nil
		}
		after = last
	}
}

// listPage reads up to a page of objects after a key. Last is the greatest key that was seen, ours or not, and more says that there may
// be others.
func (s *s3Store) listPage(ctx context.Context, prefix, after string) (page []ObjectInfo, last string, more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the client's goroutine
	opts := minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true, MaxKeys: listPageSize}
	if after != "" {
		opts.StartAfter = s.prefix + after
	}
	seen := 0
	for object := range s.client.ListObjects(ctx, s.bucket, opts) {
		if object.Err != nil {
			return nil, "", false, object.Err
		}
		seen++
		if key, ours := strings.CutPrefix(object.Key, s.prefix); ours {
			last = max(last, key)
			if strings.HasPrefix(key, prefix) && key > after && CheckKey(key) == nil {
				page = append(page, ObjectInfo{Key: key, Size: object.Size, Modified: object.LastModified, ETag: object.ETag})
			}
		}
		if seen == listPageSize {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, "", false, err
	}
	more = seen == listPageSize
	if more && last <= after { // else what comes later would count as not there
		return nil, "", false, errors.New("the store lists from the beginning again what comes after a key (start-after), so its list can't be read to the end")
	}
	return page, last, more, nil
}

// eachInOrder calls fn in the order of the keys.
func eachInOrder(found []ObjectInfo, fn func(ObjectInfo) error) error {
	slices.SortFunc(found, func(a, b ObjectInfo) int { return strings.Compare(a.Key, b.Key) })
	for _, info := range found {
		if err := fn(info); err != nil {
			return err
		}
	}
	return nil
}

// read does a call that may be repeated, as long as its deadline allows and the store is only unavailable.
func (s *s3Store) read(ctx context.Context, verb, key string, call func(context.Context) error) error {
	if err := checkPrefix(key, verb == "listing"); err != nil {
		return err
	}
	if _, err := s.creds.get(ctx); err != nil {
		return s.wrap(verb, key, err)
	}
	ctx, cancel, late := oneCall(ctx, s.timeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		err := call(ctx)
		if err == nil {
			return nil
		}
		err = classifyRead(late(err))
		if !errors.Is(err, ErrUnavailable) || attempt == readAttempts || !wait(ctx, time.Duration(attempt)*readBackoff) {
			return s.wrap(verb, key, err)
		}
	}
}

// checkPrefix checks a key, or for a listing what a key may start with.
func checkPrefix(key string, prefix bool) error {
	if prefix {
		key = strings.TrimSuffix(key, "/")
		if key == "" {
			return nil
		}
	}
	return CheckKey(key)
}

func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// name is an object for people.
func (s *s3Store) name(key string) string { return "s3://" + s.bucket + "/" + s.prefix + key }

// wrap says what was being done, without any of the credentials, whatever the server put into its answer.
func (s *s3Store) wrap(verb, key string, err error) error {
	text := fmt.Sprintf("%s %s: %v", verb, s.name(key), err)
	var access *accessError
	if right := rights[verb]; right != "" && errors.As(err, &access) {
		text += "; these keys need the right " + right
	}
	return &storeError{text: s.creds.redact(text), cause: err}
}

func s3Endpoint(endpoint string) (*url.URL, error) {
	for _, from := range []string{os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), "https://s3.amazonaws.com"} {
		if endpoint == "" {
			endpoint = from
		}
	}
	parsed, err := url.Parse(endpoint)
	if err != nil || (parsed.Scheme != "https" && parsed.Scheme != "http") || parsed.Host == "" || parsed.User != nil ||
		strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.Fragment != "" {
		return nil, errors.New("the S3 endpoint must be a URL with a host and nothing more, like https://s3.example.com")
	}
	return parsed, nil
}

func s3Region(region string, endpoint *url.URL) string {
	for _, from := range []string{os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")} {
		if region == "" {
			region = from
		}
	}
	if region == "" && !isAWS(endpoint) {
		region = "us-east-1"
	}
	return region
}

func isAWS(endpoint *url.URL) bool {
	host := endpoint.Hostname()
	return strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".amazonaws.com.cn")
}

func bucketLookup(addressing string) (minio.BucketLookupType, error) {
	switch addressing {
	case "", "auto":
		return minio.BucketLookupAuto, nil
	case "path":
		return minio.BucketLookupPath, nil
	case "host":
		return minio.BucketLookupDNS, nil
	default:
		return 0, fmt.Errorf("the S3 addressing %.20q is none of auto, path and host", addressing)
	}
}

func s3Transport(ca []byte) (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(ca) {
			return nil, errors.New("the S3 CA holds no PEM certificate")
		}
		config.RootCAs = pool
	}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   5 * time.Second,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       time.Minute,
		ResponseHeaderTimeout: time.Minute,
		// S3's own headers are bounded to some KiB.
		MaxResponseHeaderBytes: 1 << 20,
		DisableCompression:     true, // what is hashed is what is stored
	}, nil
}
