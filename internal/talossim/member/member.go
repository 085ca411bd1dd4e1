package member

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"runtime"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"ichor.maesh.dev/internal/talossim/world"
)

// The ports of etcd on a control plane.
const (
	clientPort = 2379
	peerPort   = 2380
)

// Config says how a member starts.
type Config struct {
	// Name is the member's name, Talos's hostname.
	Name string
	// Address is the machine's.
	Address netip.Addr
	// DataDir is /var/lib/etcd.
	DataDir string
	// InitialCluster is name=url,…; used only while DataDir is empty.
	InitialCluster string
	// New starts a cluster rather than joining one; used only while DataDir is empty.
	New bool
	// Loose switches etcd's strict checks of member changes off.
	Loose bool
	// Network is the farm's.
	Network *world.Network
}

// Member is one run of the etcd process.
type Member struct {
	etcd    *embed.Etcd
	relays  []*world.Relay
	calls   Calls
	crashed chan struct{}
	done    chan struct{}

	mu       sync.Mutex
	stopping bool
	err      error
}

// PeerURL is the peer URL that a machine's member advertises.
func PeerURL(addr netip.Addr) string { return fmt.Sprintf("http://%s:%d", addr, peerPort) }

// ClientURL is the client URL that a machine's member advertises.
func ClientURL(addr netip.Addr) string { return fmt.Sprintf("http://%s:%d", addr, clientPort) }

// Start starts the process. It returns when etcd has started, which doesn't mean that it has a leader; an error is what
// etcd itself ends with when it refuses to start.
func Start(ctx context.Context, cfg Config) (*Member, error) {
	m := &Member{crashed: make(chan struct{}), done: make(chan struct{})}
	ec, err := m.config(cfg)
	if err != nil {
		return nil, err
	}
	if m.etcd, err = startEmbedded(ec); err != nil {
		return nil, fmt.Errorf("starting etcd: %w", err)
	}
	cfg.Network.SetMember(m.etcd.Server.MemberID().String(), cfg.Address)
	for port, backend := range map[int]string{clientPort: m.etcd.Clients[0].Addr().String(), peerPort: m.etcd.Peers[0].Addr().String()} {
		relay, err := world.OpenRelay(net.JoinHostPort(cfg.Address.String(), strconv.Itoa(port)), []string{backend},
			cfg.Network.Link(cfg.Address).Wrap, cfg.senderCable)
		if err != nil {
			m.Kill()
			return nil, fmt.Errorf("etcd's port: %w", err)
		}
		m.relays = append(m.relays, relay)
	}
	go m.watch()
	if ctx.Err() != nil {
		m.Kill()
		return nil, fmt.Errorf("starting etcd: %w", ctx.Err())
	}
	return m, nil
}

// startTimeout bounds a start: one that waits for a data folder which a crashed etcd never let go would last for ever.
const startTimeout = 30 * time.Second

// startEmbedded doesn't heed a power cut: an etcd in the middle of its start would write to a disk that is wiped by then.
func startEmbedded(ec *embed.Config) (*embed.Etcd, error) {
	type started struct {
		etcd *embed.Etcd
		err  error
	}
	result := make(chan started)
	abandoned := make(chan struct{})
	go func() {
		s := started{err: errors.New("etcd ended while starting")}
		defer func() {
			select {
			case result <- s:
			case <-abandoned:
				if s.etcd != nil {
					s.etcd.Close() // nobody knows of it: it must not become a member after all
				}
			}
		}()
		s.etcd, s.err = embed.StartEtcd(ec)
	}()
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case s := <-result:
		return s.etcd, s.err
	case <-timer.C:
		close(abandoned)
		return nil, errors.New("etcd doesn't start: its data folder may be held by one that crashed")
	}
}

