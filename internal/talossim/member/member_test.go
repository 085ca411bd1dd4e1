package member

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/internal/talossim/world"
)

func TestAPeerIsKnownByItsFirstRequest(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a stream names its sender":         {"GET /raft/stream/message/1 HTTP/1.1\r\nHost: x\r\nX-Server-From: abc\r\n\r\n", "abc"},
		"a message names its sender":        {"POST /raft HTTP/1.1\r\nHost: x\r\nx-server-from: def\r\nContent-Length: 1\r\n\r\nz", "def"},
		"a list of members has no sender":   {"GET /members HTTP/1.1\r\nHost: x\r\n\r\n", ""},
		"a client's HTTP/2 has no sender":   {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""},
		"something else has no sender":      {"\x16\x03\x01", ""},
		"a closed connection has no sender": {"", ""},
		"headers without an end":            {"GET / HTTP/1.1\r\nX: " + strings.Repeat("y", 10000), ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := bufio.NewReader(strings.NewReader(c.in))
			require.Equal(t, c.want, sender(in))
			rest := new(bytes.Buffer)
			_, err := rest.ReadFrom(in)
			require.NoError(t, err)
			require.Equal(t, c.in, rest.String(), "nothing is consumed")
		})
	}
}

func FuzzSender(f *testing.F) {
	for _, s := range []string{
		"GET /raft/stream/message/1 HTTP/1.1\r\nHost: x\r\nX-Server-From: abc\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n", "POST", "G\r\n\r\n", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bufio.NewReader(bytes.NewReader(data))
		_ = sender(in)
		rest := new(bytes.Buffer)
		_, err := rest.ReadFrom(in)
		require.NoError(t, err)
		require.Equal(t, len(data), rest.Len())
	})
}

func TestAMemberThatIsRemovedEndsAndTheProcessGoesOn(t *testing.T) {
	w := world.New(clock.RealClock{}, 1)
	start := func(addr, initial string, fresh bool) *Member {
		a := netip.MustParseAddr(addr)
		w.Network.Switch(a, true)
		m, err := Start(t.Context(), Config{
			Name: addr, Address: a, DataDir: filepath.Join(t.TempDir(), "etcd"), InitialCluster: initial, New: fresh, Network: w.Network,
		})
		require.NoError(t, err)
		t.Cleanup(m.Kill)
		return m
	}
	const first, second = "127.0.20.111", "127.0.20.112"
	a := start(first, "", true)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{ClientURL(netip.MustParseAddr(first))}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	added, err := c.MemberAddAsLearner(ctx, []string{PeerURL(netip.MustParseAddr(second))})
	require.NoError(t, err)
	b := start(second, first+"="+PeerURL(netip.MustParseAddr(first))+","+second+"="+PeerURL(netip.MustParseAddr(second)), false)
	require.Equal(t, added.Member.ID, b.ID())
	require.NotEqual(t, a.ID(), b.ID())
	_, err = c.MemberRemove(ctx, b.ID())
	require.NoError(t, err)
	select {
	case <-b.Done():
	case <-ctx.Done():
		t.Fatal("the removed member goes on")
	}
	require.Error(t, b.Err())
	_, err = c.Get(ctx, "x")
	require.NoError(t, err)
	a.Kill()
	<-a.Done()
	require.NoError(t, a.Err(), "a kill is no failure")
}

func TestAMemberThatLostItsLogCrashesAloneAndTheProcessGoesOn(t *testing.T) {
	w := world.New(clock.RealClock{}, 1)
	names := []string{"127.0.20.121", "127.0.20.122", "127.0.20.123"}
	var parts []string
	for _, n := range names {
		parts = append(parts, n+"="+PeerURL(netip.MustParseAddr(n)))
	}
	start := func(name, dir string, fresh bool) (*Member, error) {
		a := netip.MustParseAddr(name)
		w.Network.Switch(a, true)
		m, err := Start(t.Context(), Config{
			Name: name, Address: a, DataDir: dir, InitialCluster: strings.Join(parts, ","), New: fresh, Network: w.Network,
		})
		if err == nil {
			t.Cleanup(m.Kill)
		}
		return m, err
	}
	members := make([]*Member, len(names))
	started := make(chan error)
	for i, n := range names {
		dir := filepath.Join(t.TempDir(), "etcd")
		go func() {
			var err error
			members[i], err = start(n, dir, true)
			started <- err
		}()
	}
	for range names {
		require.NoError(t, <-started)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{ClientURL(netip.MustParseAddr(names[0]))}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // the test is over
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// A write fails while etcd elects a leader, which takes a busy host longer than etcd waits for it.
	put := func() {
		for _, err := c.Put(ctx, "k", "v"); err != nil; _, err = c.Put(ctx, "k", "v") {
			require.NoError(t, ctx.Err(), "%v", err)
		}
	}
	for range 20 {
		put()
	}
	members[2].Kill()
	empty, err := start(names[2], filepath.Join(t.TempDir(), "etcd"), false)
	require.NoError(t, err)
	require.Equal(t, members[2].ID(), empty.ID(), "the same member without its past")
	select {
	case <-empty.Done():
		require.Error(t, empty.Err())
	case <-time.After(5 * time.Second):
		// etcd may bring it up to date instead, when the leader has forgotten how far it was.
	}
	put() // the others go on
}

// A watch that tells of changes reads what was there before them; etcd may close its database under it.
func TestAMemberIsKilledUnderWatchesAndTheProcessGoesOn(t *testing.T) {
	const at = "127.0.20.113"
	w, address := world.New(clock.RealClock{}, 1), netip.MustParseAddr(at)
	w.Network.Switch(address, true)
	for range 4 {
		m, err := Start(t.Context(), Config{Name: at, Address: address, DataDir: filepath.Join(t.TempDir(), "etcd"), New: true, Network: w.Network})
		require.NoError(t, err)
		t.Cleanup(m.Kill)
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{ClientURL(address)}, Logger: zap.NewNop()})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		for range 20 {
			puts := make([]clientv3.Op, 100)
			for n := range puts {
				puts[n] = clientv3.OpPut(fmt.Sprintf("key-%d", n), "x")
			}
			_, err = c.Txn(ctx).Then(puts...).Commit()
			require.NoError(t, err)
		}
		told := make(chan struct{}, 100)
		for range 50 {
			watch := c.Watch(clientv3.WithRequireLeader(ctx), "key", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(1))
			go func() {
				for range watch {
					select {
					case told <- struct{}{}:
					default:
					}
				}
			}()
		}
		<-told
		m.Kill()
		cancel()
		require.NoError(t, c.Close())
	}
}
