package talos

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	configpb "github.com/siderolabs/talos/pkg/machinery/api/resource/config"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	configres "github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"ichor.maesh.dev/schema"
)

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// maxConfigMarks bounds the config of a machine, which may lie, as schema.MaxMarks bounds a file of Git: what YAML becomes in memory is
// hundreds of times its size at worst. A config of a cluster with all its manifests in line has some ten thousands.
const maxConfigMarks = 2 * schema.MaxMarks

// UUID reads the SMBIOS UUID, in lower case. In containers there is none, which is an error.
func (s *Session) UUID(ctx context.Context) (string, error) {
	uuid, err := s.uuid(ctx)
	return uuid, s.failed("reading its UUID", err)
}

func (s *Session) uuid(ctx context.Context) (string, error) {
	found, err := get[*hardware.SystemInformation](ctx, s.state, hardware.NamespaceName, hardware.SystemInformationType, hardware.SystemInformationID)
	if err != nil {
		return "", err
	}
	uuid := strings.ToLower(strings.TrimSpace(s.scrubber.Text(found.TypedSpec().UUID)))
	if uuid == "" {
		return "", errors.New("its system information holds no UUID")
	}
	return uuid, nil
}

// BootID reads the kernel's boot ID. It needs RoleAdmin and can't be read in maintenance mode.
func (s *Session) BootID(ctx context.Context) (string, error) {
	id, err := s.bootID(ctx)
	return id, s.failed("reading its boot ID", err)
}

func (s *Session) bootID(ctx context.Context) (string, error) {
	text, err := readFile(ctx, s.machine, bootIDPath, 256)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(text)
	if id == "" || strings.ContainsFunc(id, func(r rune) bool { return r != '-' && !strings.ContainsRune("0123456789abcdefABCDEF", r) }) {
		return "", errors.New("its boot ID is not one")
	}
	return id, nil
}

// Stage reads what the machine says about itself.
func (s *Session) Stage(ctx context.Context) (Stage, error) {
	stage, err := s.stage(ctx)
	return stage, s.failed("reading its stage", err)
}

func (s *Session) stage(ctx context.Context) (Stage, error) {
	found, err := get[*runtimeres.MachineStatus](ctx, s.state, runtimeres.NamespaceName, runtimeres.MachineStatusType, runtimeres.MachineStatusID)
	if err != nil {
		return Stage{}, err
	}
	spec := found.TypedSpec()
	stage := Stage{Name: spec.Stage.String(), Ready: spec.Status.Ready}
	for _, unmet := range spec.Status.UnmetConditions {
		stage.Unmet = append(stage.Unmet, sane(s.scrubber, unmet.Name+": "+unmet.Reason))
	}
	return stage, nil
}

// Configs reads the active config and the one that the next boot uses. It needs RoleAdmin. In maintenance mode both are nil.
func (s *Session) Configs(ctx context.Context) (active, persistent config.Provider, err error) {
	if s.maintenance {
		return nil, nil, nil
	}
	active, err = s.config(ctx, configres.ActiveID)
	if err == nil {
		persistent, err = s.config(ctx, configres.PersistentID)
	}
	if err != nil {
		return nil, nil, s.failed("reading its config", err)
	}
	return active, persistent, nil
}

// knownConfig is a config that was read before over this connection: most reads find it unchanged, and parsing is dear.
type knownConfig struct {
	sum      [sha256.Size]byte
	provider config.Provider
	digest   string
}

func (s *Session) config(ctx context.Context, id string) (config.Provider, error) {
	known, err := s.readConfig(ctx, id)
	return known.provider, err
}

