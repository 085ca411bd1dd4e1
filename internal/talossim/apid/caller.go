package apid

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Caller is who made a call: the client certificate that the first front on the way saw.
type Caller struct {
	// Maintenance: the node was in maintenance mode and asked for no certificate.
	Maintenance bool `json:"maintenance,omitempty"`
	// Organization of the certificate: the roles, as Talos has them.
	Organization []string `json:"organization,omitempty"`
	// Serial number of the certificate, hex.
	Serial string `json:"serial,omitempty"`
}

func (c Caller) encode() string {
	raw, err := json.Marshal(c)
	if err != nil {
		return "" // strings and booleans always encode
	}

	return base64.RawURLEncoding.EncodeToString(raw)
}

func decodeCaller(values []string) (Caller, bool) {
	var c Caller

	if len(values) != 1 {
		return c, false
	}

	raw, err := base64.RawURLEncoding.DecodeString(values[0])
	if err != nil || json.Unmarshal(raw, &c) != nil {
		return Caller{}, false
	}

	return c, true
}

type (
	rolesKey  struct{}
	callerKey struct{}
)

// Roles are the caller's roles as the front determined them; none when the context is not that of a call.
func Roles(ctx context.Context) role.Set {
	if roles, ok := ctx.Value(rolesKey{}).(role.Set); ok {
		return roles
	}

	return role.Zero
}

func callerFrom(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)

	return c
}

func withCaller(ctx context.Context, roles role.Set, caller Caller) context.Context {
	return context.WithValue(context.WithValue(ctx, rolesKey{}, roles), callerKey{}, caller)
}

// injector finds out who calls and with which roles (Talos: pkg/grpc/middleware/authz/injector.go).
type injector struct {
	maintenance bool
}

func (i injector) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	roles, caller := i.identify(stream.Context())

	return handler(srv, &contextStream{ServerStream: stream, ctx: withCaller(stream.Context(), roles, caller)})
}

func (i injector) identify(ctx context.Context) (role.Set, Caller) {
	if i.maintenance {
		return role.MakeSet(role.Reader), Caller{Maintenance: true}
	}

	p, _ := peer.FromContext(ctx)
	if p == nil {
		return role.Zero, Caller{}
	}

	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return role.Zero, Caller{}
	}

	leaf := info.State.PeerCertificates[0]
	roles, _ := role.Parse(leaf.Subject.Organization)
	caller := Caller{Organization: slices.Clone(leaf.Subject.Organization), Serial: hex.EncodeToString(leaf.SerialNumber.Bytes())}

	if !roles.Includes(role.Impersonator) {
		return roles, caller
	}

	md, _ := metadata.FromIncomingContext(ctx)

	if original, ok := decodeCaller(md[keyCaller]); ok {
		caller = original
	}

	if named := md.Get(constants.APIAuthzRoleMetadataKey); len(named) > 0 {
		roles, _ = role.Parse(named)
	}

	return roles, caller
}

// contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }
