package apid

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/grpc-proxy/proxy"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Metadata keys of routing (Talos: internal/app/apid/pkg/director/director.go).
const (
	keyNode      = "node"
	keyNodes     = "nodes"
	keyProxyFrom = "proxyfrom"
	// keyCaller carries who called from the first front to the machine service's journal; a caller's own value is dropped.
	keyCaller = "talossim-caller"
	keyRoute  = "talossim-route"
	// keyPassing is the number that the last front on the way gave the call.
	keyPassing = "talossim-passing"
)

// fanOut are the services whose messages carry Metadata, so that several nodes' answers fit into one.
var fanOut = []string{
	"/machine.MachineService/", "/cluster.ClusterService/", "/inspect.InspectService/", "/storage.StorageService/", "/time.TimeService/",
}

// serverStreams are the streaming methods of those services; a fan-out passes their messages on one by one.
var serverStreams = []string{
	"/machine.MachineService/Copy", "/machine.MachineService/DiskUsage", "/machine.MachineService/Dmesg",
	"/machine.MachineService/EtcdSnapshot", "/machine.MachineService/Events", "/machine.MachineService/ImageList",
	"/machine.MachineService/Kubeconfig", "/machine.MachineService/List", "/machine.MachineService/Logs",
	"/machine.MachineService/PacketCapture", "/machine.MachineService/Read",
	"/machine.LifecycleService/Install", "/machine.LifecycleService/Upgrade", "/cluster.ClusterService/HealthCheck",
}

func streamed(method string) bool {
	return slices.Contains(serverStreams, method) || strings.HasSuffix(method, "Stream")
}

// router decides who answers a call: this node, another one, or several.
type router struct {
	cfg         Config
	maintenance bool
	local       *localBackend

	mu      sync.Mutex
	remotes map[string]*remoteBackend
	// identity is what the remotes were made for; they are made anew when certificate or CAs change.
	identity Settings
}

func newRouter(cfg Config, maintenance bool) (*router, error) {
	conn, err := grpc.NewClient("passthrough:///machined",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return cfg.Machined(ctx) }),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize),
			grpc.MaxCallSendMsgSize(constants.GRPCMaxMessageSize),
			grpc.ForceCodecV2(proxy.Codec()),
		),
		grpc.WithConnectParams(connectParams(100*time.Millisecond, time.Second, cfg.TimeScale)),
	)
	if err != nil {
		return nil, fmt.Errorf("preparing the way to the machine service behind %s: %w", cfg.Address, err)
	}

	return &router{cfg: cfg, maintenance: maintenance, local: &localBackend{conn: conn}, remotes: map[string]*remoteBackend{}}, nil
}

// direct is the proxy's director. The order of the checks is Talos's.
func (r *router) direct(ctx context.Context, method string) (proxy.Mode, []proxy.Backend, error) {
	md, _ := metadata.FromIncomingContext(ctx)

	if _, proxied := md[keyProxyFrom]; r.maintenance || proxied {
		return r.here()
	}

	node, hasNode := md[keyNode]
	nodes, hasNodes := md[keyNodes]

	if hasNode && len(node) != 1 {
		return proxy.One2One, nil, status.Error(codes.InvalidArgument, "node metadata must be single-valued")
	}

	settings := r.cfg.Provider.Settings()
	forwards := settings.Client != nil

	if !forwards {
		hasNode = hasNode && !slices.Contains(settings.Local, node[0])
		hasNodes = hasNodes && !(len(nodes) == 1 && slices.Contains(settings.Local, nodes[0]))
	}

	switch {
	case !hasNode && !hasNodes:
		return r.here()
	case hasNodes && !slices.ContainsFunc(fanOut, func(p string) bool { return strings.HasPrefix(method, p) }):
		return proxy.One2One, nil, status.Errorf(codes.InvalidArgument, "one-2-many proxying is not supported for method %s", method)
	case !forwards:
		return proxy.One2One, nil, status.Error(codes.PermissionDenied, "no request forwarding")
	case hasNodes:
		backends, err := r.backends(settings, nodes)

		return proxy.One2Many, backends, err
	default:
		backends, err := r.backends(settings, node)

		return proxy.One2One, backends, err
	}
}

func (r *router) here() (proxy.Mode, []proxy.Backend, error) {
	return proxy.One2One, []proxy.Backend{r.local}, nil
}

func (r *router) backends(settings Settings, targets []string) ([]proxy.Backend, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.identity.Client != settings.Client || r.identity.Accepted != settings.Accepted {
		r.closeRemotesLocked()

		r.identity = settings
	}

	backends := make([]proxy.Backend, len(targets))

	for i, target := range targets {
		remote, ok := r.remotes[target]
		if !ok {
			var err error

			if remote, err = newRemoteBackend(r.cfg, settings, target); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}

			r.remotes[target] = remote
		}

		backends[i] = remote
	}

	return backends, nil
}

func (r *router) closeRemotesLocked() {
	for target, remote := range r.remotes {
		_ = remote.conn.Close() // a client connection's Close fails only when it is closed already

		delete(r.remotes, target)
	}
}

func (r *router) close() {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.closeRemotesLocked()

	_ = r.local.conn.Close() // likewise
}
