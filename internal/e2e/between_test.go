package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
)

// between stands on the road from agents to the bucket, and lets a test act at the moment of a write.
type between struct {
	mu sync.Mutex
	// arrives is told of each write of a state before the bucket gets it, answered after the bucket answered and before the
	// agent hears of it. Either may wait.
	arrives, answered func(body []byte)
}

// standBetween lets agents find the bucket through a between.
func (w *world) standBetween() *between {
	w.t.Helper()
	b := &between{}
	target, err := url.Parse(w.bucket.Endpoint)
	require.NoError(w.t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // it is signed
	}, ErrorLog: log.New(io.Discard, "", 0)}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/state.json") {
			proxy.ServeHTTP(rw, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		b.tell(func() func([]byte) { return b.arrives }, body)
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		b.tell(func() func([]byte) { return b.answered }, body)
		for key, values := range answer.Header() {
			rw.Header()[key] = values
		}
		rw.WriteHeader(answer.Code)
		_, _ = rw.Write(answer.Body.Bytes())
	}))
	w.t.Cleanup(server.Close)
	w.endpoint = server.URL
	return b
}

func (b *between) tell(which func() func([]byte), body []byte) {
	b.mu.Lock()
	hook := which()
	b.mu.Unlock()
	if hook != nil {
		hook(body)
	}
}

// when calls do once, at the first write that begins a call: before the bucket has it, or after.
func (b *between) when(action string, arrives bool, do func()) {
	var done atomic.Bool
	hook := func(body []byte) {
		if begins(body, action) && done.CompareAndSwap(false, true) {
			do()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if arrives {
		b.arrives = hook
	} else {
		b.answered = hook
	}
}

// begins says whether a state that is written holds an intent of a call without an outcome.
func begins(body []byte, action string) bool {
	// The client may put signatures around what it sends.
	at := bytes.IndexByte(body, '{')
	if at < 0 {
		return false
	}
	var record struct {
		Content struct {
			Intent *statefile.Intent `json:"intent"`
		} `json:"content"`
	}
	if json.NewDecoder(bytes.NewReader(body[at:])).Decode(&record) != nil {
		return false
	}
	intent := record.Content.Intent
	return intent != nil && intent.Action == action && intent.Outcome == ""
}
