package statefile

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

const (
	// maxAnswer bounds what a server says besides the content of objects: a page of a listing, an error. A page of the longest keys that S3
	// has is smaller.
	maxAnswer = 4 << 20
	// maxElements bounds the elements in it, ends counted too: an empty one of a few bytes becomes hundreds in memory. A page has some ten
	// thousands.
	maxElements = 60_000
)

// answers bounds what the client reads whole. A server that is not what it seems must not fill this machine's memory.
type answers struct{ through http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := a.through.RoundTrip(request)
	if err == nil && !isContent(request, response) {
		response.Body = &boundedAnswer{body: response.Body}
	}
	return response, err
}

// isContent says whether an answer is the content of an object, which whoever asks for it bounds.
func isContent(request *http.Request, response *http.Response) bool {
	return s3Operation(request) == "GetObject" && response.StatusCode < http.StatusMultipleChoices
}

type boundedAnswer struct {
	body           io.ReadCloser
	read, elements int
}

func (b *boundedAnswer) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.read += n
	b.elements += bytes.Count(p[:n], []byte("<"))
	if b.read > maxAnswer || b.elements > maxElements {
		return 0, fmt.Errorf("the answer has more than %d MiB or %d elements, which none of S3 has", maxAnswer>>20, maxElements)
	}
	return n, err
}

func (b *boundedAnswer) Close() error { return b.body.Close() }
