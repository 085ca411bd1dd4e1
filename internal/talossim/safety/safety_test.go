package safety

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/talossim/apid"
	"ichor.maesh.dev/statefile"
)

// story is a history that is told second by second.
type story struct {
	History
	now time.Time
	seq int
}

func tell() *story {
	return &story{now: time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC), History: History{
		Calls: map[string][]apid.Entry{}, ControlPlanes: []string{"cp-1", "cp-2", "cp-3"},
	}}
}

// intent writes one; lock is who holds the cluster lock.
func (s *story) intent(action, machine, boot, lock string) *story {
	s.now = s.now.Add(time.Second)
	s.seq++
	s.Events = append(s.Events, statefile.Event{At: s.now, Writer: statefile.Writer{ID: "agent-1"}, Action: "Intent", Machine: machine, Details: map[string]string{
		"nonce": fmt.Sprintf("nonce-%d", s.seq), "action": action, "carrier": machine, "boot": boot, "lock": lock,
	}})
	return s
}

// takes lets a machine take a call.
func (s *story) takes(machine, method, boot string) *story {
	s.now = s.now.Add(time.Second)
	s.Calls[machine] = append(s.Calls[machine], apid.Entry{Time: s.now, BootID: boot, Method: "/machine.MachineService/" + method, Code: "OK", Mutating: true, Accepted: true})
	return s
}

// answers lets a machine answer a call that changes nothing.
func (s *story) answers(machine, boot string) *story {
	s.now = s.now.Add(time.Second)
	s.Calls[machine] = append(s.Calls[machine], apid.Entry{Time: s.now, BootID: boot, Method: "/machine.MachineService/Version", Code: "OK"})
	return s
}

// asks gives the last call of a machine its request.
func (s *story) asks(machine string, request map[string]any) *story {
	calls := s.Calls[machine]
	calls[len(calls)-1].Request = request
	return s
}

// restore begins a restore, which has the lock "operation:r1".
func (s *story) restore() *story {
	s.Events = append(s.Events, statefile.Event{At: s.now, Action: "OperationAccepted", Operation: "r1", Details: map[string]string{"kind": "etcd-restore"}})
	return s
}

// step is an intent of that restore and its call.
func (s *story) step(action, machine, method, boot string) *story {
	return s.intent(action, machine, boot, "operation:r1").takes(machine, method, boot)
}

// wipes is the wipe of EPHEMERAL by that restore, recovers its recovery.
func (s *story) wipes(machine, boot string) *story {
	return s.step("reset-ephemeral", machine, "Reset", boot).asks(machine, ephemeral(true))
}

func (s *story) recovers(machine, boot string) *story {
	return s.step("recover", machine, "Bootstrap", boot).asks(machine, map[string]any{"recoverEtcd": true})
}

func ephemeral(wipe bool) map[string]any {
	return map[string]any{"reboot": true, "partitions": []map[string]any{{"label": "EPHEMERAL", "wipe": wipe}}}
}

// done is an intent and its call.
func (s *story) done(action, machine, method, boot string) *story {
	return s.intent(action, machine, boot, "op-1").takes(machine, method, boot)
}

