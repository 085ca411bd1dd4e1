package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	cosiv1alpha1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
)

// Bounds of what is read from one node: it may lie.
const (
	maxResources = 4096
	maxBytesRead = 8 << 20
)

// errMissing is returned by get when the node has no such resource.
var errMissing = errors.New("the node has no such resource")

// get reads one resource. T is its type from the machinery.
func get[T resource.Resource](ctx context.Context, client cosiv1alpha1.StateClient, namespace resource.Namespace, kind resource.Type, id resource.ID) (T, error) {
	var none T
	reply, err := client.Get(ctx, &cosiv1alpha1.GetRequest{Namespace: namespace, Type: kind, Id: id, Options: &cosiv1alpha1.GetOptions{}})
	if status.Code(err) == codes.NotFound {
		return none, errMissing
	}
	if err != nil {
		return none, err
	}
	return decode[T](reply.GetResource())
}

func decode[T resource.Resource](message *cosiv1alpha1.Resource) (T, error) {
	var none T
	if message == nil {
		return none, errors.New("the node sent an empty resource")
	}
	raw, err := protobuf.Unmarshal(message)
	if err != nil {
		return none, errors.New("the node sent a resource that can't be decoded")
	}
	decoded, err := protobuf.UnmarshalResource(raw)
	if err != nil {
		// The decoder's own words may quote what it read.
		return none, errors.New("the node sent a resource that can't be decoded")
	}
	typed, ok := decoded.(T)
	if !ok {
		return none, errors.New("the node sent a resource of another type than asked for")
	}
	return typed, nil
}

// list reads all resources of a type, at most maxResources.
func list[T resource.Resource](ctx context.Context, client cosiv1alpha1.StateClient, namespace resource.Namespace, kind resource.Type) ([]T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.List(ctx, &cosiv1alpha1.ListRequest{Namespace: namespace, Type: kind, Options: &cosiv1alpha1.ListOptions{}})
	if err != nil {
		return nil, err
	}
	var found []T
	for size := 0; ; {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		size += proto.Size(reply) // all of it: labels and annotations are kept too
		if len(found) == maxResources || size > maxBytesRead {
			return nil, fmt.Errorf("the node lists more than %d of %s", maxResources, kind)
		}
		typed, err := decode[T](reply.GetResource())
		if err != nil {
			return nil, err
		}
		found = append(found, typed)
	}
}

// inMessage gives the error that a reply's message carries: with routing metadata Talos answers OK and puts the failure
// there. Ichor never sends such metadata, but a proxy on the way might.
func inMessage(meta *common.Metadata) error {
	if meta == nil || (meta.GetError() == "" && meta.GetStatus().GetCode() == 0) {
		return nil
	}
	code := codes.Code(uint32(meta.GetStatus().GetCode()))
	if code == codes.OK {
		code = codes.Unknown
	}
	text := meta.GetError()
	if text == "" {
		text = meta.GetStatus().GetMessage()
	}
	return status.Error(code, text)
}

// message is one node's part of a reply.
type message interface{ GetMetadata() *common.Metadata }

// single gives the only message of a reply, or the error in it.
func single[M message](messages []M, err error) (M, error) {
	var none M
	if err != nil {
		return none, err
	}
	if len(messages) != 1 {
		return none, fmt.Errorf("the node sent %d messages, want one", len(messages))
	}
	return messages[0], inMessage(messages[0].GetMetadata())
}

// readFile reads a small file; needs the role os:admin.
func readFile(ctx context.Context, client machineapi.MachineServiceClient, path string, limit int) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Read(ctx, &machineapi.ReadRequest{Path: path})
	if err != nil {
		return "", err
	}
	var content strings.Builder
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return content.String(), nil
		}
		if err != nil {
			return "", err
		}
		if err := inMessage(part.GetMetadata()); err != nil {
			return "", err
		}
		content.Write(part.GetBytes())
		if content.Len() > limit {
			return "", fmt.Errorf("%s is longer than %d bytes", path, limit)
		}
	}
}
