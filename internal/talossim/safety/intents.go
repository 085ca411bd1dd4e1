package safety

import (
	"fmt"
	"slices"
	"time"

	"ichor.maesh.dev/statefile"
)

// intent is what the audit keeps of one.
type intent struct {
	nonce, action, carrier, boot, lock, writer string
	at                                         time.Time
	used                                       bool
	// restores says that the cluster lock is a restore's.
	restores bool
}

func (i *intent) String() string {
	return fmt.Sprintf("%s on %s (%.8s)", i.action, i.carrier, i.nonce)
}

// methods are the calls that an intent's action may become.
func methods() map[string][]string {
	return map[string][]string{
		"first-config": {"ApplyConfiguration"}, "config-try": {"ApplyConfiguration"}, "config-confirm": {"ApplyConfiguration"}, "config-stage": {"ApplyConfiguration"},
		"bootstrap": {"Bootstrap"}, "remove-member": {"EtcdRemoveMemberByID"}, "reset-ephemeral": {"Reset"}, "reset": {"Reset"}, "reset-machine": {"Reset"}, "reboot": {"Reboot"},
		"shutdown": {"Shutdown"}, "leave": {"EtcdLeaveCluster"}, "forfeit": {"EtcdForfeitLeadership"}, "forfeit-leadership": {"EtcdForfeitLeadership"},
		"defragment": {"EtcdDefragment"}, "restart-service": {"ServiceRestart"}, "restart-kubelet": {"ServiceRestart"}, "upload": {"EtcdRecover"},
		"recover": {"Bootstrap"},
	}
}

// locked are the calls that need the cluster lock.
func locked() []string {
	return []string{"Bootstrap", "EtcdRemoveMemberByID", "EtcdLeaveCluster", "Reset", "Reboot", "Shutdown"}
}

// writers judges whether intents come from the cluster's writer: each takes over with the next epoch.
func writers(events []statefile.Event) (broken []string) {
	epoch := uint64(0)
	for _, e := range events {
		if e.Writer.Epoch < epoch && e.Action == "Intent" {
			broken = append(broken, fmt.Sprintf("%s wrote an intent (%.8s) in epoch %d, after epoch %d had begun", e.Writer.ID, e.Details["nonce"], e.Writer.Epoch, epoch))
		}
		epoch = max(epoch, e.Writer.Epoch)
	}
	return broken
}

// intentsOf reads the audit's, in order.
func intentsOf(events []statefile.Event) []*intent {
	var intents []*intent
	restores := map[string]bool{}
	for _, e := range events {
		switch {
		case e.Action == "OperationAccepted" && e.Details["kind"] == "etcd-restore":
			restores[fmt.Sprintf("operation:%.12s", e.Operation)] = true
		case e.Action == "Intent":
			intents = append(intents, &intent{
				nonce: e.Details["nonce"], action: e.Details["action"], carrier: e.Details["carrier"], boot: e.Details["boot"], lock: e.Details["lock"],
				writer: e.Writer.ID, at: e.At, restores: restores[e.Details["lock"]],
			})
		}
	}
	return intents
}

// meant judges whether each call was meant, once.
func meant(calls []taken, intents []*intent) (broken []string) {
	seen := map[string]bool{}
	for _, i := range intents {
		if i.nonce == "" || seen[i.nonce] {
			broken = append(broken, fmt.Sprintf("the intent of %s has no nonce of its own", i))
		}
		seen[i.nonce] = true
	}
	for n, c := range calls {
		i := explains(intents, c)
		calls[n].intent = i
		switch {
		case i == nil:
			broken = append(broken, fmt.Sprintf("%s was taken, and no intent that is left explains it", c))
			continue
		case i.lock == "" && slices.Contains(locked(), c.method):
			broken = append(broken, fmt.Sprintf("%s was taken without the cluster lock (intent %.8s)", c, i.nonce))
		case i.writer == "":
			broken = append(broken, fmt.Sprintf("%s was taken for an intent that nobody wrote (%.8s)", c, i.nonce))
		}
		i.used = true
	}
	return broken
}

// explains finds the intent of a call: the last one written before it that fits and has no call yet. In maintenance mode a certificate's
// fingerprint stands for the boot, which a journal doesn't know.
func explains(intents []*intent, c taken) *intent {
	known := methods()
	for _, i := range slices.Backward(intents) {
		if i.used || i.carrier != c.machine || !slices.Contains(known[i.action], c.method) || i.at.After(c.Time) {
			continue
		}
		if i.boot == c.BootID || i.action == "first-config" {
			return i
		}
	}
	return nil
}