func TestWhatKeepsThePromises(t *testing.T) {
	for name, s := range map[string]*story{
		"nothing was done": tell(),
		"a bring-up and a rollout of reboots": tell().
			intent("first-config", "cp-1", "sha256:fingerprint", "").takes("cp-1", "ApplyConfiguration", "a").
			done("bootstrap", "cp-1", "Bootstrap", "b").
			done("reboot", "cp-1", "Reboot", "b").answers("cp-1", "c").
			done("reboot", "cp-2", "Reboot", "d").answers("cp-2", "e"),
		"an intent that was never sent, and the next": tell().intent("reboot", "cp-1", "a", "op-1").done("reboot", "cp-1", "Reboot", "b"),
		"a shutdown that rests, and a reboot after it": tell().done("shutdown", "w-1", "Shutdown", "a").
			intent("reboot", "cp-1", "b", "op-2").takes("cp-1", "Reboot", "b"),
		"what was answered and dropped": func() *story {
			s := tell().done("reboot", "cp-1", "Reboot", "a").takes("cp-2", "Reboot", "b")
			s.Calls["cp-2"][0].Accepted = false
			return s
		}(),
		"a restore that wipes all": tell().done("bootstrap", "cp-1", "Bootstrap", "a").restore().wipes("cp-1", "a").wipes("cp-2", "b").wipes("cp-3", "c").
			step("upload", "cp-1", "EtcdRecover", "d").recovers("cp-1", "d"),
		"a recovery that came to nothing, and one more in that boot with the snapshot given anew": tell().restore().
			step("upload", "cp-1", "EtcdRecover", "a").recovers("cp-1", "a").step("upload", "cp-1", "EtcdRecover", "a").recovers("cp-1", "a"),
		"a recovery that came to nothing, and then another machine's": tell().restore().step("upload", "cp-1", "EtcdRecover", "a").recovers("cp-1", "a").wipes("cp-1", "a").
			step("upload", "cp-2", "EtcdRecover", "b").recovers("cp-2", "b"),
		"the wipe of a removal, and a leadership handed on": tell().done("forfeit-leadership", "cp-1", "EtcdForfeitLeadership", "b").
			done("reset-machine", "w-1", "Reset", "a"),
		"a reset whose request the journal doesn't have": tell().done("reset", "w-1", "Reset", "a"),
		"a call of the test's own": func() *story {
			s := tell().takes("cp-1", "EtcdDefragment", "a")
			s.Foreign = func(_ string, e apid.Entry) bool { return e.Method == "/machine.MachineService/EtcdDefragment" }
			return s
		}(),
	} {
		t.Run(name, func(t *testing.T) { require.Empty(t, Check(s.History)) })
	}
}

