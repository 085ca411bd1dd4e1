package soak

import "bytes"

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