// readConfig reads a config and its digest; the zero value when the machine has none.
func (s *Session) readConfig(ctx context.Context, id string) (knownConfig, error) {
	reply, err := s.state.Get(ctx, &cosiv1alpha1.GetRequest{
		Namespace: configres.NamespaceName, Type: configres.MachineConfigType, Id: id, Options: &cosiv1alpha1.GetOptions{},
	})
	if status.Code(err) == codes.NotFound {
		return knownConfig{}, nil
	}
	if err != nil {
		return knownConfig{}, err
	}
	var spec configpb.MachineConfigSpec
	if err := proto.Unmarshal(reply.GetResource().GetSpec().GetProtoSpec(), &spec); err != nil || len(spec.GetYamlMarshalled()) == 0 {
		return knownConfig{}, errors.New("the node sent a resource that can't be decoded")
	}
	if schema.Marks(spec.GetYamlMarshalled()) > maxConfigMarks {
		return knownConfig{}, fmt.Errorf("it holds a config with more than %d names and values, which is not read", maxConfigMarks)
	}
	sum := sha256.Sum256(spec.GetYamlMarshalled())
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, known := range s.configs {
		if known.sum == sum {
			s.configs[id] = known
			return known, nil
		}
	}
	provider, err := configloader.NewFromBytes(spec.GetYamlMarshalled())
	if err != nil {
		// The loader's own words may quote the config.
		return knownConfig{}, errors.New("it holds a config that this program can't read; a newer Talos may have written it")
	}
	digest, err := Digest(provider)
	if err != nil {
		return knownConfig{}, err
	}
	if s.configs == nil {
		s.configs = map[string]knownConfig{}
	}
	s.configs[id] = knownConfig{sum, provider, digest}
	return s.configs[id], nil
}

// ConfigDigests reads the digests (Digest) of the active and the persistent config; empty where there is none.
func (s *Session) ConfigDigests(ctx context.Context) (active, persistent string, err error) {
	if s.maintenance {
		return "", "", nil
	}
	first, err := s.readConfig(ctx, configres.ActiveID)
	if err != nil {
		return "", "", s.failed("reading its config", err)
	}
	second, err := s.readConfig(ctx, configres.PersistentID)
	return first.digest, second.digest, s.failed("reading its config", err)
}

// Members reads the member list of the machine's own etcd, linearizable: it needs quorum, and hangs until the deadline
// without.
func (s *Session) Members(ctx context.Context) ([]EtcdMember, error) {
	members, err := s.members(ctx)
	return members, s.failed("reading etcd's members", err)
}

func (s *Session) members(ctx context.Context) ([]EtcdMember, error) {
	reply, err := s.machine.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{QueryLocal: true})
	list, err := single(reply.GetMessages(), err)
	if err != nil {
		return nil, err
	}
	members := make([]EtcdMember, 0, len(list.GetMembers()))
	for _, member := range list.GetMembers() {
		found := EtcdMember{ID: member.GetId(), Name: sane(s.scrubber, member.GetHostname()), Learner: member.GetIsLearner()}
		for _, url := range member.GetPeerUrls() {
			found.PeerURLs = append(found.PeerURLs, sane(s.scrubber, url))
		}
		members = append(members, found)
	}
	return members, nil
}

// EtcdStatus reads the state of the local member; it works without quorum, and hangs while etcd doesn't run.
func (s *Session) EtcdStatus(ctx context.Context) (EtcdObservation, error) {
	var found EtcdObservation
	err := s.etcdStatus(ctx, &found)
	return found, s.failed("reading etcd's status", err)
}

func (s *Session) etcdStatus(ctx context.Context, into *EtcdObservation) error {
	reply, err := s.machine.EtcdStatus(ctx, &emptypb.Empty{})
	one, err := single(reply.GetMessages(), err)
	if err != nil {
		return err
	}
	member := one.GetMemberStatus()
	if member.GetMemberId() == 0 {
		return errors.New("etcd's status names no member")
	}
	into.MemberID, into.Leader, into.Learner = member.GetMemberId(), member.GetLeader(), member.GetIsLearner()
	into.DBSize, into.DBSizeInUse = member.GetDbSize(), member.GetDbSizeInUse()
	into.RaftIndex, into.RaftApplied = member.GetRaftIndex(), member.GetRaftAppliedIndex()
	for _, text := range member.GetErrors() {
		into.Errors = append(into.Errors, sane(s.scrubber, text))
	}
	return nil
}

// AlarmList reads the alarms of the machine's etcd, whichever member raised them. etcd passes the question through its log, so it
// needs quorum and isn't asked without a reason.
func (s *Session) AlarmList(ctx context.Context) ([]EtcdAlarm, error) {
	alarms, err := s.alarms(ctx)
	return alarms, s.failed("reading etcd's alarms", err)
}