func (m *Member) config(cfg Config) (*embed.Config, error) {
	ec := embed.NewConfig()
	ec.Name, ec.Dir = cfg.Name, cfg.DataDir
	ec.UnsafeNoFsync = true
	ec.StrictReconfigCheck = !cfg.Loose
	ec.EnableGRPCGateway = false
	ec.GRPCAdditionalServerOptions = m.calls.Options()
	// A crash of etcd is the end of one goroutine, not of the process it is embedded in.
	hook := crashHook{sync.OnceFunc(func() { close(m.crashed) })}
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapcore.NewNopCore(), zap.WithFatalHook(hook), zap.WithPanicHook(hook)))
	ec.InitialCluster = cfg.InitialCluster
	if ec.InitialCluster == "" {
		ec.InitialCluster = cfg.Name + "=" + PeerURL(cfg.Address)
	}
	ec.ClusterState = embed.ClusterStateFlagExisting
	if cfg.New {
		ec.ClusterState = embed.ClusterStateFlagNew
	}
	backend, err := types.NewURLs([]string{fmt.Sprintf("http://%s:0", cfg.Address)})
	if err != nil {
		return nil, fmt.Errorf("etcd's listeners: %w", err)
	}
	ec.ListenPeerUrls, ec.ListenClientUrls = backend, backend
	for list, text := range map[*[]url.URL]string{&ec.AdvertisePeerUrls: PeerURL(cfg.Address), &ec.AdvertiseClientUrls: ClientURL(cfg.Address)} {
		u, err := types.NewURLs([]string{text})
		if err != nil {
			return nil, fmt.Errorf("etcd's URL %s: %w", text, err)
		}
		*list = u
	}
	return ec, nil
}

type crashHook struct{ crash func() }

// OnWrite tells the supervisor and ends the goroutine that could not go on.
func (h crashHook) OnWrite(*zapcore.CheckedEntry, []zapcore.Field) {
	h.crash()
	runtime.Goexit()
}

func (m *Member) watch() {
	var err error
	select {
	case <-m.crashed:
		err = errors.New("etcd crashed")
	case err = <-m.etcd.Err():
	case <-m.etcd.Server.StopNotify():
		err = errors.New("etcd stopped")
	case <-m.done:
		return
	}
	m.end(err, false)
}

func (m *Member) hasCrashed() bool {
	select {
	case <-m.crashed:
		return true
	default:
		return false
	}
}

// ID is the member's ID.
func (m *Member) ID() uint64 { return uint64(m.etcd.Server.MemberID()) }

// Done is closed when the process has ended, by itself or by Stop or Kill.
func (m *Member) Done() <-chan struct{} { return m.done }

// Err is why the process ended by itself.
func (m *Member) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Stop ends the process as a signal does: leadership is handed over first. It returns when the data folder is closed.
func (m *Member) Stop() { m.end(nil, true) }

// Kill ends the process as a power cut does.
func (m *Member) Kill() { m.end(nil, false) }

func (m *Member) end(err error, graceful bool) {
	m.mu.Lock()
	if m.stopping {
		m.mu.Unlock()
		<-m.done
		return
	}
	m.stopping, m.err = true, err
	m.mu.Unlock()
	if graceful {
		bounded(2*time.Second, func() { _ = m.etcd.Server.TryTransferLeadershipOnShutdown() }) // best effort, as etcd's own
	}
	for _, relay := range m.relays {
		relay.Close()
	}
	patience := 10 * time.Second
	if m.hasCrashed() {
		patience = time.Second // its raft is gone, and what waits for it never returns
	}
	m.calls.Await(patience)
	if !bounded(patience, func() { m.etcd.Server.HardStop(); m.etcd.Close() }) {
		bounded(2*time.Second, func() {
			defer func() { _ = recover() }() // what is half gone already may panic; it only has to let go of its files
			m.etcd.Server.Cleanup()
		})
	}
	close(m.done)
}

// bounded says whether f returned in time.
func bounded(d time.Duration, f func()) bool {
	ended := make(chan struct{})
	go func() { defer close(ended); f() }()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}
