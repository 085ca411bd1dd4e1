package talos

import (
	"fmt"
	"strings"
	"sync"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"google.golang.org/grpc"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"

	"ichor.maesh.dev/internal/scrub"
)

// Session is one connection to one machine. It never reconnects: after it broke every call fails, so what is sent reaches
// the boot that was looked at over the same connection, or nothing at all. Every call needs a context with a deadline.
//
// Errors of calls carry their gRPC code for Classify, and a text without secrets and without what Talos says of configs.
type Session struct {
	target      Target
	maintenance bool
	fingerprint string

	channel  *grpc.ClientConn
	machine  machineapi.MachineServiceClient
	state    cosiv1alpha1.StateClient
	scrubber *scrub.Scrubber

	mu      sync.Mutex
	configs map[string]knownConfig
}

// Maintenance says whether the machine is in maintenance mode: it authenticated nobody, and nothing authenticates it
// except its fingerprint.
func (s *Session) Maintenance() bool { return s.maintenance }

// Fingerprint is that of the certificate the machine showed, in the form of TalosMachine.spec.fingerprint. In maintenance
// mode it stands for the boot ID, because it changes at each boot.
func (s *Session) Fingerprint() string { return s.fingerprint }

// Close ends the connection. What was sent may still take effect.
func (s *Session) Close() error { return s.channel.Close() }

// failed gives the error of a call: what was being done, to which machine, and the node's words made harmless.
func (s *Session) failed(doing string, err error) error {
	return callError(s.scrubber, s.target, doing, err)
}

// ApplyMode is how a config takes effect. Talos's own zero value reboots the machine, and so may AUTO: neither is offered.
type ApplyMode string

// The modes of ApplyConfig.
const (
	// ApplyNoReboot: active and persistent at once; refused by the machine when a reboot is needed.
	ApplyNoReboot ApplyMode = "NO_REBOOT"
	// ApplyStaged: persistent only; active at the next boot.
	ApplyStaged ApplyMode = "STAGED"
	// ApplyTry: active only, taken back by the machine itself after a time unless it is confirmed with ApplyNoReboot.
	ApplyTry ApplyMode = "TRY"
)

// ResetRequest says what is wiped. There is no way to say "everything", which is what Talos's zero value means.
type ResetRequest struct {
	// Partitions are the labels to wipe, at least one (STATE, EPHEMERAL).
	Partitions []string
	// Graceful lets a control plane leave etcd first; a failure of that, seen nowhere, wipes nothing.
	Graceful bool
	// Reboot brings the machine back; otherwise it powers off.
	Reboot bool
}

func (r ResetRequest) check() error {
	if len(r.Partitions) == 0 {
		return fmt.Errorf("a reset without partitions would wipe the whole disk; name STATE, EPHEMERAL or both: %w", ErrNotSent)
	}
	for _, label := range r.Partitions {
		if label != "STATE" && label != "EPHEMERAL" {
			return fmt.Errorf("a reset of partition %q is never sent; name STATE, EPHEMERAL or both: %w", label, ErrNotSent)
		}
	}
	return nil
}

// RebootMode is how a machine reboots.
type RebootMode string

// The reboot modes.
const (
	RebootDefault RebootMode = "DEFAULT" // kexec
)

// Stage is what a machine says about itself.
type Stage struct {
	Name string
	// Ready means something only in the stages booting and running.
	Ready bool
	Unmet []string
}

// sane bounds a text from a node.
func sane(scrubber *scrub.Scrubber, text string) string {
	const limit = 300
	text = strings.TrimSpace(scrubber.Text(text))
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
