package soak

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/talos"
)

// The stages of a machine, as Talos names them; the empty one: it is between two boots, or off, and nothing answers.
const (
	stageMaintenance = "maintenance"
	stageInstalling  = "installing"
	stageBooting     = "booting"
	stageRunning     = "running"
	stageRebooting   = "rebooting"
	stageResetting   = "resetting"
	stageStopping    = "shutting down"
	stageAway        = ""
)

// machine is one machine in the rack. The world's lock guards it.
type machine struct {
	w              *World
	c              *cluster
	name, ip, uuid string
	hostname       string
	role           schema.Role

	power bool
	stage string
	boot  int
	// since is when the present stage began, until when it ends and then what follows; zero: it doesn't end by itself.
	since, until time.Time
	then         func(now time.Time)

	// active is the config that runs, persistent the one that the next boot uses. shown: the persistent one is shown, which Talos does only
	// once one was applied in this boot.
	active, persistent *machineConfig
	shown              bool
	// before is what a tried config is taken back to at triedUntil.
	before     *machineConfig
	triedUntil time.Time

	// etcd is the cluster that its data is of; nil: no data. A learner is promoted at promoteAt, in the boot that joined.
	etcd      *etcd
	member    uint64
	learner   bool
	promoteAt time.Time
	// service is the state of its etcd service, "" where there is none yet; what Talos says of it, and since when.
	service, serviceMessage string
	serviceChanged          time.Time
	// upload is the snapshot that it was given in this boot. servesUntil is how long its API server outlives an etcd that left.
	upload      []byte
	servesUntil time.Time

	kubeletStarted time.Time
	node           *kubeNode
	// alone: the other machines can't reach it, nor it them. drops: it answers OK to what would take it down, and drops it.
	alone, drops bool
	// byUs: a call of an agent's took it down, at downAt; byHand: when somebody else last did.
	byUs   string
	downAt time.Time
	byHand time.Time
	// removed: a signed removal wiped it. defragmented, forfeited and restarted count what was done.
	wiped, defragmented, forfeited, restarted int
}

// machineConfig is a config as a machine keeps it.
type machineConfig struct {
	bytes    []byte
	provider config.Provider
	digest   string
}

var parsedConfigs sync.Map // of every seed: configs are the same again and again

// parseConfig reads a config as Talos does.
func parseConfig(data []byte) (*machineConfig, error) {
	key := sha256.Sum256(data)
	if known, ok := parsedConfigs.Load(key); ok {
		return known.(*machineConfig), nil
	}
	provider, err := configloader.NewFromBytes(data)
	if err != nil {
		return nil, err
	}
	digest, err := talos.Digest(provider)
	if err != nil {
		return nil, err
	}
	parsed := &machineConfig{bytes: data, provider: provider, digest: digest}
	parsedConfigs.Store(key, parsed)
	return parsed, nil
}

func (m *machine) bootID() string {
	return fmt.Sprintf("%08x-%s-boot-%d", uint32(m.w.draw("boot", m.uuid, m.boot)), m.name, m.boot)
}

func (m *machine) fingerprint() string {
	return fmt.Sprintf("%s-%s-print-%d", m.c.name, m.name, m.boot)
}

func (m *machine) controlPlane() bool { return m.role == schema.RoleControlPlane }

// answers says whether its API answers.
func (m *machine) answers() bool {
	return m.power && m.stage != stageAway && m.stage != stageInstalling
}

// configured says whether it has a config that it boots with.
func (m *machine) configured() bool { return m.persistent != nil }

// up says whether its services run.
func (m *machine) up() bool {
	return m.power && (m.stage == stageBooting || m.stage == stageRunning)
}

func (m *machine) goingDown() bool {
	return m.stage == stageRebooting || m.stage == stageResetting || m.stage == stageStopping
}

// enter begins a stage; then what follows after a while, if anything does.
func (m *machine) enter(now time.Time, stage string, after time.Duration, then func(time.Time)) {
	m.stage, m.since, m.then, m.until = stage, now, then, time.Time{}
	if then != nil {
		m.until = now.Add(after)
	}
}