func (s *Session) alarms(ctx context.Context) ([]EtcdAlarm, error) {
	reply, err := s.machine.EtcdAlarmList(ctx, &emptypb.Empty{})
	one, err := single(reply.GetMessages(), err)
	if err != nil {
		return nil, err
	}
	alarms := []EtcdAlarm{}
	for _, alarm := range one.GetMemberAlarms() {
		if alarm.GetAlarm() != machineapi.EtcdMemberAlarm_NONE {
			alarms = append(alarms, EtcdAlarm{Member: alarm.GetMemberId(), Kind: alarm.GetAlarm().String()})
		}
	}
	return alarms, nil
}

// EtcdData says whether the machine has an etcd member's data. See EtcdObservation.Data for when "no" is believed.
func (s *Session) EtcdData(ctx context.Context) (Fact, error) {
	if s.maintenance {
		return Unknown, nil
	}
	stage, err := s.stage(ctx)
	if err != nil {
		return Unknown, s.failed("reading its stage", err)
	}
	data, err := s.etcdData(ctx, stage.Name)
	return data, s.failed("looking for etcd's data", err)
}

// etcdData looks before and after: a machine may leave its stage while it is being asked.
func (s *Session) etcdData(ctx context.Context, stage string) (Fact, error) {
	there, err := s.exists(ctx, "/var/lib/etcd/member")
	if err != nil || there {
		return factOf(there, err), err
	}
	if !dataStage(stage) {
		return Unknown, nil
	}
	mounted, err := s.ephemeralMounted(ctx)
	if err != nil || !mounted {
		return Unknown, err
	}
	after, err := s.stage(ctx)
	if err != nil || !dataStage(after.Name) {
		return Unknown, err
	}
	return No, nil
}

func factOf(yes bool, err error) Fact {
	switch {
	case err != nil:
		return Unknown
	case yes:
		return Yes
	}
	return No
}

// dataStage says whether "no such file" can be believed in that stage.
func dataStage(stage string) bool { return stage == "booting" || stage == "running" }

// exists asks for one path. Only "no such file or directory" is taken as absence; every other failure is an error.
func (s *Session) exists(ctx context.Context, path string) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.machine.List(ctx, &machineapi.ListRequest{Root: path, Recurse: false})
	if err == nil {
		var first *machineapi.FileInfo
		if first, err = stream.Recv(); err == nil {
			err = inMessage(first.GetMetadata())
			if err == nil && first.GetError() != "" {
				err = status.Error(codes.Unknown, first.GetError())
			}
		}
	}
	if err == nil {
		return true, nil
	}
	if status.Code(err) == codes.Unknown && strings.HasSuffix(strings.TrimSpace(status.Convert(err).Message()), "lstat "+path+": no such file or directory") {
		return false, nil
	}
	return false, err
}

// etcdVolume is the volume that holds etcd's data, and the label of its partition where it has one of its own.
const etcdVolume = "ETCD"

// etcdApart says whether etcd's data has a partition of its own, as it may from Talos 1.14 on; before, and by default, it is a folder of EPHEMERAL.
func (s *Session) etcdApart(ctx context.Context) (bool, error) {
	volume, err := get[*block.VolumeStatus](ctx, s.state, block.NamespaceName, block.VolumeStatusType, etcdVolume)
	if errors.Is(err, errMissing) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	spec := volume.TypedSpec()
	return spec.Location != "" && (spec.Type == block.VolumeTypePartition || spec.Type == block.VolumeTypeDisk), nil
}

// ephemeralMounted says whether /var is the machine's own storage by now; before that a missing file says nothing.
func (s *Session) ephemeralMounted(ctx context.Context) (bool, error) {
	volume, err := get[*block.VolumeStatus](ctx, s.state, block.NamespaceName, block.VolumeStatusType, "EPHEMERAL")
	if errors.Is(err, errMissing) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if volume.TypedSpec().Phase != block.VolumePhaseReady {
		return false, nil
	}
	mounts, err := list[*block.MountStatus](ctx, s.state, block.NamespaceName, block.MountStatusType)
	if err != nil {
		return false, err
	}
	for _, mount := range mounts {
		if mount.TypedSpec().Spec.VolumeID == "EPHEMERAL" && !mount.TypedSpec().Detached {
			return true, nil
		}
	}
	return false, nil
}
