package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
)

// fleet is what the people of a history mean to have in Git.
type fleet struct {
	clusters []*wantedCluster
	// operations are the files under operations/, bad what spoils the next commit.
	operations map[string]string
	bad        map[string]string
}

type wantedCluster struct {
	c *cluster
	// endpoint is that of the Kubernetes API.
	endpoint string
	count    int
	// lower is the count that it is to have again, which was raised for a restore; 0: it wasn't.
	lower   int
	reboots string
	// live and reboot are the values of a setting that takes effect live and of one that needs a boot; 0: it isn't there. spoiled is a setting
	// that machines refuse, or that locks the agents out.
	live, reboot int
	spoiled      string
	machines     map[string]*wantedMachine
	// backups says that snapshots of its etcd are taken.
	backups bool
}

// backupName is what each cluster's backup is called.
const backupName = "often"

type wantedMachine struct {
	m        *machine
	approved bool
	at       time.Time
}

func (c *wantedCluster) names() []string { return slices.Sorted(maps.Keys(c.machines)) }

// settings are the sysctls that every machine of the cluster should have.
func (c *wantedCluster) settings() map[string]string {
	s := map[string]string{}
	if c.live > 0 {
		s["vm.max_map_count"] = fmt.Sprint(c.live)
	}
	if c.spoiled != "" {
		s[c.spoiled] = "1"
	}
	return s
}

func (c *wantedCluster) patch() string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(c.settings())) {
		lines = append(lines, fmt.Sprintf("    %s: %q", key, c.settings()[key]))
	}
	text := "machine:\n  sysctls:\n    kernel.panic: \"10\"\n" + strings.Join(lines, "\n") + "\n"
	if c.reboot > 0 {
		text += fmt.Sprintf("  files:\n  - path: /var/soak\n    op: create\n    permissions: 0o644\n    content: \"%d\"\n", c.reboot)
	}
	return text
}

// files are the documents of the repository.
func (f *fleet) files() map[string]string {
	files := map[string]string{}
	for _, c := range f.clusters {
		folder := "clusters/" + c.c.name + "/"
		files[folder+"secrets.age"] = c.c.keys.Sealed
		files[folder+"all.yaml"] = c.patch()
		files[folder+"cluster.yaml"] = fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosCluster
metadata: {name: %s}
spec:
  id: %s
  endpoint: https://%s:6443
  talosVersion: v1.13.6
  kubernetesVersion: v1.36.2
  contract: v1.13
  controlPlane: {count: %d}
  secrets: {file: secrets.age}
  install: {disk: /dev/sda}
  rollout: {reboots: %s}
  patches:
    all: [{file: all.yaml}]
`, c.c.name, c.c.keys.ID, c.endpoint, c.count, c.reboots)
		if c.backups {
			files[folder+"backup.yaml"] = fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: %s}
spec:
  clusterRef: {name: %s}
  schedule: "*/10 * * * *"
  destination:
    s3: {endpoint: https://s3.example.com, region: eu-1, bucket: backups, prefix: %s}
  retention: {keepLast: %d}
`, backupName, c.c.name, c.c.name, keptSnapshots)
		}
		for _, name := range c.names() {
			m := c.machines[name]
			text := fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: %s}
spec:
  clusterRef: {name: %s}
  role: %s
  endpoint: %s
  uuid: %s
  hostname: %s
  approved: %t
`, name, c.c.name, m.m.role, m.m.ip, m.m.uuid, name, m.approved)
			if m.approved {
				text += fmt.Sprintf("  approvalDecision: {at: %s, by: alice@example.com}\n", m.at.UTC().Format(time.RFC3339))
			}
			files[folder+"machines/"+name+".yaml"] = text
		}
	}
	maps.Copy(files, f.operations)
	maps.Copy(files, f.bad)
	return files
}

// operationText is the file of an operation; body is its kind with what belongs to it.
func operationText(c *cluster, name string, created, expires time.Time, body string) string {
	return fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosOperation
metadata:
  name: %s
spec:
  clusterRef:
    name: %s
    id: %s
  createdAt: %s
  expiresAt: %s
%s`, name, c.name, c.keys.ID, created.UTC().Format(time.RFC3339), expires.UTC().Format(time.RFC3339), body)
}

func nodeBody(m *machine, action, more string) string {
	return fmt.Sprintf("  kind: node\n  node:\n    machineRef:\n      name: %s\n      uuid: %s\n    action: %s\n%s", m.name, m.uuid, action, more)
}

func namespace(c *cluster, override bool) string {
	if override {
		return "ichor-override@" + c.name
	}
	return "ichor-operation@" + c.name
}

// sign puts a signed operation into the fleet and lets the monitor know that it may be carried out.
func (r *run) sign(c *cluster, body string, override bool, life time.Duration) string {
	name, _ := r.signed(c, body, override, life)
	return name
}

func (r *run) signed(c *cluster, body string, override bool, life time.Duration) (name, digest string) {
	r.operationsMade++
	name = fmt.Sprintf("op-%d", r.operationsMade)
	now := time.Now()
	text := operationText(c, name, now.Add(-time.Second), now.Add(life), body)
	signature, err := operation.Sign([]byte(text), namespace(c, override), r.keys.alice)
	if err != nil {
		panic(err)
	}
	r.w.mu.Lock()
	digest = operation.Digest([]byte(text))
	r.w.monitor.signed[digest] = true
	r.w.mu.Unlock()
	r.fleet.operations["operations/"+name+".yaml"] = text
	r.fleet.operations["operations/"+name+".yaml.sig"] = string(signature)
	return name, digest
}

// forge puts an operation into the fleet that must not be carried out.
func (r *run) forge(c *cluster, body string, how int) string {
	r.operationsMade++
	name := fmt.Sprintf("op-%d", r.operationsMade)
	now := time.Now()
	created, expires, signer, space := now.Add(-time.Second), now.Add(time.Hour), r.keys.alice, namespace(c, false)
	said := ""
	switch how {
	case 0:
		signer, said = r.keys.mallory, "signed by one who may not"
	case 1:
		created, expires, said = now.Add(-2*time.Hour), now.Add(-time.Hour), "expired"
	case 2:
		space, said = "ichor-operation@elsewhere", "signed for another cluster"
	case 3:
		said = "changed after it was signed"
	default:
		said = "not signed"
	}
	text := operationText(c, name, created, expires, body)
	signature, err := operation.Sign([]byte(text), space, signer)
	if err != nil {
		panic(err)
	}
	if how == 3 {
		text = strings.Replace(text, "createdAt", "reason: more\n  createdAt", 1)
	}
	r.fleet.operations["operations/"+name+".yaml"] = text
	if how <= 3 {
		r.fleet.operations["operations/"+name+".yaml.sig"] = string(signature)
	}
	return name + ", " + said
}

// push puts what is meant into Git.
func (r *run) push(subject string) {
	files := r.fleet.files()
	r.w.mu.Lock()
	commit := r.w.git.push(r.w, subject, files)
	r.w.mu.Unlock()
	r.w.say("pushed %.16s: %s", commit, subject)
}

// wants says whether Git wants a machine of a role, approved.
func (c *wantedCluster) approved(role schema.Role) (names []string) {
	for _, name := range c.names() {
		if m := c.machines[name]; m.approved && m.m.role == role {
			names = append(names, name)
		}
	}
	return names
}
