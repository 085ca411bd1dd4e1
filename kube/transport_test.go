package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestAnotherServerAnswersWhenOneIsGone(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1")
	servers := serve(t, cluster, nil)
	servers.addresses = append([]string{closedAddress(t)}, servers.addresses...)
	client := servers.client(t)

	nodes, err := client.Nodes(t.Context())
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	require.NoError(t, client.Cordon(t.Context(), node, "op-1"), "a write goes to the next one too: nothing of it had been sent")
	require.Equal(t, 1, cluster.sent("PATCH", "/w1"))
}

func TestAWriteFindsTheNextServerByItself(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.addNode("w1", "u1")
	servers := serve(t, cluster, nil)
	servers.addresses = append([]string{closedAddress(t)}, servers.addresses...)
	require.NoError(t, servers.client(t).deleteNode(t.Context(), "w1", "u1"))
	require.Equal(t, 1, cluster.sent("DELETE", "/w1"))
}

// hangingListener takes connections and says nothing on them.
func hangingListener(t *testing.T) (address string, taken *atomic.Int32) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	taken = &atomic.Int32{}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			taken.Add(1)
			t.Cleanup(func() { _ = connection.Close() })
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String(), taken
}

func TestAServerThatNeverAnswersLeavesTimeForTheNext(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.addNode("w1", "u1")
	over := make(chan struct{})
	var hung atomic.Int32
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		hung.Add(1)
		select {
		case <-r.Context().Done():
		case <-over:
		}
		return true
	}, nil)
	t.Cleanup(func() { close(over) })
	mute, taken := hangingListener(t)
	servers.addresses = append([]string{mute}, servers.addresses...)

	client := servers.client(t, func(o *Options) { o.Timeout = 30 * time.Second })
	nodes, err := client.Nodes(t.Context())
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	require.Positive(t, taken.Load(), "one takes connections and makes no handshake")
	require.EqualValues(t, 1, hung.Load(), "one makes the handshake and never answers; the second call doesn't begin with it again")
}

func TestWhenNoServerAnswersEachSaysWhy(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	foreign := serve(t, cluster, nil)
	servers := serve(t, cluster)
	servers.addresses = []string{closedAddress(t), foreign.addresses[0]}

	_, err := servers.client(t).Nodes(t.Context())
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, servers.addresses[0]+" refuses connections; "+servers.addresses[1]+" shows a certificate of another authority")
}

func TestAServerThatCannotReadNowIsPassedOver(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.addNode("w1", "u1")
	starting := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		w.Header().Set("Retry-After", "600")
		http.Error(w, "etcd is gone", http.StatusServiceUnavailable)
		return true
	}
	servers := serve(t, cluster, starting, nil)
	nodes, err := servers.client(t).Nodes(t.Context())
	require.NoError(t, err)
	require.Len(t, nodes, 1)

	servers.addresses = servers.addresses[:1]
	_, err = servers.client(t).Nodes(t.Context())
	require.ErrorIs(t, err, ErrUnavailable, "and it isn't waited for: who calls decides when to come back")
}

func TestAnAnswerLongerThanAllowedIsAnError(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	servers := serve(t, cluster, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		w.Header().Set("Content-Type", "application/json")
		chunk := []byte(strings.Repeat(" ", 1<<20))
		for range maxReply>>20 + 8 {
			if _, err := w.Write(chunk); err != nil {
				return true
			}
		}
		return true
	})
	_, err := servers.client(t).Nodes(t.Context())
	require.ErrorContains(t, err, "the reply is larger than 64 MiB")
}

// breakOff sends the beginning of an answer to a request of a method, and no more.
func breakOff(method string) fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
		if r.Method != method {
			return false
		}
		whole := httptest.NewRecorder()
		next.ServeHTTP(whole, r)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(whole.Body.Len()))
		_, _ = w.Write(whole.Body.Bytes()[:whole.Body.Len()/2])
		return true
	}
}

func TestAnAnswerThatBreaksOffIsTheServersEnd(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	cluster.addNode("w1", "u1")
	client := serve(t, cluster, breakOff(http.MethodGet), nil).client(t)
	_, err := client.Nodes(t.Context())
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "breaks the connection off")
	_, err = client.Nodes(t.Context())
	require.NoError(t, err, "the next call goes to the next server")
}

func TestAWriteWhoseAnswerBreaksOffIsLookedFor(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1")
	require.NoError(t, serve(t, cluster, breakOff(http.MethodPatch), nil).client(t).Cordon(t.Context(), node, "op-1"))
	require.Equal(t, 1, cluster.sent("PATCH", "/w1"))
}

