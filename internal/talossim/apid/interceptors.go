package apid

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"strings"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/role"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// NotAuthorized is Talos's answer to a caller whose roles don't suffice (pkg/grpc/middleware/authz/authorizer.go).
func NotAuthorized() error {
	return status.Error(codes.PermissionDenied, "not authorized")
}

// ServerOptions are those of a machine service behind a front: message sizes, roles out of the front's metadata, the journal,
// the role table, and a panic answered as Internal. bootID is asked at each call. A nil journal writes nothing.
//
// The table lets readers call ApplyConfiguration and BlockDeviceWipe: the handlers must refuse them with [NotAuthorized] unless
// the node is in maintenance mode, as Talos's do; [IsAdmin] says which they are.
func ServerOptions(journal *Journal, bootID func() string) []grpc.ServerOption {
	m := machineSide{journal: journal, bootID: bootID}

	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.MaxSendMsgSize(constants.GRPCMaxMessageSize),
		grpc.ChainUnaryInterceptor(m.unary),
		grpc.ChainStreamInterceptor(m.stream),
	}
}

// IsAdmin says whether a call's caller is os:admin.
func IsAdmin(ctx context.Context) bool {
	return Roles(ctx).Includes(role.Admin)
}

type machineSide struct {
	journal *Journal
	bootID  func() string
}

func (m machineSide) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	ctx, call := m.begin(ctx, info.FullMethod)
	call.entry.Request = Summary(req)

	defer func() { m.end(call, recovered(recover(), &err)) }()

	if err := authorize(ctx, info.FullMethod); err != nil {
		return nil, err
	}

	return handler(ctx, req)
}

func (m machineSide) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	ctx, call := m.begin(stream.Context(), info.FullMethod)
	watched := &watchedStream{ServerStream: stream, ctx: ctx}
	call.received = watched.summary

	defer func() { m.end(call, recovered(recover(), &err)) }()

	if err := authorize(ctx, info.FullMethod); err != nil {
		return err
	}

	return handler(srv, watched)
}

func (m machineSide) begin(ctx context.Context, method string) (context.Context, *Call) {
	md, _ := metadata.FromIncomingContext(ctx)
	roles, _ := role.Parse(md.Get(constants.APIAuthzRoleMetadataKey))
	caller, _ := decodeCaller(md[keyCaller])

	call := &Call{journal: m.journal, front: strings.Join(md[keyPassing], ""), entry: Entry{
		BootID: m.bootID(), Caller: caller, Method: method, Mutating: Mutating(method), Route: strings.Join(md[keyRoute], ""),
		Proxied: len(md[keyProxyFrom]) > 0,
	}}

	ctx = withCaller(ctx, roles, caller)

	return WithCall(ctx, call), call
}

func (m machineSide) end(call *Call, err error) {
	call.finish(err)
}

func authorize(ctx context.Context, method string) error {
	if allowed(method).IncludesAny(Roles(ctx)) {
		return nil
	}

	return NotAuthorized()
}

// recovered turns a panic into Talos's Internal and returns the call's error.
func recovered(p any, err *error) error {
	if p != nil {
		*err = status.Error(codes.Internal, fmt.Sprint(p))
	}

	return *err
}

func recoverStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() { _ = recovered(recover(), &err) }()

	return handler(srv, stream)
}

// journalRefusals journals, on the front, the calls that don't reach the node's own machine service.
func (s *Server) journalRefusals(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, stream)

	if s.cfg.Journal == nil {
		return err
	}

	md, _ := metadata.FromIncomingContext(stream.Context())
	settings := s.cfg.Provider.Settings()

	targets := slices.Concat(md[keyNode], md[keyNodes])
	elsewhere := len(targets) > 0 && len(md[keyProxyFrom]) == 0 && !callerFrom(stream.Context()).Maintenance &&
		!(settings.Client == nil && len(targets) == 1 && slices.Contains(settings.Local, targets[0]))

	if elsewhere {
		s.cfg.Journal.record(Entry{
			BootID: s.cfg.BootID(), Caller: callerFrom(stream.Context()), Method: info.FullMethod, Route: routeOf(md), Forwarded: targets,
			Code: codeOf(err), Text: answerText(err), Mutating: Mutating(info.FullMethod),
		})
	}

	return err
}

// watchedStream remembers what was received, for the journal's summary.
type watchedStream struct {
	grpc.ServerStream
	ctx context.Context

	mu    sync.Mutex
	first any
	bytes int64
	hash  hash.Hash
}

func (w *watchedStream) Context() context.Context { return w.ctx }

func (w *watchedStream) RecvMsg(m any) error {
	err := w.ServerStream.RecvMsg(m)
	if err != nil {
		return err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if data, ok := m.(*common.Data); ok {
		if w.hash == nil {
			w.hash = sha256.New()
		}

		w.bytes += int64(len(data.Bytes))
		w.hash.Write(data.Bytes)

		return nil
	}

	if w.first == nil {
		w.first = m
	}

	return nil
}

func (w *watchedStream) summary() map[string]any {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.hash != nil {
		return map[string]any{"bytes": w.bytes, "sha256": hex.EncodeToString(w.hash.Sum(nil))}
	}

	return Summary(w.first)
}
