package plan

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"ichor.maesh.dev/schema"
)

// leaveOutSealed takes the sealed patches out that can't be opened here, and notes which machine has which of them. What is left can
// be compared with the other side where both have the same ones.
func (c *clusterPlan) leaveOutSealed(fleet *schema.Fleet, s *side) {
	filter := func(from string, patches []schema.Patch) (kept []schema.Patch, closed []string) {
		for _, patch := range patches {
			if patch.File == "" {
				kept = append(kept, patch)
				continue
			}
			name, data, err := fleet.ReadRef(from, schema.FileRef{File: patch.File})
			if err == nil {
				if _, wasSealed, openErr := c.options.Identities.Open(name, data); wasSealed && openErr != nil {
					closed = append(closed, fmt.Sprintf("%s %x", name, sha256.Sum256(data)))
					continue
				}
			}
			kept = append(kept, patch)
		}
		return kept, closed
	}
	object := *s.cluster.Object
	patches := &object.Spec.Patches
	var all, controlPlane, worker []string
	patches.All, all = filter(object.Source.File, patches.All)
	patches.ControlPlane, controlPlane = filter(object.Source.File, patches.ControlPlane)
	patches.Worker, worker = filter(object.Source.File, patches.Worker)
	s.cluster.Object = &object
	for n, m := range s.cluster.Machines {
		machine := *m
		var own []string
		machine.Spec.Patches, own = filter(m.Source.File, m.Spec.Patches)
		role := worker
		if m.Spec.Role == schema.RoleControlPlane {
			role = controlPlane
		}
		if closed := slices.Concat(all, role, own); len(closed) > 0 {
			s.closed[m.Metadata.Name] = closed
			c.note("%s can't be opened here (give --age-identity): what it sets is left out on both sides", fileNames(closed))
		}
		s.cluster.Machines[n] = &machine
	}
}

// closedDiffer says why a machine that ran the base can't be compared: a sealed patch of it changed. Empty when none did.
func (c *clusterPlan) closedDiffer(name, uuid string) string {
	var before []string
	for _, m := range c.before.cluster.Machines {
		if strings.EqualFold(m.Spec.UUID, uuid) {
			before = c.before.closed[m.Metadata.Name]
		}
	}
	after := c.after.closed[name]
	if slices.Equal(before, after) {
		return ""
	}
	return fmt.Sprintf("what sealed patches set for %s changes, and they can't be opened here (%s); give --age-identity", name,
		fileNames(slices.Concat(before, after)))
}

// fileNames are the files of closed patches, each once.
func fileNames(closed []string) string {
	var names []string
	for _, one := range closed {
		name, _, _ := strings.Cut(one, " ")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}