// A proxy or an API server whose etcd was too slow says 503 or 504, and the write may be in etcd all the same.
func TestAWriteThatWasAnsweredWithAnErrorOfTheServersIsLookedFor(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		cluster := newFakeCluster(t)
		node := cluster.addNode("w1", "u1")
		client := serve(t, cluster, func(w http.ResponseWriter, r *http.Request, next http.Handler) bool {
			if r.Method != http.MethodPatch {
				return false
			}
			next.ServeHTTP(httptest.NewRecorder(), r)
			w.Header().Set("Retry-After", "1")
			http.Error(w, "no", code)
			return true
		}, nil).client(t)
		require.NoError(t, client.Cordon(t.Context(), node, "op-1"), code)
		require.Equal(t, 1, cluster.sent("PATCH", "/w1"), code)
	}
}

func TestGivingUpIsNotTheApiBeingAway(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	servers := serve(t, cluster, func(_ http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		cancel()
		<-r.Context().Done()
		return true
	})
	_, err := servers.client(t).Nodes(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrUnavailable)
}

func TestWithoutACertificateNothingIsSent(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	client := serve(t, cluster, nil).client(t, func(o *Options) {
		o.Certificate = func() (tls.Certificate, error) { return tls.Certificate{}, errors.New("the bundle is sealed") }
	})
	_, err := client.Nodes(t.Context())
	require.ErrorContains(t, err, "the bundle is sealed")
	require.Zero(t, cluster.sent("GET", ""))
}

func TestReadySaysWhichChecksFail(t *testing.T) {
	t.Parallel()
	cluster := newFakeCluster(t)
	require.NoError(t, one(t, cluster).Ready(t.Context()))

	servers := serve(t, cluster, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]etcd-readiness failed: reason withheld\nreadyz check failed\n")
		return true
	})
	err := servers.client(t).Ready(t.Context())
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "it isn't ready (etcd, etcd-readiness)")
}

// The library logs to standard error by itself; what the agent writes there is the agent's.
func TestNothingIsWrittenToStandardError(t *testing.T) {
	read, write, err := os.Pipe()
	require.NoError(t, err)
	kept := os.Stderr
	os.Stderr = write
	t.Cleanup(func() { os.Stderr = kept })

	cluster := newFakeCluster(t)
	node := cluster.addNode("w1", "u1", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	cluster.pods = append(cluster.pods, pod("default", "web-0", "p1"))
	cluster.eviction = func(*corev1.Pod) *apierrors.StatusError { return tooMany(10) }
	servers := serve(t, cluster, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) bool {
		w.Header().Set("Warning", `299 - "this is deprecated"`)
		return false
	})
	servers.addresses = append([]string{closedAddress(t)}, servers.addresses...)
	client := servers.client(t)
	_, err = client.Evict(t.Context(), node, EvictOptions{})
	require.NoError(t, err)
	_, err = client.Nodes(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, client.DeleteNode(t.Context(), "w1", "u2"), ErrChanged)
	_, err = serve(t, cluster, breakOff(http.MethodGet)).client(t).Nodes(t.Context())
	require.ErrorIs(t, err, ErrUnavailable)

	os.Stderr = kept
	require.NoError(t, write.Close())
	said, err := io.ReadAll(read)
	require.NoError(t, err)
	require.Empty(t, string(said))
}

func TestAddressesOfServers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want string }{
		{"10.0.0.11", "10.0.0.11:6443"},
		{"10.0.0.11:7443", "10.0.0.11:7443"},
		{"https://10.0.0.10:6443", "10.0.0.10:6443"},
		{"https://k8s.example.com/", "k8s.example.com:443"},
		{"cp-1.example.com", "cp-1.example.com:6443"},
		{"fd00::11", "[fd00::11]:6443"},
		{"[fd00::11]", "[fd00::11]:6443"},
		{"[fd00::11]:7443", "[fd00::11]:7443"},
		{"https://[fd00::11]:6443", "[fd00::11]:6443"},
		{"http://10.0.0.10:6443", ""},
		{"https://10.0.0.10:6443/api", ""},
		{"", ""},
		{"10.0.0.10/24", ""},
	} {
		got, err := hostPort(c.given)
		require.Equal(t, c.want, got, c.given)
		require.Equal(t, c.want == "", err != nil, c.given)
	}
}
