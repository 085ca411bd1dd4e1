package recovery

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// stopping is a restore of three configured, empty control planes, now.
func stopping(phase Phase) *input {
	now := time.Date(2026, 11, 30, 3, 0, 0, 0, time.UTC)
	in := &input{Now: now, Driven: time.Minute, Timing: DefaultTiming(), Seen: map[string]Seen{}, Marker: &Marker{Phase: phase, Began: now, Target: "cp-1",
		Driver: statefile.Writer{ID: "me", Epoch: 1}}}
	for _, name := range []string{"cp-1", "cp-2", "cp-3"} {
		in.Marker.Machines = append(in.Marker.Machines, Machine{Name: name, Endpoint: "host-of-" + name, UUID: "uuid-of-" + name})
		in.Seen[name] = Seen{Observation: talos.Observation{Mode: talos.ModeConfigured, UUID: "uuid-of-" + name, Stage: "running", BootID: "boot-2", Hostname: name}}
		in.see(name, func(o *talos.Observation) { o.Etcd.Data = talos.No })
	}
	return in
}

func (in *input) see(name string, change func(o *talos.Observation)) {
	seen := in.Seen[name]
	change(&seen.Observation)
	in.Seen[name] = seen
}

// begun notes a call of this process, eleven minutes ago and in this boot, and gives it.
func (in *input) begun(kind ActionKind, machine string, attempt int, outcome statefile.Outcome, message string) *Intent {
	in.Driven = max(in.Driven, 11*time.Minute)
	in.Marker.Intents = append(in.Marker.Intents, Intent{Action: kind, Machine: machine, BootID: "boot-2", Attempt: attempt, Driver: "me", Epoch: 1,
		At: in.Now.Add(-11 * time.Minute), Outcome: outcome, Message: message})
	return &in.Marker.Intents[len(in.Marker.Intents)-1]
}

// holds gives a machine data, of a member of an etcd with these members.
func (in *input) holds(name string, id uint64, members ...talos.EtcdMember) {
	in.see(name, func(o *talos.Observation) {
		o.Etcd.Data, o.Etcd.MemberID, o.Etcd.Members, o.Etcd.ServiceHealthy, o.Etcd.Service = talos.Yes, id, members, talos.Yes, "Running"
	})
}

func (in *input) maintenance(name string) {
	in.see(name, func(o *talos.Observation) { o.Mode, o.Fingerprint, o.BootID = talos.ModeMaintenance, "boot-2", "" })
}

