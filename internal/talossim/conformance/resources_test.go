package conformance_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clusterres "github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/stretchr/testify/require"
)

func metadata(namespace, kind, id string) resource.Metadata {
	return resource.NewMetadata(namespace, kind, id, resource.VersionUndefined)
}

type emptyReader struct{}

func (emptyReader) Read([]byte) (int, error) { return 0, io.EOF }

func hostname(t *testing.T, c *client.Client) string {
	t.Helper()

	r, err := safe.StateGet[*network.HostnameStatus](within(t, short), c.COSI, metadata(network.NamespaceName, network.HostnameStatusType, network.HostnameID))
	require.NoError(t, err)

	return r.TypedSpec().Hostname
}

func identity(t *testing.T, c *client.Client) string {
	t.Helper()

	r, err := safe.StateGet[*clusterres.Identity](within(t, short), c.COSI, metadata(clusterres.NamespaceName, clusterres.IdentityType, clusterres.LocalIdentity))
	require.NoError(t, err)

	return r.TypedSpec().NodeID
}

func memberNames(ctx context.Context, c *client.Client) ([]string, error) {
	list, err := safe.StateListAll[*clusterres.Member](ctx, c.COSI)
	if err != nil {
		return nil, err
	}

	var names []string
	for m := range list.All() {
		names = append(names, m.TypedSpec().Hostname)
	}

	return names, nil
}

func nodeStatus(ctx context.Context, c *client.Client) (*k8s.NodeStatusSpec, error) {
	list, err := safe.StateListAll[*k8s.NodeStatus](ctx, c.COSI)
	if err != nil {
		return nil, err
	}

	for r := range list.All() {
		return r.TypedSpec(), nil
	}

	return nil, errors.New("there is no node status yet")
}
