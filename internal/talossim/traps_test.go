package talossim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"ichor.maesh.dev/internal/talossim"
)

func TestALearnerThatLosesItsPowerStaysALearner(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.51", ControlPlanes: 2})
	nodes := b.farm.Nodes()
	b.configure(nodes[0])
	b.bootstrap(nodes[0])
	b.ready(nodes[0])
	nodes[1].Inject(talossim.Fault{Method: talossim.BeforePromotion, Kind: talossim.Hang, Times: 1})
	b.configure(nodes[1])
	var joined *machineapi.EtcdMember
	b.eventually("a started learner", func(ctx context.Context) error {
		members, err := b.members(ctx, nodes[0])
		for _, m := range members {
			if m.GetIsLearner() && m.GetHostname() != "" { // started: without data it would join again by itself once removed
				joined = m
				return nil
			}
		}
		return errors.Join(err, errors.New("none"))
	})
	require.NoError(t, nodes[1].PowerCycle())
	b.eventually("etcd runs again, or tries to join again", func(ctx context.Context) error {
		svc, err := b.service(ctx, nodes[1], "etcd")
		if err != nil {
			return err
		}
		if s := svc.GetState(); s != "Running" && s != "Preparing" {
			return fmt.Errorf("etcd is %s", s)
		}
		return nil
	})
	before := nodes[1].Boots()
	// More than two promotion rounds of fifteen seconds.
	require.False(t, poll(2*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		members, err := b.members(ctx, nodes[0])
		return err == nil && (len(members) != 2 || !members[0].GetIsLearner() && !members[1].GetIsLearner())
	}), "nobody promotes it any more, and nobody removes it")
	require.Equal(t, before, nodes[1].Boots())

	b.remove(nodes[0], joined.GetId())
	boot := b.currentBoot(nodes[1])
	b.reset(nodes[1], wipe("EPHEMERAL"))
	b.rebooted(nodes[1], boot)
	b.voters(nodes[0], 2)
}