// stops are the situations in which a restore can't go on, and all that is said then.
var stops = []struct {
	name  string
	phase Phase
	make  func(in *input)
	says  string
}{
	{"a cancel that comes after the first wipe was begun", PhaseRecovering, func(in *input) { in.Cancel, in.Marker.Holder = true, "cp-3" },
		"it can't be cancelled any more: the wipe of cp-3 was begun, and etcd has not recovered yet, so that there is none to go back to; it must go on"},
	{"a cancel of one that wipes all", PhaseConfiguring, func(in *input) { in.Cancel, in.Marker.Wipe = true, []string{"cp-1", "cp-2"} },
		"it can't be cancelled any more: the wipe of cp-1, cp-2 was begun, and etcd has not recovered yet, so that there is none to go back to; it must go on"},
	{"a marker of another ichor", "wiping", func(*input) {}, `the marker is in the phase "wiping", which this ichor doesn't know`},
	{"an hour in which cp-2 does not answer", PhaseConfiguring, func(in *input) {
		in.Driven = 61 * time.Minute
		in.Seen["cp-2"] = Seen{Observation: talos.Observation{Problem: "no route to host"}}
	}, "after 1h1m0s it still waits (1h0m0s is its limit): cp-2 doesn't answer: no route to host"},
	{"another machine at an address", PhaseConfiguring, func(in *input) { in.see("cp-2", func(o *talos.Observation) { o.UUID = "uuid-of-a-stranger" }) },
		"the machine that answers at host-of-cp-2 has the UUID uuid-of-a-stranger, and cp-2 has uuid-of-cp-2: nothing is sent to it; correct the address or the UUID"},
	{"one machine under two names", PhaseConfiguring, func(in *input) { in.Marker.Machines[1].UUID = "UUID-of-cp-1" },
		"cp-1 (host-of-cp-1) and cp-2 (host-of-cp-2) are one machine, with the UUID uuid-of-cp-1: nothing is sent to it; leave one of the names out"},
	{"data that nobody gave up", PhaseConfiguring, func(in *input) { in.holds("cp-2", 0x2a) },
		"cp-2 runs an etcd with data (member 2a); if that may be lost, name it: --wipe cp-2"},
	{"a machine that may not be given its config", PhaseConfiguring, func(in *input) {
		in.maintenance("cp-2")
		seen := in.Seen["cp-2"]
		seen.ConfigProblem = "cp-2 shows the fingerprint 1f3a, and no spec.fingerprint is declared"
		in.Seen["cp-2"] = seen
	}, "cp-2 shows the fingerprint 1f3a, and no spec.fingerprint is declared"},
	{"a config that is refused", PhaseConfiguring, func(in *input) {
		in.maintenance("cp-2")
		in.begun(ActConfig, "cp-2", 1, statefile.OutcomeRefused, "unknown field")
	}, "cp-2 would not take its config: unknown field"},
	{"a config that is taken in vain", PhaseConfiguring, func(in *input) {
		in.maintenance("cp-2")
		in.begun(ActConfig, "cp-2", maxConfigs, statefile.OutcomeOK, "")
	}, "cp-2 took its config 3 times and is in maintenance mode still: look at its console"},
	{"a reset that is refused", PhaseConfiguring, func(in *input) {
		in.holds("cp-2", 0x2a)
		in.Marker.Wipe = []string{"cp-2"}
		in.begun(ActReset, "cp-2", 1, statefile.OutcomeRefused, "it is locked")
	}, "cp-2 would not be reset: it is locked"},
	{"resets that change nothing", PhaseConfiguring, func(in *input) {
		in.holds("cp-2", 0x2a)
		in.Marker.Wipe = []string{"cp-2"}
		in.begun(ActReset, "cp-2", maxResets, statefile.OutcomeOK, "")
	}, "cp-2 was reset 5 times and holds etcd data again or still: look at its console"},
	{"a member that never leaves", PhaseLeaving, func(in *input) {
		in.Marker.Holder = "cp-3"
		members := []talos.EtcdMember{{ID: 2, Name: "cp-2"}, {ID: 3, Name: "cp-3"}}
		in.holds("cp-2", 2, members...)
		in.holds("cp-3", 3, members...)
		in.begun(ActLeave, "cp-2", maxLeaves, statefile.OutcomeUnknown, "unhealthy cluster")
	}, "cp-2 was told to leave etcd 8 times and has not: unhealthy cluster"},
	{"recoveries that leave no trace", PhaseRecovering, func(in *input) {
		in.begun(ActRecover, "cp-1", maxRecoveries, statefile.OutcomeOK, "").Facts = map[string]string{factService: "not there"}
	}, "cp-1 was told to recover 5 times; look at its console"},
	{"recoveries that fail each time", PhaseRecovering, func(in *input) {
		in.begun(ActRecover, "cp-1", maxRecoveries, statefile.OutcomeOK, "").Facts = map[string]string{factService: "Preparing since long ago"}
		in.see("cp-1", func(o *talos.Observation) { o.Etcd.Service, o.Etcd.ServiceMessage = "Failed", "no such file" })
	}, "cp-1 was told to recover 5 times, and its etcd service says: no such file"},
	{"a target that joined the old etcd", PhaseRecovering, func(in *input) {
		in.begun(ActRecover, "cp-1", 1, statefile.OutcomeOK, "")
		in.holds("cp-1", 0x2a, talos.EtcdMember{ID: 0x2a, Name: "cp-1"}, talos.EtcdMember{ID: 0x2b, Name: "old"})
	}, "cp-1 is member 2a of an etcd that was not recovered from the snapshot (it has 2 members): another control plane runs the old one still; find it, and " +
		"power it off or wipe it"},
	{"recoveries that come to nothing", PhaseRecovering, func(in *input) {
		for range maxBroken {
			reset := in.begun(ActReset, "cp-1", 1, statefile.OutcomeOK, "")
			reset.BootID, reset.Facts = "boot-1", map[string]string{"reason": "broken"}
		}
		in.begun(ActRecover, "cp-1", 3, statefile.OutcomeOK, "")
		in.see("cp-1", func(o *talos.Observation) {
			o.Etcd.Data, o.Etcd.Service, o.Etcd.ServiceMessage = talos.Yes, "Failed", "expected sha256 [1], got [2]\n"
		})
	}, "the recovery on cp-1 came to nothing 3 times: expected sha256 [1], got [2]"},
	{"a recovered etcd that is gone", PhaseJoining, func(in *input) {
		in.Marker.Recovered = &Recovered{Member: "a1"}
		in.holds("cp-1", 0x2a, talos.EtcdMember{ID: 0x2a, Name: "cp-1"})
	}, "the recovered etcd is gone from cp-1: its member a1 is not in the list any more"},
	{"a learner that can't be removed", PhaseJoining, func(in *input) {
		joined(in, talos.EtcdMember{ID: 0x63, Name: "cp-2", Learner: true})
		in.Unjoined = map[string]time.Duration{"63": 13 * time.Minute}
		in.begun(ActRemoveMember, "cp-1", maxRemovals, statefile.OutcomeRefused, "").Facts = map[string]string{factMember: "63"}
	}, "member 63 did not come to be one within 12m0s, and could not be removed 5 times: the others can't join beside it; look at cp-2"},
	{"a reboot that does not come", PhaseJoining, func(in *input) {
		joined(in)
		in.see("cp-2", func(o *talos.Observation) { o.Etcd.Service = "Finished" })
		in.begun(ActReboot, "cp-2", 1, statefile.OutcomeOK, "")
	}, "cp-2 was told to reboot and has not: power-cycle it"},
	{"reboots that change nothing", PhaseJoining, func(in *input) {
		joined(in)
		in.see("cp-2", func(o *talos.Observation) { o.Etcd.Service, o.Etcd.ServiceMessage = "Failed", "failed to join" })
		in.begun(ActReboot, "cp-2", maxReboots, statefile.OutcomeOK, "").BootID = "boot-1"
	}, "cp-2 was rebooted 3 times and its etcd still gives up joining: failed to join"},
}

