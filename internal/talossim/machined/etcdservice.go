package machined

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	etcdres "github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"ichor.maesh.dev/internal/talossim/member"
)

// Talos's times of the etcd service (internal/app/machined/pkg/system/services/etcd.go, pkg/machinery/constants).
const (
	etcdJoinTimeout    = 30 * time.Minute
	etcdJoinEvery      = 3 * time.Second
	etcdJoinAttempt    = 30 * time.Second
	etcdPromoteTimeout = 10 * time.Minute
	etcdPromoteEvery   = 15 * time.Second
	etcdPromoteAttempt = 30 * time.Second
	etcdRestartEvery   = 5 * time.Second
)

// joinFloor is for a host that is so busy that etcd takes long to answer; a change that raft drops costs its caller all of it.
const joinFloor = 45 * time.Second

const (
	etcdDataPath     = "/var/lib/etcd"
	etcdSnapshotPath = "/var/lib/etcd.snapshot"
)

// etcdSlot is the etcd process of this boot, if there is one.
type etcdSlot struct {
	mu      sync.Mutex
	member  *member.Member
	dead    bool // the power went or the partition is gone: nothing starts any more
	healthy bool
	met     bool // an etcd answered, ran here, or was asked for here: what follows is real work
}

// atWork says whether this machine has to do with a real etcd in this boot.
func (s *etcdSlot) atWork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.met
}

func (s *etcdSlot) meet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.met = true
}

func (s *etcdSlot) set(m *member.Member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead && m != nil {
		return false
	}
	s.member = m
	s.met = s.met || m != nil
	return true
}

// kill ends etcd as a power cut does, for good.
func (s *etcdSlot) kill() {
	s.mu.Lock()
	s.dead = true
	m := s.member
	s.mu.Unlock()
	if m != nil {
		m.Kill()
	}
}

func (s *etcdSlot) isHealthy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.healthy
}

// etcdService is one registration of the etcd service, with the flags that Bootstrap gave it.
type etcdService struct {
	m                           *Machine
	bootstrap, recover, skipSum bool

	// Set by the pre stage for the run that follows it.
	initialCluster string
	learner        uint64
	stopPromotion  context.CancelFunc
}

func (m *Machine) etcdDef(e *etcdService) serviceDef {
	return serviceDef{
		id:   "etcd",
		deps: []string{"cri"},
		waits: []condition{
			{"volumes /var/lib, ETCD to be mounted", m.volumes.ephemeralMounted},
			m.timeSynced(), m.networkReady(),
			{"etcd spec", func() bool { return m.hostname() != "" }},
		},
		pre: e.pre, run: e.run, after: e.after,
		health: m.etcdHealth, healthDelay: 5 * time.Second, healthEvery: 20 * time.Second, healthTimeout: 15 * time.Second,
		onHealth: m.etcdHealthChanged,
	}
}

func (m *Machine) etcdHealth(ctx context.Context) error {
	c, err := m.etcdClient(member.ClientURL(m.cfg.Address))
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // only read from
	_, err = c.Get(ctx, "health")
	return err
}

func (m *Machine) etcdHealthChanged(healthy bool) {
	m.etcd.mu.Lock()
	m.etcd.healthy = healthy
	mem := m.etcd.member
	m.etcd.mu.Unlock()
	r := etcdres.NewMember(etcdres.NamespaceName, etcdres.LocalMemberID)
	if healthy && mem != nil {
		r.TypedSpec().MemberID = etcdres.FormatMemberID(mem.ID())
		m.put(r)
		return
	}
	m.drop(r)
}

func (e *etcdService) pre(ctx context.Context) error {
	m := e.m
	if err := m.pace.Sleep(ctx, time.Second); err != nil { // the image
		return err
	}
	e.initialCluster, e.learner = "", 0
	if e.recover {
		if err := e.restore(); err != nil {
			return err
		}
	}
	dir := m.volumes.path(etcdDataPath)
	empty, err := isEmpty(dir)
	if err != nil {
		return err
	}
	if !empty {
		return nil
	}
	self := m.hostname() + "=" + member.PeerURL(m.cfg.Address)
	if e.bootstrap {
		e.initialCluster = self
		return nil
	}
	if e.initialCluster, e.learner, err = m.joinCluster(ctx); err != nil {
		return fmt.Errorf("failed to build initial etcd cluster: %w", err)
	}
	return nil
}

