package kube

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// What a few bytes say, and takes gigabytes once it is decoded, is refused before that: the API server of one cluster must not take the
// agent of all down.
func TestAnAnswerThatWouldGrowInMemoryIsAnError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kind, answer, want string }{
		"millions of empty nodes": {kindJSON, `{"kind":"NodeList","apiVersion":"v1","items":[` + strings.Repeat("{},", 4_000_000) + `{}]}`,
			"the reply holds more than 400000 names and values"},
		"millions of empty nodes in protobuf": {kindProtobuf, "k8s\x00\x0a\x0e\x0a\x02v1\x12\x08NodeList\x12\x80\x89\x7a" + strings.Repeat("\x12\x00", 1_000_000),
			"the reply holds more than 400000 names and values"},
		"aliases of aliases in YAML, which nobody asked for": {"application/yaml", "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a]\nitems: [*b,*b]\n", "reading the cluster's nodes"},
		"a page longer than was asked for":                   {kindJSON, `{"kind":"NodeList","apiVersion":"v1","items":[` + strings.Repeat("{},", 300) + `{}]}`, "a page of the list holds 301 objects, and 250 were asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := serve(t, newFakeCluster(t), func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
				w.Header().Set("Content-Type", c.kind)
				_, _ = w.Write([]byte(c.answer))
				return true
			})
			_, err := servers.client(t).Nodes(t.Context())
			require.ErrorContains(t, err, c.want)
		})
	}
}

// saying answers each request with the same.
type saying struct {
	status     int
	kind, body string
}

func (s saying) RoundTrip(request *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: s.status, Header: http.Header{"Content-Type": {s.kind}}, Request: request,
		Body: http.NoBody}
	answer.Body = &reply{body: readCloser{strings.NewReader(s.body)}, kind: onlyKnownKinds(answer.Header), cancel: func() {}, broken: func(err error) error { return err }}
	return answer, nil
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// FuzzAnswer feeds anything as an answer of the Kubernetes API. It is what was asked for or an error without control characters, and nothing
// panics.
func FuzzAnswer(f *testing.F) {
	f.Add(200, kindJSON, `{"kind":"NodeList","apiVersion":"v1","metadata":{"continue":"x"},"items":[{"metadata":{"name":"w-1"},"status":{"nodeInfo":{"systemUUID":"x"}}}]}`)
	f.Add(200, kindProtobuf, "k8s\x00\x0a\x0e\x0a\x02v1\x12\x08NodeList\x12\x04\x12\x02\x0a\x00")
	f.Add(200, "application/yaml", "a: &a [*a]")
	f.Add(500, kindJSON, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"\u001b[2J","reason":"InternalError","code":500}`)
	f.Add(429, kindText, "[-]etcd failed: \x1b[2J")
	f.Add(200, kindJSON, `{"kind":"PodList","apiVersion":"v1","items":null}`)
	f.Fuzz(func(t *testing.T, status int, kind, body string) {
		if status < 200 || status > 599 || len(body) > 1<<16 {
			return
		}
		api, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "https://cluster.invalid", QPS: -1, WarningHandler: rest.NoWarnings{},
			ContentConfig: rest.ContentConfig{AcceptContentTypes: kindProtobuf + "," + kindJSON, ContentType: kindJSON}},
			&http.Client{Transport: saying{status, kind, body}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }})
		require.NoError(t, err)
		client := &Client{api: api, timeout: defaultTimeout}
		ctx := context.Background()
		for _, ask := range []func() error{
			func() error { _, err := client.Nodes(ctx); return err },
			func() error { _, err := client.Revision(ctx); return err },
			func() error { return client.Ready(ctx) },
			func() error { return client.DeleteNode(ctx, "w-1", "u1") },
		} {
			if err := ask(); err != nil {
				require.NotContains(t, err.Error(), "\x1b")
			}
		}
	})
}
