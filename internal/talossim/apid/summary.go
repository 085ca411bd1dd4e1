package apid

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	cosi "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
)

// mutating are the methods that change something when they succeed.
var mutating = []string{ //nolint:gochecknoglobals // a constant that Go can't express as such
	"/machine.MachineService/ApplyConfiguration", "/machine.MachineService/Bootstrap", "/machine.MachineService/EtcdAlarmDisarm",
	"/machine.MachineService/EtcdDefragment", "/machine.MachineService/EtcdDowngradeCancel", "/machine.MachineService/EtcdDowngradeEnable",
	"/machine.MachineService/EtcdForfeitLeadership", "/machine.MachineService/EtcdLeaveCluster", "/machine.MachineService/EtcdRecover",
	"/machine.MachineService/EtcdRemoveMemberByID", "/machine.MachineService/ImagePull", "/machine.MachineService/MetaDelete",
	"/machine.MachineService/MetaWrite", "/machine.MachineService/Reboot", "/machine.MachineService/Reset", "/machine.MachineService/Restart",
	"/machine.MachineService/Rollback", "/machine.MachineService/ServiceRestart", "/machine.MachineService/ServiceStart",
	"/machine.MachineService/ServiceStop", "/machine.MachineService/Shutdown", "/machine.MachineService/Upgrade",
	"/machine.ImageService/Import", "/machine.ImageService/Pull", "/machine.ImageService/Remove", "/machine.LifecycleService/Install",
	"/machine.LifecycleService/Upgrade", "/machine.DebugService/ContainerRun", "/storage.StorageService/BlockDeviceWipe",
}

// Mutating says whether a method, by its full name, changes something when it succeeds.
func Mutating(method string) bool {
	return slices.Contains(mutating, method)
}

// Summary is what the journal keeps of a request: what an auditor asks for, never a config, a value or a secret. It is nil
// for requests of which nothing is kept.
func Summary(req any) map[string]any {
	switch r := req.(type) {
	case *machine.ApplyConfigurationRequest:
		sum := sha256.Sum256(r.Data)

		return map[string]any{
			"mode": strings.ToLower(r.Mode.String()), "dryRun": r.DryRun, "bytes": len(r.Data), "sha256": hex.EncodeToString(sum[:]),
		}
	case *machine.BootstrapRequest:
		return map[string]any{"recoverEtcd": r.RecoverEtcd, "recoverSkipHashCheck": r.RecoverSkipHashCheck}
	case *machine.ResetRequest:
		return resetSummary(r)
	case *machine.RebootRequest:
		return map[string]any{"mode": strings.ToLower(r.Mode.String())}
	case *machine.ShutdownRequest:
		return map[string]any{"force": r.Force}
	case *machine.UpgradeRequest:
		return map[string]any{"image": r.Image, "stage": r.Stage, "force": r.Force, "preserve": r.Preserve} //nolint:staticcheck // the wire
	case *machine.EtcdRemoveMemberByIDRequest:
		return map[string]any{"memberID": fmt.Sprintf("%x", r.MemberId)}
	case *machine.EtcdMemberListRequest:
		return map[string]any{"queryLocal": r.QueryLocal}
	case *machine.EventsRequest:
		return map[string]any{"tailEvents": r.TailEvents, "withActorID": r.WithActorId}
	case *machine.GenerateClientConfigurationRequest:
		return map[string]any{"roles": r.Roles, "ttl": r.CrtTtl.AsDuration().String()}
	case *machine.MetaWriteRequest:
		return map[string]any{"key": r.Key}
	case *machine.MetaDeleteRequest:
		return map[string]any{"key": r.Key}
	case *storage.BlockDeviceWipeRequest:
		devices := make([]string, len(r.Devices))
		for i, d := range r.Devices {
			devices[i] = d.Device
		}

		return map[string]any{"devices": devices}
	default:
		return namedSummary(req)
	}
}

func resetSummary(r *machine.ResetRequest) map[string]any {
	partitions := make([]map[string]any, len(r.SystemPartitionsToWipe))
	for i, p := range r.SystemPartitionsToWipe {
		partitions[i] = map[string]any{"label": p.Label, "wipe": p.Wipe}
	}

	return map[string]any{
		"graceful": r.Graceful, "reboot": r.Reboot, "mode": r.Mode.String(), "partitions": partitions, "userDisks": r.UserDisksToWipe,
	}
}

// namedSummary is for requests that name one thing.
func namedSummary(req any) map[string]any {
	switch r := req.(type) {
	case *machine.ServiceRestartRequest:
		return map[string]any{"service": r.Id}
	case *machine.ServiceStartRequest:
		return map[string]any{"service": r.Id}
	case *machine.ServiceStopRequest:
		return map[string]any{"service": r.Id}
	case *machine.RestartRequest:
		return map[string]any{"namespace": r.Namespace, "id": r.Id}
	case *machine.LogsRequest:
		return map[string]any{"namespace": r.Namespace, "id": r.Id}
	case *machine.ReadRequest:
		return map[string]any{"path": r.Path}
	case *machine.ListRequest:
		return map[string]any{"path": r.Root}
	case *machine.CopyRequest:
		return map[string]any{"path": r.RootPath}
	case *machine.LifecycleServiceUpgradeRequest:
		return map[string]any{"image": r.GetSource().GetImageName()}
	case *machine.ImageServicePullRequest:
		return map[string]any{"image": r.GetImageRef()}
	case *cosi.GetRequest:
		return map[string]any{"type": r.Type, "id": r.Id}
	case *cosi.ListRequest:
		return map[string]any{"type": r.Type}
	case *cosi.WatchRequest:
		return map[string]any{"type": r.Type, "id": r.GetId()}
	default:
		return nil
	}
}
