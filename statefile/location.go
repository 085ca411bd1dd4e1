package statefile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
)

// LocationHash is what a managed node's annotation ichor.maesh.dev/state carries: the first 16 hex digits of
// SHA-256("ichor.maesh.dev/state-location/v1\n" + location). It says which state a node belongs to without telling where that is.
func LocationHash(store Store) string {
	sum := sha256.Sum256([]byte("ichor.maesh.dev/state-location/v1\n" + store.Location()))
	return hex.EncodeToString(sum[:8])
}

// StoreURL is a parsed --state.
type StoreURL struct {
	// Bucket and Prefix of s3://bucket/prefix, or Folder of file:///path.
	Bucket, Prefix, Folder string
}

// ParseStoreURL reads s3://bucket/prefix or file:///path.
func ParseStoreURL(text string) (StoreURL, error) {
	bad := errors.New("the state must be s3://bucket/prefix or file:///path")
	parsed, err := url.Parse(text)
	if err != nil || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" || parsed.Opaque != "" {
		return StoreURL{}, bad
	}
	switch {
	case parsed.Scheme == "s3" && parsed.Host != "":
		return StoreURL{Bucket: parsed.Host, Prefix: strings.Trim(parsed.Path, "/")}, nil
	case parsed.Scheme == "file" && (parsed.Host == "" || parsed.Host == "localhost") && strings.Trim(parsed.Path, "/") != "":
		return StoreURL{Folder: parsed.Path}, nil
	}
	return StoreURL{}, bad
}
