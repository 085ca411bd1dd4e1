package validate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNetworks(t *testing.T) {
	judge(t, []step{
		{"Talos's own networks are apart", `-`, `cluster prod`, nil},
		{"networks that touch are apart", `-`, `cluster prod pods=10.0.0.0/17 services=10.0.128.0/17`, nil},
		{"pods within services", `-`, `cluster prod pods=10.0.1.0/24 services=10.0.0.0/16`, []string{"networks prod/prod"}},
		{"services within pods", `-`, `cluster prod pods=10.0.0.0/8 services=10.96.0.0/12`, []string{"networks prod/prod"}},
		{"the same network twice", `-`, `cluster prod pods=10.0.0.0/16 services=10.0.0.0/16`, []string{"networks prod/prod"}},
		{"pods within Talos's own services", `-`, `cluster prod pods=10.100.0.0/16`, []string{"networks prod/prod"}},
		{"services over Talos's own pods", `-`, `cluster prod services=10.240.0.0/12`, []string{"networks prod/prod"}},
		{"both families", `-`, `cluster prod pods=10.244.0.0/16,fd00:10::/56 services=10.96.0.0/12,fd00:20::/112`, nil},
		{"overlapping networks of the other family", `-`, `cluster prod pods=10.244.0.0/16,fd00::/48 services=10.96.0.0/12,fd00:0:0:1::/112`,
			[]string{"networks prod/prod"}},
		{"families don't overlap each other", `-`, `cluster prod pods=::/1 services=0.0.0.0/1`, nil},
		{"two pod networks of one family", `-`, `cluster prod pods=10.0.0.0/16,10.1.0.0/16`, []string{"networks prod/prod"}},
		{"two service networks of one family", `-`, `cluster prod services=fd00::/112,fd01::/112`, []string{"networks prod/prod"}},
		{"networks of two clusters may be the same", `-`, `cluster prod pods=10.0.0.0/16
			cluster test pods=10.0.0.0/16`, nil},
	})
}

func TestAddressesInNetworks(t *testing.T) {
	judge(t, []step{
		{"a machine outside", `-`, "cluster prod\nmachine prod/a endpoint=10.243.255.255", nil},
		{"a machine in Talos's own pod network", `-`, "cluster prod\nmachine prod/a endpoint=10.244.0.0", []string{"address-in-network prod/a"}},
		{"a machine at the end of Talos's own service network", `-`, "cluster prod\nmachine prod/a endpoint=10.111.255.255:50001",
			[]string{"address-in-network prod/a"}},
		{"a machine just behind it", `-`, "cluster prod\nmachine prod/a endpoint=10.112.0.0", nil},
		{"a machine where the default would be, were it not replaced", `-`, "cluster prod pods=10.0.0.0/16\nmachine prod/a endpoint=10.244.0.1", nil},
		{"a machine by its IPv6 address", `-`, "cluster prod pods=fd00::/64\nmachine prod/a endpoint=[fd00::1]:50000", []string{"address-in-network prod/a"}},
		{"a machine by name", `-`, "cluster prod\nmachine prod/a endpoint=cp-1.example.com", nil},
		{"a cluster's endpoint inside", `-`, "cluster prod endpoint=https://10.96.0.1:6443", []string{"address-in-network prod/prod"}},
		{"a cluster's endpoint outside", `-`, "cluster prod endpoint=https://10.0.0.1:6443", nil},
		{"another cluster's network", `-`, "cluster prod pods=10.1.0.0/16\ncluster test pods=10.2.0.0/16\nmachine prod/a endpoint=10.2.0.1", nil},
	})
}

func TestWindows(t *testing.T) {
	judge(t, []step{
		{"no windows and none needed", `-`, `cluster prod`, nil},
		{"a window each Saturday night", `-`, `cluster prod reboots=window window=0_2_*_*_SAT open=4h`, nil},
		{"windows without a window", `-`, `cluster prod reboots=window`, []string{"windows prod/prod"}},
		{"a window that is open until one minute before it opens again", `-`, `cluster prod reboots=window window=0_2_*_*_* open=23h59m`, nil},
		{"a window that is open until it opens again", `-`, `cluster prod reboots=window window=0_2_*_*_* open=24h`, []string{"windows prod/prod"}},
		{"a window of a week, each week", `-`, `cluster prod reboots=window window=0_2_*_*_SAT open=168h`, []string{"windows prod/prod"}},
		{"a window of a weekend", `-`, `cluster prod reboots=window window=0_18_*_*_FRI open=60h`, nil},
		{"each minute", `-`, `cluster prod reboots=window window=*_*_*_*_* open=1m`, []string{"windows prod/prod"}},
		{"windows that nothing waits for, by default", `-`, `cluster prod window=0_2_*_*_SAT`, []string{"windows-unused prod/prod"}},
		{"windows that nothing waits for, by hand", `-`, `cluster prod reboots=manual window=0_2_*_*_SAT`, []string{"windows-unused prod/prod"}},
	})
}

