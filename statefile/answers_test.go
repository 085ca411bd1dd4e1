package statefile

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// forever repeats a text without end.
type forever struct {
	text string
	at   int
}

func (f *forever) Read(p []byte) (int, error) {
	for n := range p {
		p[n] = f.text[f.at]
		f.at = (f.at + 1) % len(f.text)
	}
	return len(p), nil
}

func TestAServerInTheBucketsPlaceFillsNoMemory(t *testing.T) {
	const begin = `<?xml version="1.0"?><ListBucketResult>`
	for name, text := range map[string]string{
		"a listing without end":         "<Contents><Key>etcd-20261130T030000Z.snapshot.age</Key><Size>1</Size></Contents>",
		"empty entries without end":     "<Contents/>",
		"words without end":             "x",
		"elements in elements":          "<a>",
		"a prefix of prefixes":          "<CommonPrefixes><Prefix/></CommonPrefixes>",
		"blanks before it says a thing": " ",
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Last-Modified", "Mon, 30 Nov 2026 03:00:00 GMT")
				if r.Method == http.MethodPut {
					w.WriteHeader(http.StatusInternalServerError)
				}
				_, _ = io.WriteString(w, begin)
				_, _ = io.CopyN(w, &forever{text: text}, 1<<30)
			}))
			defer server.Close()
			store, err := OpenS3(t.Context(), S3Config{Bucket: "state", Endpoint: server.URL, Credentials: &S3Credentials{AccessKeyID: "a-key-of-the-test", SecretAccessKey: "a-secret-of-the-test"}, Timeout: 3 * time.Minute})
			require.NoError(t, err)
			defer store.Close()
			err = store.List(t.Context(), "", "", func(ObjectInfo) error { return nil })
			require.ErrorIs(t, err, ErrUnavailable)
			require.ErrorContains(t, err, "which none of S3 has")
			_, err = store.Get(t.Context(), "prod/state.json", "")
			require.ErrorIs(t, err, ErrTooLarge)
			_, err = store.Put(t.Context(), "prod/state.json", []byte("x"), IfAbsent())
			require.ErrorIs(t, err, ErrUnacknowledged, "it may have been written")
		})
	}
}

func TestAServerThatListsFromTheBeginningAgainIsNotTakenForTheEndOfTheList(t *testing.T) {
	var page strings.Builder
	page.WriteString(`<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>`)
	for n := range listPageSize {
		page.WriteString("<Contents><Key>" + auditKey("prod", uint64(n+1)) + "</Key><Size>1</Size></Contents>")
	}
	page.WriteString(`</ListBucketResult>`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page.String()) }))
	defer server.Close()
	store, err := OpenS3(t.Context(), S3Config{Bucket: "state", Endpoint: server.URL, Credentials: &S3Credentials{AccessKeyID: "a-key-of-the-test", SecretAccessKey: "a-secret-of-the-test"}})
	require.NoError(t, err)
	defer store.Close()
	for name, after := range map[string]string{"from the beginning": "", "after one that it lists": auditKey("prod", listPageSize)} {
		t.Run(name, func(t *testing.T) {
			_, err := newestAfter(t, store, after)
			require.ErrorContains(t, err, "start-after")
		})
	}
}

func newestAfter(t *testing.T, store Store, after string) (newest string, err error) {
	t.Helper()
	err = store.List(t.Context(), auditPrefix("prod"), after, func(info ObjectInfo) error {
		newest = info.Key
		return nil
	})
	return newest, err
}

// answering answers each request with the same.
type answering struct {
	status       int
	etag, header string
	body         string
}