// scrapped says whether it was wiped by a removal and is off: nobody switches it on again.
func (m *machine) scrapped() bool { return m.wiped > 0 && !m.power }

// lasts is how long something takes on this machine in this boot.
func (m *machine) lasts(what string, least, most time.Duration) time.Duration {
	return m.w.span(least, most, what, m.uuid, m.boot)
}

// advance ends what has lasted long enough.
func (m *machine) advance(now time.Time) {
	if !m.power {
		return
	}
	if m.before != nil && !now.Before(m.triedUntil) {
		m.active, m.before = m.before, nil
	}
	if m.then != nil && !now.Before(m.until) {
		then := m.then
		m.then = nil
		then(now)
	}
}

// bootUp is the start of another boot: into the installed system, or into maintenance where there is no config.
func (m *machine) bootUp(now time.Time) {
	m.boot++
	m.active, m.before, m.shown = m.persistent, nil, false
	m.service, m.promoteAt = "", time.Time{}
	m.upload, m.servesUntil = nil, time.Time{}
	m.kubeletStarted = time.Time{}
	m.byUs = ""
	if m.persistent == nil {
		m.enter(now, stageMaintenance, 0, nil)
		return
	}
	m.enter(now, stageBooting, 0, nil)
}

// goDown is what Talos does at a reboot, a reset or a shutdown: the API answers on for a while, then nothing does, and what the sequence is
// for is done.
func (m *machine) goDown(now time.Time, stage string, done func(time.Time)) {
	m.downAt = now
	m.enter(now, stage, m.lasts("going down", 4*time.Second, 25*time.Second), func(now time.Time) {
		m.service = ""
		m.enter(now, stageAway, m.lasts("away", 10*time.Second, 70*time.Second), done)
	})
}

// off cuts its power.
func (m *machine) off() {
	m.power, m.stage, m.then, m.service = false, stageAway, nil, ""
}

// on gives it power again.
func (m *machine) on(now time.Time) {
	if m.power {
		return
	}
	m.power, m.byUs = true, "" // whoever switches it on sees to it
	m.enter(now, stageAway, m.lasts("away", 10*time.Second, 70*time.Second), m.bootUp)
}

// cycle is a sudden boot. An install that is under way is lost.
func (m *machine) cycle(now time.Time) {
	m.off()
	m.on(now)
}

// mounted says whether its own storage is there, so that what etcd holds can be seen.
func (m *machine) mounted(now time.Time) bool {
	return m.up() && now.Sub(m.since) >= 3*time.Second || m.stage == stageRunning
}

// apply takes a config, or says why not.
func (m *machine) apply(now time.Time, request talos.ApplyRequest) error {
	parsed, err := parseConfig(request.Config)
	if err != nil {
		return refusal(m, "applying the config", "failed to parse config: "+err.Error())
	}
	if parsed.has(settingRefused) {
		return refusal(m, "applying the config", "failed to validate config: "+settingRefused+" is no setting")
	}
	if m.stage == stageMaintenance {
		m.enter(now, stageMaintenance, m.lasts("taking", time.Second, 5*time.Second), func(now time.Time) {
			m.enter(now, stageInstalling, m.lasts("installing", 15*time.Second, 60*time.Second), func(now time.Time) {
				m.persistent = parsed
				m.bootUp(now)
			})
		})
		return nil
	}
	if m.goingDown() {
		return refusal(m, "applying the config", "the machine is "+m.stage)
	}
	live := m.active.digest == parsed.digest
	if !live && request.Mode != talos.ApplyStaged {
		needs, why, err := talos.NeedsReboot(m.active.provider, parsed.provider)
		if err != nil || needs {
			return refusal(m, "applying the config", fmt.Sprintf("this config change can't be applied in immediate mode: %v", why))
		}
	}
	switch request.Mode {
	case talos.ApplyTry:
		if m.before == nil {
			m.before = m.active
		}
		m.active, m.triedUntil = parsed, now.Add(time.Minute)
	case talos.ApplyNoReboot:
		m.active, m.persistent, m.before, m.shown = parsed, parsed, nil, true
	case talos.ApplyStaged:
		m.persistent, m.shown = parsed, true
	}
	return nil
}