func TestAWindowIsAlwaysOpenWhenItOpensAgainInTime(t *testing.T) {
	for _, c := range []struct {
		schedule string
		duration time.Duration
		want     bool
	}{
		{"* * * * *", time.Minute, true},
		{"* * * * *", time.Second, false},
		{"0 * * * *", time.Hour, true},
		{"0 2,14 * * *", 12 * time.Hour, true},
		{"0 2,13 * * *", 12 * time.Hour, false},
		{"0 0 1 * *", 31 * 24 * time.Hour, true},
		{"0 0 1 * *", 30 * 24 * time.Hour, false},
		{"0 0 1 1 *", 366 * 24 * time.Hour, true},
		{"0 0 1 1 *", 365 * 24 * time.Hour, false},
		{"* * 29 2 *", 366 * 24 * time.Hour, false},
		{"* * * * MON", 24 * time.Hour, false},
	} {
		schedule, err := parseCron(c.schedule)
		require.NoError(t, err)
		require.Equal(t, c.want, alwaysOpen(schedule, c.duration), "%s for %s", c.schedule, c.duration)
	}
}

func TestBackupsInsideOfAClusterAreWarnedAbout(t *testing.T) {
	inside := []string{"backup-inside-cluster prod/hourly"}
	const fleet = `cluster prod endpoint=https://k8s.example.com:6443
		cluster test pods=10.50.0.0/16 domain=test.internal
		machine prod/cp-1 endpoint=10.0.0.11
		machine test/w-1 endpoint=W-1.example.com.
		`
	var steps []step
	for _, c := range []struct {
		name, endpoint string
		want           []string
	}{
		{"somewhere else", "https://s3.example.com", nil},
		{"an address somewhere else", "https://10.0.0.12:9000", nil},
		{"a machine of the cluster, on another port", "http://10.0.0.11:9000", inside},
		{"a machine of another cluster, in other letters", "https://w-1.EXAMPLE.com", inside},
		{"the cluster's endpoint", "https://k8s.example.com", inside},
		{"a service", "http://minio.minio.svc:9000", inside},
		{"a service by its whole name", "http://minio.minio.svc.cluster.local:9000", inside},
		{"a service of another cluster by its whole name", "http://minio.minio.svc.test.internal", inside},
		{"a name that only ends like a cluster's domain", "http://minio.mycluster.local", nil},
		{"a pod's address", "http://10.244.7.7:9000", inside},
		{"a service's address", "http://10.96.0.20", inside},
		{"an address in another cluster's network, which may be real here", "http://10.50.0.20", nil},
		{"an IPv4 address in IPv6 clothes", "http://[::ffff:10.0.0.11]:9000", inside},
	} {
		steps = append(steps, step{c.name, `-`, fleet + "backup prod/hourly endpoint=" + c.endpoint, c.want})
	}
	judge(t, steps)
}

func TestInside(t *testing.T) {
	fleet := fleetOf(t, `cluster prod
		cluster test pods=10.50.0.0/16
		machine test/w-1 endpoint=10.0.0.21`)
	for endpoint, want := range map[string]string{
		"https://s3.example.com": "", "": "", "https://%zz": "",
		"https://10.0.0.21:9000":         "the machine w-1 of cluster test",
		"10.0.0.21":                      "the machine w-1 of cluster test",
		"https://test.example.com":       "the endpoint of cluster test",
		"http://minio.minio.svc":         "the name of a service in a cluster",
		"http://minio.svc.cluster.local": "a name in cluster.local, the domain of the services of cluster prod",
		"http://10.50.1.1":               "in 10.50.0.0/16, a network of the pods or services of cluster test",
	} {
		require.Equal(t, want, Inside(fleet, endpoint), endpoint)
	}
}