func (a answering) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body != nil {
		_, _ = io.Copy(io.Discard, request.Body)
		_ = request.Body.Close()
	}
	header := http.Header{"Etag": {a.etag}, "Content-Type": {"application/xml"}, "Last-Modified": {"Mon, 30 Nov 2026 03:00:00 GMT"},
		"X-Amz-Bucket-Region": {a.header}, "Date": {a.header}, "X-Amz-Object-Lock-Retain-Until-Date": {a.header}, "X-Amz-Meta-Cluster-Id": {a.header}}
	if a.status < 300 {
		header.Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	return &http.Response{StatusCode: a.status, Header: header, Request: request, ContentLength: int64(len(a.body)), Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

// FuzzBucketsAnswer feeds anything as the answer of a bucket's server. Whatever is read is what was asked for, a write whose answer proves
// nothing isn't believed to have failed, and no error holds the keys or acts on a terminal.
func FuzzBucketsAnswer(f *testing.F) {
	f.Add(200, `"e"`, "", `<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>prod/state.json</Key><ETag>"x"</ETag><Size>7</Size><LastModified>2026-11-30T03:00:00.000Z</LastModified></Contents><NextContinuationToken>x</NextContinuationToken></ListBucketResult>`)
	f.Add(200, "", "x", "{}")
	f.Add(404, "", "", `<Error><Code>NoSuchKey</Code><Message>CANARY</Message></Error>`)
	f.Add(404, "", "", `<html>not here</html>`)
	f.Add(403, "", "eu-1", `<Error><Code>AuthorizationHeaderMalformed</Code><Region>`+"\u009b2J"+`</Region></Error>`)
	f.Add(412, "", "", "")
	f.Add(304, `"known"`, "", "")
	f.Add(301, "", "http://elsewhere/", `<Error><Code>PermanentRedirect</Code></Error>`)
	f.Add(503, "", "", `<Error><Code>SlowDown</Code>`)
	f.Add(200, `"e"`, "2027-01-01T00:00:00Z", strings.Repeat("<Contents/>", 50))
	f.Fuzz(func(t *testing.T, status int, etag, header, body string) {
		if status < 200 || status > 599 || strings.ContainsAny(etag+header, "\r\n\x00") {
			return
		}
		const secret = "CANARYsecretCANARY"
		store, err := openS3(S3Config{Bucket: "state", Region: "eu-1", Endpoint: "https://s3.invalid", Credentials: &S3Credentials{AccessKeyID: "CANARYkeyCANARY", SecretAccessKey: secret}},
			answering{status, etag, header, body})
		require.NoError(t, err)
		ctx := context.Background()
		wrapped := func(doing string, err error) {
			if err == nil {
				return
			}
			text := store.wrap(doing, "prod/state.json", err).Error()
			require.NotContains(t, text, secret)
			require.NotContains(t, text, "\x1b")
			require.NotContains(t, text, "\u009b")
		}
		object, err := store.getOnce(ctx, "prod/state.json", `"known"`)
		wrapped("reading", classifyRead(err))
		if err == nil {
			require.Equal(t, body, string(object.Data))
			require.NotEmpty(t, object.ETag)
		}
		page, _, _, err := store.listPage(ctx, "prod/", "prod/a")
		wrapped("listing", classifyRead(err))
		for _, info := range page {
			require.NoError(t, CheckKey(info.Key))
			require.True(t, strings.HasPrefix(info.Key, "prod/") && info.Key > "prod/a", info.Key)
		}
		_, err = store.Put(ctx, "prod/state.json", []byte("x"), IfAbsent())
		wrapped("writing", err)
		switch {
		case err == nil:
			require.True(t, status < 300 && etag != "", "%d", status)
		case status >= 200 && status < 300 || status >= 500 && status != http.StatusNotImplemented:
			require.True(t, errors.Is(err, ErrUnacknowledged) || strings.Contains(err.Error(), "no such bucket") || errors.Is(err, ErrPermission) ||
				errors.Is(err, ErrConflict) || strings.Contains(err.Error(), "region"), "%d: %v", status, err)
		}
		if status >= 500 || status == http.StatusTooManyRequests {
			return // what is asked for again after a while
		}
		bucket := &Bucket{s3: store, Store: store}
		stat, err := bucket.Stat(ctx, "prod/etcd-1")
		wrapped("looking at", classifyRead(err))
		if err == nil {
			require.Less(t, status, 300)
			require.Equal(t, int64(len(body)), stat.Size)
		}
	})
}