func TestAPartitionedMemberLosesItsQuorumAndFindsItAgain(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.61", ControlPlanes: 3})
	nodes := b.farm.Nodes()
	b.configure(nodes...)
	b.bootstrap(nodes[0])
	b.voters(nodes[0], 3)
	b.ready(nodes...)

	nodes[0].Partition()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := b.admin(nodes[0]).Version(ctx)
	require.Equal(t, codes.DeadlineExceeded, client.StatusCode(err), "a cut cable refuses nothing")
	b.eventually("the others go on", func(ctx context.Context) error {
		resp, err := b.admin(nodes[1]).EtcdStatus(ctx)
		if err != nil {
			return err
		}
		members, err := b.members(ctx, nodes[1])
		if err != nil {
			return err
		}
		for _, m := range members {
			if m.GetId() == resp.GetMessages()[0].GetMemberStatus().GetLeader() && bytes.Contains([]byte(m.GetPeerUrls()[0]), []byte(nodes[0].Address()+":")) {
				return errors.New("the lost member still leads")
			}
		}
		return nil
	})
	nodes[0].Heal()
	b.ready(nodes...)
	b.voters(nodes[0], 3)

	t.Run("two of three without power leave the third without a quorum, and its calls without an answer", func(t *testing.T) {
		require.NoError(t, nodes[1].PowerOff())
		require.NoError(t, nodes[2].PowerOff())
		require.False(t, nodes[1].Powered())
		b.eventually("no leader", func(ctx context.Context) error {
			resp, err := b.admin(nodes[0]).EtcdStatus(ctx)
			if err != nil {
				return err
			}
			if resp.GetMessages()[0].GetMemberStatus().GetLeader() != 0 {
				return errors.New("still a leader")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := b.members(ctx, nodes[0])
		require.Error(t, err)
		nodes[1].PowerOn()
		b.ready(nodes[0], nodes[1])
		nodes[2].PowerOn()
		b.ready(nodes...)
	})
}

func TestNobodyToJoin(t *testing.T) {
	// Half an hour becomes five seconds, seventy minutes become twelve.
	b := newBench(t, talossim.Options{First: "127.0.20.71", ControlPlanes: 1, TimeScale: 360, Impatient: true})
	n := b.farm.Nodes()[0]
	b.configure(n)
	etcdFailed := func(ctx context.Context) error {
		svc, err := b.service(ctx, n, "etcd")
		if err != nil {
			return err
		}
		events := svc.GetEvents().GetEvents()
		if text := events[len(events)-1].GetMsg(); svc.GetState() != "Failed" ||
			!bytes.HasPrefix([]byte(text), []byte("Failed to run pre stage: failed to build initial etcd cluster: failed to build cluster arguments: ")) {
			return fmt.Errorf("etcd is %s: %s", svc.GetState(), text)
		}
		return nil
	}
	b.eventually("the join ends after half an hour", etcdFailed)
	boots := n.Boots()
	require.True(t, poll(patience, func() bool { return n.Boots() > boots }), "the boot ends after seventy minutes and the machine starts over")
	b.eventually("the join ends again, and can still be bootstrapped", func(ctx context.Context) error {
		if err := etcdFailed(ctx); err != nil {
			return err
		}
		return b.admin(n).Bootstrap(ctx, &machineapi.BootstrapRequest{})
	})
	b.voters(n, 1)
}

func TestAConfigTakesAMomentToReachTheDisk(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.81", ControlPlanes: 1})
	n := b.farm.Nodes()[0]
	b.configure(n)
	b.bootstrap(n)
	b.ready(n)
	c := b.admin(n)
	read := func(id string) string {
		var text string
		b.eventually("the "+id+" config", func(ctx context.Context) error {
			r, err := safe.StateGetByID[*configres.MachineConfig](ctx, b.admin(n).COSI, id)
			if err != nil {
				return err
			}
			data, err := r.Provider().Bytes()
			text = string(data)
			return err
		})
		return text
	}
	_, err := safe.StateGetByID[*configres.MachineConfig](t.Context(), b.admin(n).COSI, configres.PersistentID)
	require.ErrorContains(t, err, "doesn't exist", "a machine that booted from its disk shows no stored config")
	before := read(configres.ActiveID)
	changed := append(b.config(talossim.ControlPlane), []byte("# a remark of the operator's\n")...)
	_, err = c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: changed, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
	require.NoError(t, err)
	require.Equal(t, string(changed), read(configres.PersistentID), "verbatim")
	// Each config is waited for: what is stored already can't be told from what is on its way there.
	b.eventually("STATE holds the changed config", func(context.Context) error {
		return b.onDisk(n, string(changed))
	})
	_, err = c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: []byte(before), Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
	require.NoError(t, err)
	b.eventually("STATE holds the former config", func(context.Context) error {
		return b.onDisk(n, before)
	})

	n.Inject(talossim.Fault{Method: talossim.BeforeConfigWrite, Kind: talossim.Hang, Times: 1})
	_, err = c.ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{Data: changed, Mode: machineapi.ApplyConfigurationRequest_NO_REBOOT})
	require.NoError(t, err)
	boot := n.BootID()
	require.NoError(t, n.PowerCycle())
	b.rebooted(n, boot)
	require.Equal(t, before, read(configres.ActiveID), "the power went before it was written")

	b.ready(n)
	// The active config is watched: a slow host could look too late to see the tried one.
	actives := make(chan state.Event)
	require.NoError(t, b.admin(n).COSI.Watch(t.Context(), resource.NewMetadata(configres.NamespaceName, configres.MachineConfigType, configres.ActiveID, resource.VersionUndefined), actives))
	active := func() string {
		event := <-actives
		require.NoError(t, event.Error)
		data, err := event.Resource.(*configres.MachineConfig).Provider().Bytes()
		require.NoError(t, err)
		return string(data)
	}
	require.Equal(t, before, active())
	_, err = b.admin(n).ApplyConfiguration(t.Context(), &machineapi.ApplyConfigurationRequest{
		Data: changed, Mode: machineapi.ApplyConfigurationRequest_TRY, TryModeTimeout: durationpb.New(100 * time.Second),
	})
	require.NoError(t, err)
	require.Equal(t, string(changed), active())
	require.Equal(t, before, active(), "the tried config goes")
	_, err = safe.StateGetByID[*configres.MachineConfig](t.Context(), b.admin(n).COSI, configres.PersistentID)
	require.ErrorContains(t, err, "doesn't exist", "a try stores nothing")
}

func TestFaultsOnCue(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.91", ControlPlanes: 1})
	n := b.farm.Nodes()[0]
	b.configure(n)
	b.eventually("the booted machine", func(ctx context.Context) error {
		svc, err := b.service(ctx, n, "etcd")
		if err == nil && svc.GetState() != "Preparing" {
			err = errors.New(svc.GetState())
		}
		return err
	})
	bootstrap := func(ctx context.Context) error { return b.admin(n).Bootstrap(ctx, &machineapi.BootstrapRequest{}) }
	for _, c := range []struct {
		name  string
		fault talossim.Fault
		code  codes.Code
	}{
		{"a call that hangs has no effect", talossim.Fault{Kind: talossim.Hang}, codes.Canceled},
		{"a call that fails has no effect", talossim.Fault{Kind: talossim.Fail, Code: codes.Aborted, Text: "no"}, codes.Aborted},
		{"a dropped effect is answered OK", talossim.Fault{Kind: talossim.DropEffect}, codes.OK},
		{"a cut before the call has no effect", talossim.Fault{Kind: talossim.CutBefore}, codes.Unavailable},
		{"a panic is Internal", talossim.Fault{Kind: talossim.Panic}, codes.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			reached := make(chan struct{}, 1)
			c.fault.Method, c.fault.Times, c.fault.Reached = "Bootstrap", 1, reached
			n.Inject(c.fault)
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			answered := make(chan error, 1)
			go func() { answered <- bootstrap(ctx) }()
			<-reached
			if c.fault.Kind == talossim.Hang {
				giveUp()
			}
			require.Equal(t, c.code, client.StatusCode(<-answered))
			require.Empty(t, n.Accepted("Bootstrap"))
			require.NoError(t, b.noData(t.Context(), n))
		})
	}
	t.Run("a cut after the call hides an effect", func(t *testing.T) {
		n.Inject(talossim.Fault{Method: "Bootstrap", Kind: talossim.CutAfter, Times: 1})
		require.Equal(t, codes.Unavailable, client.StatusCode(bootstrap(t.Context())))
		require.Len(t, n.Accepted("Bootstrap"), 1)
		b.voters(n, 1)
	})
	t.Run("an upload is cut short or damaged, and answered OK", func(t *testing.T) {
		upload := bytes.Repeat([]byte("snapshot"), 1000)
		file := filepath.Join(n.Dir(), "EPHEMERAL", "lib", "etcd.snapshot")
		for kind, judge := range map[talossim.FaultKind]func(arrived []byte){
			talossim.EndEarly: func(arrived []byte) {
				require.Less(t, len(arrived), len(upload))
				require.True(t, bytes.HasPrefix(upload, arrived))
			},
			talossim.Damage: func(arrived []byte) {
				require.Len(t, arrived, len(upload))
				require.NotEqual(t, upload, arrived)
			},
		} {
			n.Inject(talossim.Fault{Method: "EtcdRecover", Kind: kind, Times: 1})
			_, err := b.admin(n).EtcdRecover(t.Context(), bytes.NewReader(upload))
			require.NoError(t, err)
			arrived, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NotEmpty(t, arrived)
			judge(arrived)
		}
	})
	t.Run("a machine that is told to reset runs its etcd until it stops, and one whose wipe fails comes back as it was", func(t *testing.T) {
		before, boot := b.voters(n, 1)[0].GetId(), b.currentBoot(n)
		reached := make(chan struct{}, 1)
		n.Inject(talossim.Fault{Method: talossim.BeforeWipe, Kind: talossim.Fail, Times: 1, Text: "the partition is busy"})
		goOn := n.Inject(talossim.Fault{Method: talossim.BeforeStopping, Kind: talossim.Hang, Times: 1, Reached: reached})
		b.reset(n, wipe("EPHEMERAL"))
		<-reached
		require.Equal(t, before, b.voters(n, 1)[0].GetId())
		require.Equal(t, boot, b.currentBoot(n))
		goOn()
		b.rebooted(n, boot)
		require.Equal(t, before, b.voters(n, 1)[0].GetId())
	})
}

func TestAContainerKeepsItsHostsBootAndRefusesToReboot(t *testing.T) {
	b := newBench(t, talossim.Options{First: "127.0.20.95", ControlPlanes: 1, Platform: talossim.Container})
	n := b.farm.Nodes()[0]
	b.configure(n)
	b.bootstrap(n)
	b.ready(n)
	require.Equal(t, 1, n.Boots(), "no installation")
	require.Equal(t, codes.FailedPrecondition, client.StatusCode(b.admin(n).Reboot(t.Context())))
	_, err := b.admin(n).ResetGenericWithResponse(t.Context(), wipe("EPHEMERAL"))
	require.ErrorContains(t, err, `failed to reset: volume "EPHEMERAL" is not located`)
	boot := b.currentBoot(n)
	_, err = b.admin(n).ResetGenericWithResponse(t.Context(), &machineapi.ResetRequest{})
	require.NoError(t, err)
	require.True(t, poll(patience, func() bool { return !n.Powered() }), "the container stops")
	n.PowerOn()
	require.Equal(t, boot, b.currentBoot(n))
	b.voters(n, 1)
}
