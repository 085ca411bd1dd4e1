package soak

import (
	"bytes"
	"slices"
	"time"
)

// Settings that a modelled machine takes in its own way: the one it refuses, and with the other nobody reaches it while it runs it.
const (
	settingRefused  = "soak.refused"
	settingLocksOut = "soak.locks-out"
)

func (c *machineConfig) has(setting string) bool {
	return c != nil && bytes.Contains(c.bytes, []byte(setting+":"))
}

// lockedOut says whether what it tries keeps everybody from reaching it.
func (m *machine) lockedOut() bool { return m.active.has(settingLocksOut) }

// driftOf is a config as somebody changed it by hand; nil where it can't be changed that way.
func driftOf(c *machineConfig) *machineConfig {
	changed := bytes.Replace(c.bytes, []byte("kernel.panic: \"10\""), []byte("kernel.panic: \"11\""), 1)
	if bytes.Equal(changed, c.bytes) {
		return nil
	}
	parsed, err := parseConfig(changed)
	if err != nil {
		return nil
	}
	return parsed
}

// putRight takes out of a machine's config what keeps everybody from reaching it, as somebody does who is let in by another way; false where
// that isn't the matter, or where a try ends by itself.
func (m *machine) putRight(now time.Time) bool {
	if !m.lockedOut() || m.before != nil || m.stage != stageRunning {
		return false
	}
	lines := slices.DeleteFunc(bytes.SplitAfter(m.active.bytes, []byte("\n")), func(line []byte) bool { return bytes.Contains(line, []byte(settingLocksOut+":")) })
	parsed, err := parseConfig(bytes.Join(lines, nil))
	if err != nil {
		return false
	}
	m.active, m.persistent, m.shown, m.byHand = parsed, parsed, true, now
	return true
}