func TestAllowDeleteOfAnother(t *testing.T) {
	judge(t, []step{
		{"of the cluster itself", `-`, `cluster prod allow-delete`, nil},
		{"of another cluster", `-`, `cluster prod allow-delete-of=test`, []string{"allow-delete-of-another prod/prod"}},
		{"of the machine itself", `-`, "cluster prod\nmachine prod/a allow-delete", nil},
		{"of another machine", `-`, "cluster prod\nmachine prod/a allow-delete-of=b", []string{"allow-delete-of-another prod/a"}},
	})
}

func TestAMachineThatIsBackSaysSo(t *testing.T) {
	const fleet = `cluster prod count=1
		machine prod/cp-1 controlplane approved
		machine prod/cp-2 controlplane approved
		`
	judge(t, []step{
		{"one that an old remove names comes back without a time",
			fleet + `remove prod/cp-3`,
			fleet + `remove prod/cp-3
			machine prod/cp-3 controlplane approved`, []string{"approval-is-later prod/cp-3"}},
		{"one that an old remove names comes back with the time of its former approval",
			fleet + `remove prod/cp-3`,
			fleet + `remove prod/cp-3
			machine prod/cp-3 controlplane approved decided=-1h`, []string{"approval-is-later prod/cp-3"}},
		{"one that an old remove names comes back with a later time, and counts",
			fleet + `remove prod/cp-3`,
			fleet + `remove prod/cp-3
			machine prod/cp-3 controlplane approved decided=1h`, []string{"approval-cap prod/cp-3"}},
		{"one that an old remove names comes back where there is room",
			`cluster prod count=1
			machine prod/cp-1 controlplane approved
			remove prod/cp-3`,
			`cluster prod count=1
			machine prod/cp-1 controlplane approved
			remove prod/cp-3
			machine prod/cp-3 controlplane approved decided=1h`, nil},
		{"one comes back while its old remove is deleted, and counts",
			fleet + `remove prod/cp-3`,
			fleet + `machine prod/cp-3 controlplane approved`, []string{"approval-cap prod/cp-3"}},
		{"one that is being removed is approved anew, and counts again",
			fleet + `machine prod/cp-3 controlplane approved
			remove prod/cp-3`,
			fleet + `machine prod/cp-3 controlplane approved decided=1h
			remove prod/cp-3`, []string{"approval-cap prod/cp-3"}},
		{"one that is being removed and isn't approved is approved without a time",
			fleet + `machine prod/cp-3 controlplane
			remove prod/cp-3`,
			fleet + `machine prod/cp-3 controlplane approved
			remove prod/cp-3`, []string{"approval-is-later prod/cp-3"}},
		{"one that is back loses the time that says so",
			fleet + `machine prod/cp-3 controlplane approved decided=1h
			remove prod/cp-3`,
			fleet + `machine prod/cp-3 controlplane approved
			remove prod/cp-3`, []string{"approval-is-later prod/cp-3"}},
		{"a remove that is new says that the machine goes now",
			fleet + `machine prod/cp-3 controlplane approved`,
			fleet + `machine prod/cp-3 controlplane approved
			remove prod/cp-3`, nil},
		{"a remove that was made before the approval takes nothing away",
			fleet + `machine prod/cp-3 controlplane approved decided=1h`,
			fleet + `machine prod/cp-3 controlplane approved decided=1h
			remove prod/cp-3`, []string{"removal-is-later prod/remove-cp-3"}},
		{"a remove that is made so by the change that brings it is no way around the guards",
			`cluster prod count=1
			machine prod/cp-1 controlplane approved`,
			`cluster prod count=1
			machine prod/cp-1 controlplane approved decided=1h
			remove prod/cp-1`, []string{"removal-is-later prod/remove-cp-1"}},
		{"a remove that was made before the approval of a machine that isn't approved any more",
			fleet + `machine prod/cp-3 controlplane decided=1h`,
			fleet + `machine prod/cp-3 controlplane decided=1h
			remove prod/cp-3`, nil},
		{"one that is being removed may be edited",
			fleet + `machine prod/cp-3 controlplane approved
			remove prod/cp-3`,
			fleet + `machine prod/cp-3 controlplane approved hostname=x
			remove prod/cp-3`, nil},
		{"the files of a remove may be deleted, whatever that adds up to",
			fleet + `machine prod/cp-3 controlplane approved
			remove prod/cp-3`,
			fleet + `machine prod/cp-3 controlplane approved`, nil},
		{"a worker that comes back without a time",
			`cluster prod
			remove prod/w-1`,
			`cluster prod
			remove prod/w-1
			machine prod/w-1 worker approved`, []string{"approval-is-later prod/w-1"}},
	})
}
