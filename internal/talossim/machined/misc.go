package machined

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	runtimeres "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"sigs.k8s.io/yaml"
)

// Version names the platform from the start; features are known only once the machine is configured.
func (a *api) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	v := &machine.Version{
		Version: &machine.VersionInfo{
			Tag: Version, Sha: "simulated", Built: "", GoVersion: runtime.Version(), Os: "linux", Arch: runtime.GOARCH,
		},
		Platform: &machine.PlatformInfo{Name: a.m.platform(), Mode: a.m.platform()},
	}
	if a.m.conf.configured() {
		v.Features = &machine.FeaturesInfo{Rbac: true}
	}
	return &machine.VersionResponse{Messages: []*machine.Version{v}}, nil
}

func (a *api) Hostname(context.Context, *emptypb.Empty) (*machine.HostnameResponse, error) {
	return &machine.HostnameResponse{Messages: []*machine.Hostname{{Hostname: a.m.hostname()}}}, nil
}

// SystemStat tells the boot's time, a reader's substitute for the boot ID.
func (a *api) SystemStat(context.Context, *emptypb.Empty) (*machine.SystemStatResponse, error) {
	return &machine.SystemStatResponse{Messages: []*machine.SystemStat{{BootTime: uint64(a.m.bootTime.Unix())}}}, nil
}

// Kubeconfig is a one-file archive with a certificate of a year, made from the config alone.
func (a *api) Kubeconfig(_ *emptypb.Empty, srv grpc.ServerStreamingServer[common.Data]) error {
	if err := a.m.controlPlaneOnly("kubeconfig"); err != nil {
		return err
	}
	kubeconfig, err := a.m.kubeconfig()
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "kubeconfig", Size: int64(len(kubeconfig)), Mode: 0o600, ModTime: time.Now()}); err != nil {
		return err
	}
	if _, err := tw.Write(kubeconfig); err != nil {
		return err
	}
	if err := errors.Join(tw.Close(), zw.Close()); err != nil {
		return err
	}
	return srv.Send(&common.Data{Bytes: buf.Bytes()})
}

func (m *Machine) kubeconfig() ([]byte, error) {
	c := m.conf.current().Cluster()
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(c.IssuingCA())
	if err != nil {
		return nil, fmt.Errorf("error getting Kubernetes CA: %w", err)
	}
	pair, err := x509.NewKeyPair(ca, x509.CommonName(c.AdminKubeconfig().CommonName()), x509.Organization(c.AdminKubeconfig().CertOrganization()),
		x509.NotAfter(time.Now().Add(c.AdminKubeconfig().CertLifetime())))
	if err != nil {
		return nil, fmt.Errorf("error generating admin certificate: %w", err)
	}
	admin := x509.NewCertificateAndKeyFromKeyPair(pair)
	user := "admin@" + c.Name()
	return yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": user,
		"clusters": []any{map[string]any{"name": c.Name(), "cluster": map[string]any{"server": c.Endpoint().String(), "certificate-authority-data": c.IssuingCA().Crt}}},
		"users":    []any{map[string]any{"name": user, "user": map[string]any{"client-certificate-data": admin.Crt, "client-key-data": admin.Key}}},
		"contexts": []any{map[string]any{"name": user, "context": map[string]any{"cluster": c.Name(), "user": user, "namespace": "default"}}},
	})
}

// GenerateClientConfiguration mints a talosconfig.
func (a *api) GenerateClientConfiguration(_ context.Context, in *machine.GenerateClientConfigurationRequest) (*machine.GenerateClientConfigurationResponse, error) {
	if err := a.m.controlPlaneOnly("generate client configuration"); err != nil {
		return nil, err
	}
	ttl := in.GetCrtTtl().AsDuration()
	if ttl <= 0 {
		return nil, status.Error(codes.InvalidArgument, "crt_ttl should be positive")
	}
	roles, _ := role.Parse(in.GetRoles())
	p := a.m.conf.current()
	ca := p.Machine().Security().IssuingCA()
	cert, err := secrets.NewAdminCertificateAndKey(time.Now(), ca, roles, ttl)
	if err != nil {
		return nil, fmt.Errorf("minting a client certificate: %w", err)
	}
	name := strings.Join(roles.Strings(), "-") + "@" + p.Cluster().Name()
	cfg := clientconfig.NewConfig(name, []string{a.m.cfg.Address.String()}, ca.Crt, cert)
	data, err := cfg.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encoding the client configuration: %w", err)
	}
	return &machine.GenerateClientConfigurationResponse{Messages: []*machine.GenerateClientConfiguration{{
		Ca: ca.Crt, Crt: cert.Crt, Key: cert.Key, Talosconfig: data,
	}}}, nil
}