// joined gives the target the recovered etcd, beside these members.
func joined(in *input, others ...talos.EtcdMember) {
	in.Marker.Recovered = &Recovered{Member: "a1", Verified: "42 keys"}
	in.holds("cp-1", 0xa1, append([]talos.EtcdMember{{ID: 0xa1, Name: "cp-1"}}, others...)...)
}

// TestEverySentenceWithWhichARestoreStopsNamesTheMachineAndTheNumber holds all of them, word by word; that none is missing is read off the source.
func TestEverySentenceWithWhichARestoreStopsNamesTheMachineAndTheNumber(t *testing.T) {
	sentences, said := stopSentences(t), map[string]bool{}
	require.GreaterOrEqual(t, len(sentences), 18)
	for _, one := range stops {
		t.Run(one.name, func(t *testing.T) {
			in := stopping(one.phase)
			one.make(in)
			step := decide(*in)
			require.Equal(t, nextStep{Stop: one.says}, step)
			longest := ""
			for format, pattern := range sentences {
				if pattern.MatchString(step.Stop) && len(format) > len(longest) {
					longest = format
				}
			}
			said[longest] = true
		})
	}
	for format := range sentences {
		require.True(t, said[format], "no situation of this test ends with stop(%q)", format)
	}
}

// stopSentences gives the format of each call of stop in this package, and what it makes.
func stopSentences(t *testing.T) map[string]*regexp.Regexp {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	all, verb := map[string]*regexp.Regexp{}, regexp.MustCompile("%[a-z]")
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, is := n.(*ast.CallExpr)
			if !is || len(call.Args) == 0 {
				return true
			}
			if function, is := call.Fun.(*ast.Ident); is && function.Name == "stop" {
				format := literal(t, call.Args[0])
				parts := verb.Split(format, -1)
				for n := range parts {
					parts[n] = regexp.QuoteMeta(parts[n])
				}
				all[format] = regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
			}
			return true
		})
	}
	return all
}

// literal is a string, or strings that are added.
func literal(t *testing.T, of ast.Expr) string {
	t.Helper()
	switch one := of.(type) {
	case *ast.BinaryExpr:
		return literal(t, one.X) + literal(t, one.Y)
	case *ast.BasicLit:
		text, err := strconv.Unquote(one.Value)
		require.NoError(t, err)
		return text
	}
	require.Fail(t, "a sentence that is put together elsewhere can't be checked")
	return ""
}
