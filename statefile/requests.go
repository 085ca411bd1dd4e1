package statefile

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// What a bucket is for, as [Requests] counts it.
const (
	BucketOfState   = "state"
	BucketOfBackups = "backups"
)

// Requests counts what is asked of S3 servers; they may be paid for. Its zero value is ready, nil counts nothing, and several goroutines
// may use it.
type Requests struct {
	mu     sync.Mutex
	counts map[requestKind]uint64
}

type requestKind struct{ bucket, operation string }

// RequestCount is how many requests of one kind were sent.
type RequestCount struct {
	// Bucket is what the bucket is for, Operation S3's name for what was asked ("PutObject").
	Bucket, Operation string
	Sent              uint64
}

// Counts gives what was sent so far, sorted.
func (r *Requests) Counts() []RequestCount {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	kinds := slices.SortedFunc(maps.Keys(r.counts), func(a, b requestKind) int {
		return cmp.Or(strings.Compare(a.bucket, b.bucket), strings.Compare(a.operation, b.operation))
	})
	counts := make([]RequestCount, 0, len(kinds))
	for _, k := range kinds {
		counts = append(counts, RequestCount{k.bucket, k.operation, r.counts[k]})
	}
	return counts
}

func (r *Requests) add(bucket, operation string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[requestKind]uint64{}
	}
	r.counts[requestKind{bucket, operation}]++
}

// through counts what goes through a transport to a bucket that is for something.
func (r *Requests) through(transport http.RoundTripper, bucket string) http.RoundTripper {
	if r == nil {
		return transport
	}
	return &countedTransport{r, transport, bucket}
}

type countedTransport struct {
	requests *Requests
	http.RoundTripper
	bucket string
}

// RoundTrip implements http.RoundTripper. What gets no answer is counted too: the server may have done it.
func (t *countedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	t.requests.add(t.bucket, s3Operation(request))
	return t.RoundTripper.RoundTrip(request)
}

// s3Operation gives S3's name for what a request of this program asks.
func s3Operation(request *http.Request) string {
	query := request.URL.Query()
	switch request.Method {
	case http.MethodGet:
		switch {
		case query.Has("location"):
			return "GetBucketLocation"
		case query.Has("list-type"):
			return "ListObjectsV2"
		}
		return "GetObject"
	case http.MethodHead:
		return "HeadObject"
	case http.MethodPut:
		if query.Has("partNumber") {
			return "UploadPart"
		}
		return "PutObject"
	case http.MethodPost:
		switch {
		case query.Has("uploads"):
			return "CreateMultipartUpload"
		case query.Has("uploadId"):
			return "CompleteMultipartUpload"
		}
	case http.MethodDelete:
		if query.Has("uploadId") {
			return "AbortMultipartUpload"
		}
		return "DeleteObject"
	}
	return "Other"
}