// Containers knows the two drivers' rule about namespaces, and of all containers the API server's.
func (a *api) Containers(_ context.Context, in *machine.ContainersRequest) (*machine.ContainersResponse, error) {
	switch {
	case in.GetNamespace() == "":
		return nil, status.Error(codes.InvalidArgument, "namespace can't be empty")
	case in.GetDriver() == common.ContainerDriver_CRI && in.GetNamespace() != constants.K8sContainerdNamespace:
		return nil, errors.New("CRI inspector is supported only for K8s namespace")
	}
	list := &machine.Container{}
	if in.GetDriver() == common.ContainerDriver_CRI && a.m.kube.containerRuns() {
		pod := "kube-system/" + k8s.APIServerID + "-" + a.m.hostname()
		image, _ := a.m.component(k8s.APIServerID)
		list.Containers = []*machine.ContainerInfo{
			{Namespace: in.GetNamespace(), Id: pod, Uid: pod, PodId: pod, Name: pod, Status: "SANDBOX_READY"},
			{Namespace: in.GetNamespace(), Id: pod + ":" + k8s.APIServerID, PodId: pod, Name: k8s.APIServerID, Image: image, Status: "CONTAINER_RUNNING"},
		}
	}
	return &machine.ContainersResponse{Messages: []*machine.Container{list}}, nil
}

// Logs of a service are its events, one a line.
func (a *api) Logs(in *machine.LogsRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	svc := a.m.services.get(in.GetId())
	if svc == nil {
		return fmt.Errorf("log %q was not registered", in.GetId())
	}
	var text strings.Builder
	for _, e := range svc.info().GetEvents().GetEvents() {
		fmt.Fprintf(&text, "%s %s: %s\n", e.GetTs().AsTime().Format(time.RFC3339), e.GetState(), e.GetMsg())
	}
	if err := sendChunks(strings.NewReader(text.String()), srv); err != nil || !in.GetFollow() {
		return err
	}
	<-srv.Context().Done()
	return srv.Context().Err()
}

// Mounts are those of the system partitions.
func (a *api) Mounts(context.Context, *emptypb.Empty) (*machine.MountsResponse, error) {
	mounts := &machine.Mounts{}
	if a.m.volumes.ephemeralMounted() {
		mounts.Stats = append(mounts.Stats, &machine.MountStat{
			Filesystem: partitionPath(a.m.cfg.Store.systemDisk(), 6), Size: 10 << 30, Available: 9 << 30, MountedOn: "/var",
		})
	}
	return &machine.MountsResponse{Messages: []*machine.Mounts{mounts}}, nil
}

// MetaWrite writes a key of META, which outlives everything but a wipe of META.
func (a *api) MetaWrite(_ context.Context, in *machine.MetaWriteRequest) (*machine.MetaWriteResponse, error) {
	if err := a.m.notInContainer(); err != nil {
		return nil, err
	}
	if in.GetKey() > 255 {
		return nil, status.Error(codes.InvalidArgument, "key must be a uint8")
	}
	keys := a.m.cfg.Store.Meta()
	keys[uint8(in.GetKey())] = string(in.GetValue())
	if err := a.m.cfg.Store.setMeta(keys); err != nil {
		return nil, status.Error(codes.ResourceExhausted, "meta write failed")
	}
	r := runtimeres.NewMetaKey(runtimeres.NamespaceName, runtimeres.MetaKeyTagToID(uint8(in.GetKey())))
	r.TypedSpec().Value = string(in.GetValue())
	a.m.put(r)
	return &machine.MetaWriteResponse{Messages: []*machine.MetaWrite{{}}}, nil
}

func (a *api) MetaDelete(_ context.Context, in *machine.MetaDeleteRequest) (*machine.MetaDeleteResponse, error) {
	if err := a.m.notInContainer(); err != nil {
		return nil, err
	}
	if in.GetKey() > 255 {
		return nil, status.Error(codes.InvalidArgument, "key must be a uint8")
	}
	keys := a.m.cfg.Store.Meta()
	if _, ok := keys[uint8(in.GetKey())]; !ok {
		return nil, status.Error(codes.NotFound, "meta key not found")
	}
	delete(keys, uint8(in.GetKey()))
	if err := a.m.cfg.Store.setMeta(keys); err != nil {
		return nil, err
	}
	a.m.drop(runtimeres.NewMetaKey(runtimeres.NamespaceName, runtimeres.MetaKeyTagToID(uint8(in.GetKey()))))
	return &machine.MetaDeleteResponse{Messages: []*machine.MetaDelete{{}}}, nil
}

// memoryKiB is every simulated machine's memory.
const memoryKiB = 4 << 20

// Memory is that of the simulated machine, not of the one it runs on.
func (a *api) Memory(context.Context, *emptypb.Empty) (*machine.MemoryResponse, error) {
	return &machine.MemoryResponse{Messages: []*machine.Memory{{Meminfo: &machine.MemInfo{
		Memtotal: memoryKiB, Memfree: memoryKiB / 2, Memavailable: memoryKiB * 3 / 4, Cached: memoryKiB / 4,
	}}}}, nil
}
