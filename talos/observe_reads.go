package talos

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// maintenance reads what a machine in maintenance mode shows to anyone.
func (l *look) maintenance(ctx context.Context) {
	l.observation.Mode = ModeMaintenance
	l.observation.Fingerprint = l.session.fingerprint
	l.common(ctx)
	l.read(ctx, "reading its disks", l.client.limits.read, l.session.readDisks)
	l.wg.Wait()
}

// configured reads what a configured machine shows.
func (l *look) configured(ctx context.Context) {
	l.observation.Mode = ModeConfigured
	l.common(ctx)
	l.read(ctx, "reading its storage", l.client.limits.read, l.session.readEphemeral)
	l.read(ctx, "reading discovery", l.client.limits.read, l.session.readDiscovery)
	l.read(ctx, "reading its Node", l.client.limits.read, l.session.readNode)
	if l.target.ControlPlane {
		l.etcd(ctx)
	} else {
		l.read(ctx, "reading its services", l.client.limits.read, l.session.readServices)
	}
	l.admin(ctx)
	l.wg.Wait()
}

// common reads what both modes show.
func (l *look) common(ctx context.Context) {
	l.read(ctx, "reading its UUID", l.client.limits.read, func(ctx context.Context) (func(*Observation), error) {
		uuid, err := l.session.uuid(ctx)
		return func(o *Observation) { o.UUID = uuid }, err
	})
	l.read(ctx, "reading its version", l.client.limits.read, l.session.readVersion)
	l.read(ctx, "reading its hostname", l.client.limits.read, l.session.readHostname)
	l.read(ctx, "reading its addresses", l.client.limits.read, l.session.readAddresses)
	l.read(ctx, "reading its type", l.client.limits.read, l.session.readType)
}

// admin reads what Talos shows to os:admin only, over a connection of its own.
func (l *look) admin(ctx context.Context) {
	l.wg.Go(func() {
		defer l.client.scrubber.Recover(l.unhandled("reading its stage"))
		session, err := l.client.alive(ctx, l.target, RoleAdmin, false)
		if err != nil {
			l.problem(err)
			return
		}
		var inner look
		inner.client, inner.target, inner.session, inner.observation = l.client, l.target, session, &Observation{}
		inner.read(ctx, "reading its boot ID", l.client.limits.read, func(ctx context.Context) (func(*Observation), error) {
			id, err := session.bootID(ctx)
			return func(o *Observation) { o.BootID = id }, err
		})
		inner.read(ctx, "reading its config", l.client.limits.read, session.readActive)
		inner.read(ctx, "reading its stored config", l.client.limits.read, session.readPersistent)
		inner.wg.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.problems, l.broken = append(l.problems, inner.problems...), l.broken || inner.broken
		l.observation.BootID = inner.observation.BootID
		l.observation.Active, l.observation.ActiveDigest = inner.observation.Active, inner.observation.ActiveDigest
		l.observation.Persistent, l.observation.PersistentDigest = inner.observation.Persistent, inner.observation.PersistentDigest
	})
}

// etcd reads the etcd side of a control plane. Talos's etcd calls hang until their deadline while etcd doesn't run, so they are
// made only where the service does, or where that is not known.
func (l *look) etcd(ctx context.Context) {
	l.read(ctx, "looking for etcd's data", l.client.limits.read, l.session.readData)
	l.wg.Go(func() {
		var first look
		first.client, first.target, first.session, first.observation = l.client, l.target, l.session, &Observation{}
		first.read(ctx, "reading its services", l.client.limits.read, l.session.readServices)
		first.wg.Wait()
		l.mu.Lock()
		l.problems, l.broken = append(l.problems, first.problems...), l.broken || first.broken
		seen := first.observation.Etcd
		l.observation.Etcd.Service, l.observation.Etcd.ServiceMessage = seen.Service, seen.ServiceMessage
		l.observation.Etcd.ServiceHealthy, l.observation.Services = seen.ServiceHealthy, first.observation.Services
		known := len(first.problems) == 0
		if known && seen.Service != "Running" {
			l.observation.Etcd.MembersProblem = "its etcd doesn't run"
		}
		l.mu.Unlock()
		if !known || seen.Service == "Running" {
			l.read(ctx, "reading etcd's status", l.client.limits.etcd, l.session.readEtcdStatus)
			l.members(ctx)
		}
	})
}

// members reads the member list; that etcd gives none is a fact about etcd and not a problem of the observation.
func (l *look) members(ctx context.Context) {
	l.read(ctx, "reading etcd's members", l.client.limits.etcd, func(ctx context.Context) (func(*Observation), error) {
		members, err := l.session.members(ctx)
		return func(o *Observation) {
			if err != nil {
				o.Etcd.MembersProblem = l.session.failed("reading etcd's members", err).Error()
				return
			}
			o.Etcd.Members = members
		}, nil
	})
}