func isEmpty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	return len(entries) == 0, err
}

// restore makes a one-member cluster of the uploaded snapshot.
func (e *etcdService) restore() error {
	m := e.m
	path := m.volumes.path(etcdSnapshotPath)
	manager := snapshot.NewV3(zap.NewNop())
	// What reads a damaged page may panic, which would end every machine of the farm. Where the file isn't what its trailer says it is the
	// restore finds that out before it reads a page.
	if e.skipSum || trailerFits(path) {
		if _, err := manager.Status(path); err != nil {
			return fmt.Errorf("error verifying snapshot: %w", m.volumes.inside(err))
		}
	}
	if err := manager.Restore(snapshot.RestoreConfig{
		SnapshotPath: path, Name: m.hostname(), OutputDataDir: m.volumes.path(etcdDataPath),
		PeerURLs:       []string{member.PeerURL(m.cfg.Address)},
		InitialCluster: m.hostname() + "=" + member.PeerURL(m.cfg.Address),
		SkipHashCheck:  e.skipSum,
	}); err != nil {
		return fmt.Errorf("error recovering from the snapshot: %w", m.volumes.inside(err))
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("error deleting snapshot: %w", m.volumes.inside(err))
	}
	return nil
}

// trailerFits says whether a snapshot ends with the SHA-256 of what is before it. A file that can't be read is for etcd to judge.
func trailerFits(path string) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	if len(data)%512 != sha256.Size {
		return false // cut short, or never had one
	}
	sum := sha256.Sum256(data[:len(data)-sha256.Size])
	return bytes.Equal(sum[:], data[len(data)-sha256.Size:])
}

// joinCluster tries to become a learner of whatever cluster an endpoint leads to, for half an hour.
func (m *Machine) joinCluster(ctx context.Context) (initial string, id uint64, err error) {
	ctx, cancel := m.pace.Waiting(ctx, etcdJoinTimeout, m.etcd.atWork)
	defer cancel()
	err = errors.New("timeout")
	m.pace.ask(ctx, etcdJoinEvery, func() bool {
		attempt, cancel := m.pace.Within(ctx, etcdJoinAttempt)
		defer cancel()
		var list *clientv3.MemberListResponse
		if list, id, err = m.addSelf(ctx, attempt); err != nil {
			m.log.Debug("joining etcd", "err", err)
			return false
		}
		var parts []string
		for _, mb := range list.Members {
			name := mb.Name
			if mb.ID == id {
				name = m.hostname()
			}
			for _, u := range mb.PeerURLs {
				parts = append(parts, name+"="+u)
			}
		}
		initial = strings.Join(parts, ",")
		return true
	})
	if err != nil {
		return "", 0, fmt.Errorf("failed to build cluster arguments: %w", err)
	}
	return initial, id, nil
}

// addSelf removes members of the own name and adds the machine as a learner. An attempt that is cut short between adding and
// listing leaves a nameless member that blocks every further one; on a busy host that must not come of the time scale, so
// that from the adding on the attempt has at least joinFloor of real time.
func (m *Machine) addSelf(joining, attempt context.Context) (*clientv3.MemberListResponse, uint64, error) {
	c, err := m.etcdClusterClient()
	if err != nil {
		return nil, 0, err
	}
	defer c.Close() //nolint:errcheck // the calls' own errors count
	list, err := c.MemberList(clientv3.WithRequireLeader(attempt))
	if err != nil {
		return nil, 0, fmt.Errorf("error getting etcd member list: %w", err)
	}
	m.etcd.meet()
	done, err := m.changeMembers()
	if err != nil {
		return nil, 0, err
	}
	defer done()
	ctx, cancel := m.pace.after(joining, max(m.pace.Of(etcdJoinAttempt), joinFloor))
	defer cancel()
	ctx = clientv3.WithRequireLeader(ctx)
	for _, mb := range list.Members {
		if mb.Name == m.hostname() {
			if _, err := c.MemberRemove(ctx, mb.ID); err != nil {
				return nil, 0, fmt.Errorf("error removing self from the member list: %w", err)
			}
		}
	}
	added, err := c.MemberAddAsLearner(ctx, []string{member.PeerURL(m.cfg.Address)})
	if err != nil {
		return nil, 0, fmt.Errorf("error adding member: %w", err)
	}
	done()
	m.cfg.Faults.halt(joining, AfterMemberAdd)
	list, err = c.MemberList(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("error getting second etcd member list: %w", err)
	}
	return list, added.Member.ID, nil
}

