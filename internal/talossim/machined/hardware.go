package machined

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/siderolabs/talos/pkg/machinery/config/types/block/blockhelpers"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	timeres "github.com/siderolabs/talos/pkg/machinery/resources/time"
	"sigs.k8s.io/yaml"
)

var errNoEntry error = syscall.ENOENT

// Version is the Talos release that is simulated.
const Version = "v1.13.6"

// hardware publishes what doesn't depend on a config.
func (m *Machine) hardware(context.Context) {
	version := runtime.NewVersion()
	version.TypedSpec().Name, version.TypedSpec().Version = "Talos", Version
	m.put(version)

	platform := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID)
	platform.TypedSpec().Platform = m.platform()
	m.put(platform)

	security := runtime.NewSecurityStateSpec(runtime.NamespaceName)
	m.put(security)

	if !m.cfg.Container {
		info := hardware.NewSystemInformation(hardware.SystemInformationID)
		spec := info.TypedSpec()
		spec.Manufacturer, spec.ProductName, spec.Version = "Ichor", "talossim", "1"
		spec.SerialNumber, spec.UUID = m.cfg.Name, m.cfg.UUID
		m.put(info)
		for _, d := range m.cfg.Disks {
			m.put(diskResource(d))
		}
	}
	m.volumes.publish()
	m.publishAddresses()
	m.publishNetworkStatus()
	m.publishMachineType()
	// Without a time server that answers Talos would wait; simulated machines always find one.
	status := timeres.NewStatus()
	status.TypedSpec().Synced = true
	m.put(status)
}

func diskResource(d Disk) *block.Disk {
	r := block.NewDisk(block.NamespaceName, path.Base(d.DevPath))
	spec := r.TypedSpec()
	spec.DevPath, spec.Model, spec.Serial, spec.Transport = d.DevPath, d.Model, d.Serial, d.Transport
	spec.Readonly, spec.IOSize, spec.SectorSize = d.Readonly, 512, 512
	spec.SubSystem, spec.BusPath = "/sys/class/block", "/simulated/"+path.Base(d.DevPath)
	spec.SetSize(d.Size)
	return r
}

func (m *Machine) platform() string {
	if m.cfg.Container {
		return "container"
	}
	return "metal"
}

func (m *Machine) publishAddresses() {
	prefix := netip.PrefixFrom(m.cfg.Address, 24)
	for _, id := range []string{
		network.NodeAddressDefaultID, network.NodeAddressCurrentID, network.NodeAddressRoutedID, network.NodeAddressAccumulativeID,
		network.FilteredNodeAddressID(network.NodeAddressCurrentID, "no-k8s"), network.FilteredNodeAddressID(network.NodeAddressRoutedID, "no-k8s"),
		network.FilteredNodeAddressID(network.NodeAddressAccumulativeID, "no-k8s"),
	} {
		r := network.NewNodeAddress(network.NamespaceName, id)
		r.TypedSpec().Addresses = []netip.Prefix{prefix}
		r.TypedSpec().SortAlgorithm = nethelpers.AddressSortAlgorithmV1
		m.put(r)
	}
}

func (m *Machine) publishNetworkStatus() {
	r := network.NewStatus(network.NamespaceName, network.StatusID)
	r.TypedSpec().AddressReady, r.TypedSpec().ConnectivityReady, r.TypedSpec().EtcFilesReady = true, true, true
	r.TypedSpec().HostnameReady = m.hostname() != ""
	m.put(r)
}

func (m *Machine) synced() bool {
	r, ok := get(m.ctx, m.st, timeres.NewStatus())
	return ok && r.TypedSpec().Synced
}

// hostname is what HostnameStatus says, "" while there is none.
func (m *Machine) hostname() string {
	r, ok := get(m.ctx, m.st, network.NewHostnameStatus(network.NamespaceName, network.HostnameID))
	if !ok {
		return ""
	}
	return r.TypedSpec().Hostname
}

// nodeID is the machine's identity, "" while STATE isn't there to hold one.
func (m *Machine) nodeID() string {
	r, ok := get(m.ctx, m.st, cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity))
	if !ok {
		return ""
	}
	return r.TypedSpec().NodeID
}

// establishIdentity reads the node's identity from STATE, or makes a new one there.
func (m *Machine) establishIdentity() {
	file := m.cfg.Store.Path(stateLabel, identityFile)
	var spec cluster.IdentitySpec
	if data, err := os.ReadFile(file); err != nil || yaml.Unmarshal(data, &spec) != nil || spec.NodeID == "" {
		spec.NodeID = newNodeID()
		if err := os.WriteFile(file, []byte("nodeId: "+spec.NodeID+"\n"), 0o600); err != nil {
			m.log.Error("writing the node identity", "err", err)
		}
	}
	r := cluster.NewIdentity(cluster.NamespaceName, cluster.LocalIdentity)
	*r.TypedSpec() = spec
	m.put(r)
	m.publishHostname()
}

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// newNodeID is 32 random bytes in base 62, as Talos's.
func newNodeID() string {
	raw := make([]byte, constants.DefaultNodeIdentitySize)
	_, _ = rand.Read(raw) // never fails
	n, base, digit := new(big.Int).SetBytes(raw), big.NewInt(62), new(big.Int)
	var out []byte
	for n.Sign() > 0 {
		n.DivMod(n, base, digit)
		out = append(out, base62[digit.Int64()])
	}
	return string(out)
}

// stableHostname derives a name from the node's identity (Talos: controllers/network/hostname_config.go).
func stableHostname(nodeID string) string {
	sum := sha256.Sum256([]byte(nodeID))
	text := new(big.Int).SetBytes(sum[:8]).Text(36)
	for len(text) < 7 {
		text = "0" + text
	}
	return fmt.Sprintf("talos-%s-%s", text[1:4], text[4:7])
}

// publishHostname decides the hostname: the config's, else one that derives from identity or address as the config says.
func (m *Machine) publishHostname() {
	p := m.conf.current()
	if p == nil || p.NetworkHostnameConfig() == nil {
		return
	}
	name := p.NetworkHostnameConfig().Hostname()
	if name == "" {
		switch p.NetworkHostnameConfig().AutoHostname() {
		case nethelpers.AutoHostnameKindStable:
			if id := m.nodeID(); id != "" {
				name = stableHostname(id)
			}
		case nethelpers.AutoHostnameKindAddr:
			name = "talos-" + strings.ReplaceAll(m.cfg.Address.String(), ".", "-")
		}
	}
	if name == "" {
		return
	}
	r := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
	r.TypedSpec().Hostname, r.TypedSpec().Domainname, _ = strings.Cut(name, ".")
	m.put(r)
	m.publishNetworkStatus()
}

// installDisk finds the disk that the config wants Talos on.
func (m *Machine) installDisk(ctx context.Context) (string, error) {
	install := m.conf.current().Machine().Install()
	if install == nil {
		return "", errors.New("no install configuration")
	}
	match, err := install.DiskMatchExpression()
	if err != nil {
		return "", fmt.Errorf("the install disk selector: %w", err)
	}
	if match != nil {
		disks, err := blockhelpers.MatchDisks(ctx, m.st, match)
		if err != nil {
			return "", fmt.Errorf("matching the install disk: %w", err)
		}
		if len(disks) == 0 {
			return "", fmt.Errorf("no disks matched the expression: %s", match)
		}
		return disks[0].TypedSpec().DevPath, nil
	}
	for _, d := range m.cfg.Disks {
		if d.DevPath == install.Disk() {
			return d.DevPath, nil
		}
	}
	return "", fmt.Errorf("the install disk %s isn't there", install.Disk())
}