func (s *Session) readActive(ctx context.Context) (func(*Observation), error) {
	known, err := s.readConfig(ctx, configres.ActiveID)
	return func(o *Observation) { o.Active, o.ActiveDigest = known.provider, known.digest }, err
}

func (s *Session) readPersistent(ctx context.Context) (func(*Observation), error) {
	known, err := s.readConfig(ctx, configres.PersistentID)
	return func(o *Observation) { o.Persistent, o.PersistentDigest = known.provider, known.digest }, err
}

func (s *Session) readVersion(ctx context.Context) (func(*Observation), error) {
	reply, err := s.machine.Version(ctx, &emptypb.Empty{})
	one, err := single(reply.GetMessages(), err)
	if err != nil {
		return nil, err
	}
	tag := sane(s.scrubber, one.GetVersion().GetTag())
	return func(o *Observation) { o.TalosVersion = tag }, nil
}

func (s *Session) readHostname(ctx context.Context) (func(*Observation), error) {
	found, err := get[*network.HostnameStatus](ctx, s.state, network.NamespaceName, network.HostnameStatusType, network.HostnameID)
	if errors.Is(err, errMissing) {
		return func(*Observation) {}, nil
	}
	if err != nil {
		return nil, err
	}
	name := sane(s.scrubber, found.TypedSpec().Hostname)
	return func(o *Observation) { o.Hostname = name }, nil
}

func (s *Session) readAddresses(ctx context.Context) (func(*Observation), error) {
	found, err := get[*network.NodeAddress](ctx, s.state, network.NamespaceName, network.NodeAddressType, network.NodeAddressCurrentID)
	if errors.Is(err, errMissing) {
		return func(*Observation) {}, nil
	}
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, prefix := range found.TypedSpec().Addresses {
		addresses = append(addresses, prefix.Addr().String())
	}
	return func(o *Observation) { o.Addresses = addresses }, nil
}

func (s *Session) readType(ctx context.Context) (func(*Observation), error) {
	found, err := get[*configres.MachineType](ctx, s.state, configres.NamespaceName, configres.MachineTypeType, configres.MachineTypeID)
	if errors.Is(err, errMissing) {
		return func(*Observation) {}, nil
	}
	if err != nil {
		return nil, err
	}
	kind := found.MachineType().String()
	if found.MachineType() == machine.TypeUnknown {
		kind = ""
	}
	return func(o *Observation) { o.MachineType = kind }, nil
}

func (s *Session) readServices(ctx context.Context) (func(*Observation), error) {
	services, err := s.services(ctx)
	if err != nil {
		return nil, err
	}
	return func(o *Observation) {
		o.Services = services
		etcd, _ := ServiceNamed(services, "etcd")
		o.Etcd.Service, o.Etcd.ServiceMessage, o.Etcd.ServiceHealthy = etcd.State, etcd.Message, etcd.Healthy
	}, nil
}

// Services reads the state of Talos's own services.
func (s *Session) Services(ctx context.Context) ([]Service, error) {
	services, err := s.services(ctx)
	return services, s.failed("reading its services", err)
}

func (s *Session) services(ctx context.Context) ([]Service, error) {
	reply, err := s.machine.ServiceList(ctx, &emptypb.Empty{})
	one, err := single(reply.GetMessages(), err)
	if err != nil {
		return nil, err
	}
	var services []Service
	for _, info := range one.GetServices() {
		service := Service{ID: sane(s.scrubber, info.GetId()), State: sane(s.scrubber, info.GetState())}
		if health := info.GetHealth(); health != nil && !health.GetUnknown() {
			service.Healthy = factOf(health.GetHealthy(), nil)
		}
		if events := info.GetEvents().GetEvents(); len(events) > 0 {
			last := events[len(events)-1]
			service.Message = sane(s.scrubber, last.GetMsg())
			service.Changed = last.GetTs().AsTime()
			service.Started = startedAt(events)
		}
		services = append(services, service)
	}
	return services, nil
}

// startedAt is the time of the event with which a service that runs began to: later ones in that state tell of its health.
func startedAt(events []*machineapi.ServiceEvent) time.Time {
	const running = "Running"
	if events[len(events)-1].GetState() != running {
		return time.Time{}
	}
	for n := len(events) - 1; n > 0; n-- {
		if events[n-1].GetState() != running {
			return events[n].GetTs().AsTime()
		}
	}
	return time.Time{}
}

func (s *Session) readEphemeral(ctx context.Context) (func(*Observation), error) {
	mounted, err := s.ephemeralMounted(ctx)
	return func(o *Observation) { o.EphemeralMounted = factOf(mounted, nil) }, err
}