func TestEveryBrokenPromiseIsTold(t *testing.T) {
	for _, c := range []struct {
		name string
		s    *story
		want string
	}{
		{"a second bootstrap on another machine", tell().done("bootstrap", "cp-1", "Bootstrap", "a").done("bootstrap", "cp-2", "Bootstrap", "b"), "a second bootstrap: Bootstrap on cp-2"},
		{"a second bootstrap of the same machine", tell().done("bootstrap", "cp-1", "Bootstrap", "a").done("bootstrap", "cp-1", "Bootstrap", "b"), "a second bootstrap: Bootstrap on cp-1"},
		{"two calls for one intent", tell().done("reboot", "w-1", "Reboot", "a").takes("w-1", "Reboot", "a"), "no intent that is left explains it"},
		{"no intent", tell().takes("cp-1", "Reset", "a"), "Reset on cp-1"},
		{"an intent for another boot", tell().intent("reset-ephemeral", "cp-1", "a", "op-1").takes("cp-1", "Reset", "b"), "no intent that is left explains it"},
		{"an intent for another machine", tell().intent("reboot", "cp-1", "a", "op-1").takes("cp-2", "Reboot", "a"), "Reboot on cp-2"},
		{"an intent for another call", tell().intent("reboot", "cp-1", "a", "op-1").takes("cp-1", "Reset", "a"), "Reset on cp-1"},
		{"an intent that came after its call", tell().takes("cp-1", "Reboot", "a").intent("reboot", "cp-1", "a", "op-1"), "no intent that is left explains it"},
		{"no lock", tell().intent("reboot", "cp-1", "a", "").takes("cp-1", "Reboot", "a"), "without the cluster lock"},
		{"a nonce used twice", func() *story {
			s := tell().intent("reboot", "cp-1", "a", "op-1").intent("reboot", "cp-1", "b", "op-1")
			s.Events[1].Details["nonce"] = s.Events[0].Details["nonce"]
			return s
		}(), "no nonce of its own"},
		{"an intent without a writer", func() *story {
			s := tell().done("reboot", "cp-1", "Reboot", "a")
			s.Events[0].Writer = statefile.Writer{}
			return s
		}(), "that nobody wrote"},
		{"a writer that another has replaced", func() *story {
			s := tell().intent("reboot", "cp-1", "a", "op-1").intent("reboot", "cp-1", "b", "op-1")
			s.Events[0].Writer.Epoch, s.Events[1].Writer.Epoch = 2, 1
			return s
		}(), "in epoch 1, after epoch 2 had begun"},
		{"a reboot while a shutdown has the lock", tell().done("shutdown", "w-1", "Shutdown", "a").done("reboot", "cp-1", "Reboot", "b"), "two disruptions at once: Reboot on cp-1"},
		{"a second control plane away while one is shut down", tell().done("shutdown", "cp-1", "Shutdown", "a").
			intent("reboot", "cp-2", "b", "op-2").takes("cp-2", "Reboot", "b"), "1 of 3 members are there, and 2 have to be"},
		{"two machines away at once", tell().done("reboot", "w-1", "Reboot", "a").answers("w-1", "a").done("reboot", "w-2", "Reboot", "b"), "two disruptions at once: Reboot on w-2"},
		{"a removal while another machine is away", tell().done("reboot", "w-1", "Reboot", "a").done("remove-member", "cp-1", "EtcdRemoveMemberByID", "b"), "two disruptions at once"},
		{"two of three control planes away", tell().done("reset-ephemeral", "cp-1", "Reset", "a").done("reboot", "cp-2", "Reboot", "b"), "1 of 3 members are there, and 2 have to be"},
		{"a reset of the whole disk", tell().done("reset", "w-1", "Reset", "a").asks("w-1", map[string]any{"reboot": true}), "wipes the whole disk"},
		{"a reset that wipes nothing", tell().done("reset", "w-1", "Reset", "a").asks("w-1", ephemeral(false)), "it names EPHEMERAL and doesn't wipe it"},
		{"one boot wiped twice", tell().restore().wipes("cp-1", "a").wipes("cp-1", "a"), "the same reset twice: Reset on cp-1"},
		{"two machines wiped by what is no restore", tell().done("reset-ephemeral", "cp-1", "Reset", "a").done("reset-ephemeral", "cp-2", "Reset", "b"), "two disruptions at once"},
		{"a reboot beside the wipe of a restore", tell().restore().wipes("cp-1", "a").step("reboot", "cp-2", "Reboot", "b"), "two disruptions at once: Reboot on cp-2"},
		{"a wipe of another restore", tell().restore().wipes("cp-1", "a").done("reset-ephemeral", "cp-2", "Reset", "b"), "two disruptions at once"},
		{"a recovery without a snapshot", tell().restore().step("upload", "cp-1", "EtcdRecover", "a").recovers("cp-1", "b"), "a recovery without a snapshot"},
		{"one boot recovered twice from one snapshot", tell().restore().step("upload", "cp-1", "EtcdRecover", "a").recovers("cp-1", "a").recovers("cp-1", "a"),
			"a second recovery in one boot: Bootstrap on cp-1"},
		{"two machines that recover", tell().restore().step("upload", "cp-1", "EtcdRecover", "a").recovers("cp-1", "a").
			step("upload", "cp-2", "EtcdRecover", "b").recovers("cp-2", "b"), "a second recovery: Bootstrap on cp-2"},
		{"one of two control planes away", func() *story {
			s := tell().done("reboot", "cp-1", "Reboot", "a")
			s.ControlPlanes = []string{"cp-1", "cp-2"}
			return s
		}(), "1 of 2 members are there, and 2 have to be"},
	} {
		t.Run(c.name, func(t *testing.T) { require.Contains(t, fmt.Sprint(Check(c.s.History)), c.want) })
	}
}

func TestAWatchTellsAtOnceAndAtTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	broken := Watch(ctx, time.Millisecond, func(context.Context) (History, error) {
		looks++
		switch {
		case looks == 1:
			return History{}, errors.New("not there yet")
		case looks < 5:
			return tell().History, nil
		}
		return tell().takes("cp-1", "Reset", "a").History, nil
	})
	require.Len(t, broken, 1)
	require.Equal(t, 5, looks)

	cancel()
	require.Empty(t, Watch(ctx, time.Hour, func(context.Context) (History, error) { return tell().History, nil }))
	require.Len(t, Watch(ctx, time.Hour, func(ctx context.Context) (History, error) { return History{}, errors.New("gone") }), 1)
}
