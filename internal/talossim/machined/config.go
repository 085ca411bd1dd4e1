package machined

import (
	"context"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"k8s.io/utils/clock"
)

// persistDelay is how long Talos's controller takes to bring a config to STATE.
const persistDelay = 500 * time.Millisecond

// configs are the machine's two configs: the active one and the one that the next boot will use.
type configs struct {
	m *Machine

	mu         sync.Mutex
	active     config.Provider
	persistent config.Provider
	complete   chan struct{} // closed once there is a config that a boot can go on with
	isComplete bool
	rollback   context.CancelFunc
	unwritten  []byte // persistent, on its way to STATE

	reconcile sync.Mutex // one change takes effect at a time
}

func (c *configs) current() config.Provider {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active
}

// configured says whether there is a config that a boot can go on with: the machine isn't in maintenance.
func (c *configs) configured() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isComplete
}

func (c *configs) machineType() machine.Type {
	if p := c.current(); p != nil && p.Machine() != nil {
		return p.Machine().Type()
	}
	return machine.TypeUnknown
}

// load takes the config that STATE held at boot. Talos shows no stored config then, only the active one, until one is applied.
func (c *configs) load(data []byte) error {
	p, err := configloader.NewFromBytes(data)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.persistent = p
	c.mu.Unlock()
	c.setActive(p)
	return nil
}

// setActive makes a config take effect.
func (c *configs) setActive(p config.Provider) {
	c.reconcile.Lock()
	defer c.reconcile.Unlock()
	c.mu.Lock()
	old := c.active
	c.active = p
	first := p.RawV1Alpha1() != nil && !c.isComplete
	if first {
		c.isComplete = true
	}
	c.mu.Unlock()
	c.m.publish(configres.NewMachineConfigWithID(p, configres.ActiveID), true)
	c.m.configChanged(old, p)
	if first {
		close(c.complete)
	}
}

// setPersistent makes a config the one of the next boot. It reaches STATE a moment later.
func (c *configs) setPersistent(p config.Provider) error {
	data, err := p.Bytes()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.persistent, c.unwritten = p, data
	c.mu.Unlock()
	c.m.publish(configres.NewMachineConfigWithID(p, configres.PersistentID), true)
	c.m.spawn(func(ctx context.Context) {
		c.m.cfg.Faults.halt(ctx, BeforeConfigWrite)
		if c.m.pace.Sleep(ctx, persistDelay) == nil {
			c.flush()
		}
	})
	return nil
}

// flush brings the persistent config to STATE, if there is a STATE; until then it stays on its way.
func (c *configs) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unwritten == nil || !c.m.cfg.Store.Has(stateLabel) || c.m.ctx.Err() != nil {
		return
	}
	if err := c.m.cfg.Store.writeConfig(c.unwritten); err != nil {
		c.m.log.Error("writing the config to STATE", "err", err)
		return
	}
	c.unwritten = nil
}

// rollbackAfter makes the active config come back after a time (of the clock, not scaled), unless that is cancelled. Nothing comes back where nothing
// was active before.
func (c *configs) rollbackAfter(d time.Duration) {
	c.cancelRollback()
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.active
	ctx, cancel := context.WithCancel(c.m.ctx)
	c.rollback = cancel
	// The timer runs from the request, whatever happens before the goroutine does.
	timer := c.m.pace.Clock.NewTimer(d)
	c.m.spawn(func(context.Context) { c.revert(ctx, timer, before) })
}

func (c *configs) revert(ctx context.Context, timer clock.Timer, before config.Provider) {
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C():
	}
	c.mu.Lock()
	if ctx.Err() != nil {
		c.mu.Unlock()
		return
	}
	c.rollback = nil
	c.mu.Unlock()
	if before != nil {
		c.setActive(before)
	}
}

func (c *configs) cancelRollback() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rollback != nil {
		c.rollback()
		c.rollback = nil
	}
}