func (s *Session) readData(ctx context.Context) (func(*Observation), error) {
	stage, err := s.stage(ctx)
	if err != nil {
		return nil, err
	}
	data, err := s.etcdData(ctx, stage.Name)
	return func(o *Observation) { o.Etcd.Data = data }, err
}

func (s *Session) readEtcdStatus(ctx context.Context) (func(*Observation), error) {
	var found EtcdObservation
	err := s.etcdStatus(ctx, &found)
	if err != nil {
		// An etcd that does not answer is no problem of the observation: its service says why.
		return func(*Observation) {}, nil
	}
	if len(found.Errors) > 0 {
		// That etcd gives no alarms is a fact about etcd: then what its errors mean is not known.
		found.Alarms, _ = s.alarms(ctx)
	}
	return func(o *Observation) {
		o.Etcd.MemberID, o.Etcd.Leader, o.Etcd.Learner, o.Etcd.Errors = found.MemberID, found.Leader, found.Learner, found.Errors
		o.Etcd.DBSize, o.Etcd.DBSizeInUse, o.Etcd.Alarms = found.DBSize, found.DBSizeInUse, found.Alarms
		o.Etcd.RaftIndex, o.Etcd.RaftApplied = found.RaftIndex, found.RaftApplied
	}, nil
}

func (s *Session) readDiscovery(ctx context.Context) (func(*Observation), error) {
	members, err := list[*cluster.Member](ctx, s.state, cluster.NamespaceName, cluster.MemberType)
	if err != nil {
		return nil, err
	}
	found := []DiscoveredMember{}
	for _, member := range members {
		spec := member.TypedSpec()
		one := DiscoveredMember{Name: sane(s.scrubber, spec.Hostname), MachineType: spec.MachineType.String()}
		for _, address := range spec.Addresses {
			one.Addresses = append(one.Addresses, address.String())
		}
		found = append(found, one)
	}
	return func(o *Observation) { o.Discovery = found }, nil
}

func (s *Session) readNode(ctx context.Context) (func(*Observation), error) {
	statuses, err := list[*k8s.NodeStatus](ctx, s.state, k8s.NamespaceName, k8s.NodeStatusType)
	if err != nil {
		return nil, err
	}
	if len(statuses) != 1 {
		return func(*Observation) {}, nil
	}
	spec := statuses[0].TypedSpec()
	return func(o *Observation) {
		o.NodeReady, o.Unschedulable = factOf(spec.NodeReady, nil), factOf(spec.Unschedulable, nil)
	}, nil
}

// readDisks reads the disks, and what was discovered on each.
func (s *Session) readDisks(ctx context.Context) (func(*Observation), error) {
	disks, err := list[*block.Disk](ctx, s.state, block.NamespaceName, block.DiskType)
	if err != nil {
		return nil, err
	}
	volumes, err := list[*block.DiscoveredVolume](ctx, s.state, block.NamespaceName, block.DiscoveredVolumeType)
	if err != nil {
		return nil, err
	}
	found := make([]Disk, 0, len(disks))
	for _, disk := range disks {
		found = append(found, s.disk(disk, volumes))
	}
	slices.SortFunc(found, func(a, b Disk) int { return strings.Compare(a.Path, b.Path) })
	return func(o *Observation) { o.Disks = found }, nil
}

func (s *Session) disk(disk *block.Disk, volumes []*block.DiscoveredVolume) Disk {
	spec := disk.TypedSpec()
	clean := func(text string) string { return sane(s.scrubber, text) }
	found := Disk{
		Path: clean(spec.DevPath), Size: spec.Size, Model: clean(spec.Model), Serial: clean(spec.Serial), WWID: clean(spec.WWID), ReadOnly: spec.Readonly,
		Modalias: clean(spec.Modalias), UUID: clean(spec.UUID), BusPath: clean(spec.BusPath), Transport: clean(spec.Transport),
		Rotational: spec.Rotational, CDROM: spec.CDROM,
	}
	for _, link := range spec.Symlinks {
		found.Symlinks = append(found.Symlinks, clean(link))
	}
	for _, volume := range volumes {
		on := volume.TypedSpec()
		switch {
		case on.ParentDevPath == spec.DevPath || (on.Parent != "" && on.Parent == disk.Metadata().ID()):
			found.Contents = append(found.Contents, clean(strings.Join(strings.Fields("partition "+on.PartitionLabel+" "+on.Name), " ")))
		case on.DevPath == spec.DevPath && on.Name != "":
			found.Contents = append(found.Contents, clean(on.Name))
		}
	}
	slices.Sort(found.Contents)
	return found
}
