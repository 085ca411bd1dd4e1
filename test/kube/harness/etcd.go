package harness

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"ichor.maesh.dev/internal/talossim/member"
)

// StartEtcd starts an etcd of one member in this process, at a loopback address of the test's own. Its clients show a
// certificate of the bundle's etcd authority, as Talos's do.
func StartEtcd(t testing.TB, secrets *Secrets, address string) Etcd {
	t.Helper()
	dir, authority := t.TempDir(), secrets.bundle.Certs.Etcd
	config := embed.NewConfig()
	var calls member.Calls
	config.GRPCAdditionalServerOptions = calls.Options()
	config.Name, config.Dir, config.UnsafeNoFsync, config.EnableGRPCGateway = "etcd", t.TempDir(), true, false
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	certificate, key := issue(t, authority, "etcd", nil, []string{address})
	config.ClientTLSInfo = transport.TLSInfo{ClientCertAuth: true, TrustedCAFile: write(t, dir, "ca.crt", authority.Crt),
		CertFile: write(t, dir, "etcd.crt", certificate), KeyFile: write(t, dir, "etcd.key", key)}
	config.ListenPeerUrls, config.ListenClientUrls = []url.URL{{Scheme: "http", Host: address + ":0"}}, []url.URL{{Scheme: "https", Host: address + ":0"}}
	config.AdvertisePeerUrls, config.AdvertiseClientUrls = config.ListenPeerUrls, config.ListenClientUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	require.NoError(t, err)
	t.Cleanup(func() {
		calls.Await(patience) // its callers were ended before it
		etcd.Close()
	})
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(patience):
		t.Fatal("etcd isn't ready")
	}
	certificate, key = issue(t, authority, "kube-apiserver-etcd-client", nil, nil)
	return Etcd{Endpoints: []string{"https://" + etcd.Clients[0].Addr().String()}, CA: authority.Crt, Certificate: certificate, Key: key}
}