// changeMembers says whether the members of etcd may be changed now. raft drops a change that is proposed while another isn't applied
// yet, and its caller waits in vain; etcd's checks, with which that is rare, may be off.
func (m *Machine) changeMembers() (done func(), err error) {
	if !m.cfg.LooseMembership {
		return func() {}, nil
	}
	if !m.cfg.World.MemberChange.TryLock() {
		return nil, errors.New("another machine changes the members")
	}
	return sync.OnceFunc(m.cfg.World.MemberChange.Unlock), nil
}

// run keeps the process running, restarting it five seconds after each exit. Only the run that joined promotes.
func (e *etcdService) run(ctx context.Context) error {
	m := e.m
	if e.learner != 0 {
		promoteCtx, cancel := context.WithCancel(m.ctx)
		e.stopPromotion = cancel
		m.spawn(func(context.Context) { m.promote(promoteCtx, e.learner) })
	}
	for {
		mem, err := member.Start(ctx, member.Config{
			Name: m.hostname(), Address: m.cfg.Address, DataDir: m.volumes.path(etcdDataPath),
			InitialCluster: e.initialCluster, New: e.bootstrap, Loose: m.cfg.LooseMembership,
			Network: m.cfg.World.Network,
		})
		switch {
		case err != nil:
			m.log.Info("etcd exits", "err", err)
		case !m.etcd.set(mem):
			mem.Kill()
			return nil
		default:
			err = e.supervise(ctx, mem)
			m.etcd.set(nil)
			m.log.Info("etcd exits", "err", err)
		}
		if m.pace.Sleep(ctx, etcdRestartEvery) != nil {
			return nil
		}
	}
}

func (e *etcdService) supervise(ctx context.Context, mem *member.Member) error {
	select {
	case <-mem.Done():
		return mem.Err()
	case <-ctx.Done():
	}
	if e.m.ctx.Err() != nil {
		mem.Kill()
	} else {
		mem.Stop()
	}
	return nil
}

func (e *etcdService) after() {
	if e.stopPromotion != nil {
		e.stopPromotion()
		e.stopPromotion = nil
	}
}

// promote asks the endpoints in turn to make the learner a voter, until one does. A learner that isn't promoted in the boot that
// added it stays one: on a busy host that must not come of the time scale.
func (m *Machine) promote(ctx context.Context, id uint64) {
	m.cfg.Faults.halt(ctx, BeforePromotion)
	ctx, cancel := m.pace.Waiting(ctx, etcdPromoteTimeout, m.etcd.atWork)
	defer cancel()
	next := 0
	patience := time.Second
	m.pace.ask(ctx, etcdPromoteEvery, func() bool {
		// A promotion that is cut short has not happened or is found done next time. A host on which the first attempts don't
		// get as far as an answer is given more time.
		attempt, cancel := m.pace.after(ctx, max(m.pace.Of(etcdPromoteAttempt), patience))
		patience = min(2*patience, etcdPromoteAttempt)
		defer cancel()
		endpoints := m.etcdEndpoints()
		for range endpoints {
			// A dead endpoint takes the whole attempt; the next attempt begins with the endpoint after it.
			if attempt.Err() != nil {
				return false
			}
			endpoint := endpoints[next%len(endpoints)]
			next++
			c, err := m.etcdClient(endpoint)
			if err != nil {
				continue
			}
			err = m.promoteOnce(attempt, c, id)
			_ = c.Close() // one call was all
			if err == nil {
				m.log.Info("etcd member promoted", "member", etcdres.FormatMemberID(id))
				return true
			}
			m.log.Debug("promoting the etcd member", "endpoint", endpoint, "err", err)
		}
		return false
	})
}

func (m *Machine) promoteOnce(ctx context.Context, c *clientv3.Client, id uint64) error {
	done, err := m.changeMembers()
	if err != nil {
		return err
	}
	defer done()
	_, err = c.MemberPromote(ctx, id)
	return err
}
