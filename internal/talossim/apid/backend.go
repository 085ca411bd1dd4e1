package apid

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/siderolabs/grpc-proxy/proxy"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// localBackend passes a call to the node's own machine service, as it came.
type localBackend struct {
	conn *grpc.ClientConn
}

func (*localBackend) String() string { return "machined" }

func (b *localBackend) GetConnection(ctx context.Context, _ string) (context.Context, *grpc.ClientConn, error) {
	md := outgoing(ctx)
	delete(md, keyNode)
	delete(md, keyNodes)

	return metadata.NewOutgoingContext(ctx, md), b.conn, nil
}

func (*localBackend) AppendInfo(_ bool, resp []byte) ([]byte, error) { return resp, nil }

func (*localBackend) BuildError(bool, error) ([]byte, error) { return nil, nil }

// outgoing is the incoming metadata with the caller's roles and name laid over it.
func outgoing(ctx context.Context) metadata.MD {
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	md.Set(constants.APIAuthzRoleMetadataKey, Roles(ctx).Strings()...)
	md.Set(keyCaller, callerFrom(ctx).encode())
	md.Set(keyRoute, routeOf(md))
	md.Set(keyPassing, passingFrom(ctx))
	delete(md, ":authority")

	return md
}

// routeOf says by which metadata a call came, for the journal.
func routeOf(md metadata.MD) string {
	switch {
	case len(md[keyProxyFrom]) > 0:
		return strings.Join(md[keyRoute], "")
	case len(md[keyNodes]) > 0:
		return keyNodes
	case len(md[keyNode]) > 0:
		return keyNode
	default:
		return ""
	}
}

// remoteBackend passes a call to another node's front.
type remoteBackend struct {
	target string
	conn   *grpc.ClientConn
}

func newRemoteBackend(cfg Config, settings Settings, target string) (*remoteBackend, error) {
	if target == "" || hasPort(target) {
		return nil, fmt.Errorf("invalid target %q", target)
	}

	address := net.JoinHostPort(target, strconv.Itoa(constants.ApidPort))

	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(settings))),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := cfg.Dial(ctx, address)
			if err != nil {
				return nil, err
			}

			return cfg.Link.Wrap(conn), nil
		}),
		// Talos: at most 15 s between attempts and at least 20 s for one (internal/app/apid/pkg/backend/apid.go).
		grpc.WithConnectParams(connectParams(15*time.Second, 20*time.Second, cfg.TimeScale)),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize),
			grpc.MaxCallSendMsgSize(constants.GRPCMaxMessageSize),
			grpc.ForceCodecV2(proxy.Codec()),
		),
	)
	if err != nil {
		return nil, fmt.Errorf("preparing the way to node %s: %w", target, err)
	}

	return &remoteBackend{target: target, conn: conn}, nil
}

func connectParams(maxDelay, minConnect time.Duration, scale float64) grpc.ConnectParams {
	config := backoff.DefaultConfig
	config.BaseDelay = time.Duration(float64(config.BaseDelay) / scale)
	config.MaxDelay = time.Duration(float64(maxDelay) / scale)

	return grpc.ConnectParams{Backoff: config, MinConnectTimeout: time.Duration(float64(minConnect) / scale)}
}

// hasPort tells "host:port" and "[v6]:port" from a bare host or IPv6 address.
func hasPort(target string) bool {
	_, _, err := net.SplitHostPort(target)

	return err == nil
}

func (b *remoteBackend) String() string { return b.target }

func (b *remoteBackend) GetConnection(ctx context.Context, _ string) (context.Context, *grpc.ClientConn, error) {
	incoming, _ := metadata.FromIncomingContext(ctx)

	from := incoming[":authority"]
	if len(from) == 0 {
		from = []string{"unknown"}
	}

	md := outgoing(ctx)
	md.Set(keyProxyFrom, from...)
	delete(md, keyNode)
	delete(md, keyNodes)

	return metadata.NewOutgoingContext(ctx, md), b.conn, nil
}

// AppendInfo adds Metadata{hostname} to an answer without decoding it. A unary answer is a message whose only field is the
// repeated field 1, so the field is cut open, the Metadata (field 1 of each element) appended, and the length rewritten.
func (b *remoteBackend) AppendInfo(streaming bool, resp []byte) ([]byte, error) {
	info, err := proto.Marshal(&common.Empty{Metadata: &common.Metadata{Hostname: b.target}}) //nolint:staticcheck // the wire of 1.13
	if err != nil {
		return nil, fmt.Errorf("encoding the metadata of node %s: %w", b.target, err)
	}

	if streaming {
		return append(resp, info...), nil
	}

	number, kind, n := protowire.ConsumeTag(resp)
	if n < 0 || number != 1 || kind != protowire.BytesType {
		return nil, fmt.Errorf("unexpected message format from node %s", b.target)
	}

	_, m := protowire.ConsumeVarint(resp[n:])
	if m < 0 {
		return nil, fmt.Errorf("unexpected message size from node %s: %w", b.target, protowire.ParseError(m))
	}

	element := append(append([]byte{}, resp[n+m:]...), info...)

	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), element), nil
}

// BuildError makes an answer of an error: every answer's elements have their Metadata in field 1.
func (b *remoteBackend) BuildError(streaming bool, err error) ([]byte, error) {
	element := &common.Empty{Metadata: &common.Metadata{ //nolint:staticcheck // the wire of 1.13
		Hostname: b.target,
		Error:    err.Error(),
		Status:   status.Convert(err).Proto(),
	}}

	if streaming {
		return proto.Marshal(element)
	}

	return proto.Marshal(&common.EmptyResponse{Messages: []*common.Empty{element}})
}
