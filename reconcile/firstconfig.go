package reconcile

import (
	"fmt"
	"net/netip"
	"time"

	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

// conditionRefused is the type of the condition that keeps a node's refusal of a config.
const conditionRefused = "ConfigRefused"

// approvalKey names one approval decision of a machine, as the state keeps it.
func approvalKey(in *Input, m *schema.TalosMachine) string {
	return approvedAt(in, m).UTC().Format(time.RFC3339)
}

// firstConfig decides about a machine in maintenance mode. Nothing authenticates it there and a control plane's config holds
// every key, so the config goes out once an approval, only to a certificate or a network that someone vouched for, and only
// to a disk that is there and empty.
func firstConfig(in *Input, next *statefile.State, m *schema.TalosMachine, seen Seen) (*Action, verdict) {
	name, memory, key := m.Metadata.Name, next.Machines[m.Metadata.Name], approvalKey(in, m)
	// Decisions count by their times: one that is older than the one that was used is used too, or a revert would renew it.
	if memory.ConfigSentFor != "" && key <= memory.ConfigSentFor {
		if memory.ConfigSentTo == seen.Fingerprint && memory.ConfigSentTo != "" {
			return nil, verdict{"Configuring", fmt.Sprintf("%s was given its config and has not left maintenance mode yet", name)}
		}
		return nil, verdict{"NeedsApproval", fmt.Sprintf("%s (%s) is in maintenance mode although its config was sent, or may have been, "+
			"for the approval of %s: an address and a UUID in Git don't prove that it is the same machine; look at its console and renew "+
			"spec.approvalDecision.at", name, m.Spec.Endpoint, memory.ConfigSentFor)}
	}
	if !trusted(in, m, seen) {
		return nil, verdict{"NotTrusted", fmt.Sprintf("%s shows the fingerprint %s, and neither is that its spec.fingerprint nor is %s in a "+
			"trusted network; compare it with the machine's console and set spec.fingerprint, or start the agent with "+
			"--trust-maintenance-network", name, seen.Fingerprint, m.Spec.Endpoint)}
	}
	if seen.Config.Problem != "" {
		return nil, verdict{"RenderFailed", fmt.Sprintf("the config of %s can't be rendered: %s", name, seen.Config.Problem)}
	}
	if seen.Config.DiskProblem != "" {
		return nil, verdict{"DiskRefused", fmt.Sprintf("%s is not installed: %s", name, seen.Config.DiskProblem)}
	}
	attempt := 1
	if refused := findCondition(memory, conditionRefused); refused != nil && memory.ConfigDigest == seen.Config.Wanted {
		if wait := 12 * in.Timing.Retry; in.Now.Sub(refused.Since) < wait {
			return nil, verdict{conditionRefused, refused.Message}
		}
		attempt = 2
	}
	return &Action{
		Kind: ActFirstConfig, Machine: name, UUID: seen.UUID, Boot: seen.Fingerprint, Digest: seen.Config.Wanted, Approval: key,
		Facts: map[string]string{"mode": "maintenance"}, Attempt: attempt,
		Why: fmt.Sprintf("%s is in maintenance mode and approved (%s): it gets its first config", name, key),
	}, verdict{"Configuring", fmt.Sprintf("%s is in maintenance mode and about to get its first config", name)}
}

func trusted(in *Input, m *schema.TalosMachine, seen Seen) bool {
	return Trusted(m, seen.Fingerprint, in.TrustedNetworks)
}

// Trusted says whether someone vouched for a machine in maintenance mode that shows this fingerprint: by its fingerprint, or by its network.
// A name instead of an address vouches for nothing.
func Trusted(m *schema.TalosMachine, fingerprint string, networks []netip.Prefix) bool {
	if m.Spec.Fingerprint != "" && m.Spec.Fingerprint == fingerprint {
		return true
	}
	address, err := netip.ParseAddr(host(m.Spec.Endpoint))
	if err != nil {
		return false
	}
	for _, network := range networks {
		if network.Contains(address.Unmap()) {
			return true
		}
	}
	return false
}

func findCondition(m *statefile.MachineState, kind string) *statefile.Condition {
	for i := range m.Conditions {
		if m.Conditions[i].Type == kind {
			return &m.Conditions[i]
		}
	}
	return nil
}
