package schema

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// refusal is a document that is refused. want is what the problem says, with line and column. structural is true where
// the JSON Schema must refuse the document too.
type refusal struct {
	name, document, want string
	structural           bool
}

func refusals() []refusal {
	cluster := func(old, with string) string { return edited(clusterYAML, old, with) }
	machine := func(old, with string) string { return edited(machineYAML, old, with) }
	backup := func(old, with string) string { return edited(backupYAML, old, with) }
	operation := func(old, with string) string { return edited(operationYAML, old, with) }
	policy := func(old, with string) string { return edited(policyYAML, old, with) }
	const structural = true
	return []refusal{
		// Names of fields.
		{"a misspelt field is named with the one that was meant", cluster("talosVersion:", "talosVerison:"),
			`8:3: spec has no field "talosVerison"; did you mean "talosVersion"?`, structural},
		{"a field in the wrong case is unknown", machine("role: c", "Role: c"), `8:3: spec has no field "Role"; did you mean "role"?`, structural},
		{"a field at the wrong depth is sent where it belongs", cluster("  controlPlane:\n    count: 3", "  count: 3\n  controlPlane:\n    count: 3"),
			`10:3: spec has no field "count"; it belongs to spec.controlPlane`, structural},
		{"a field like no other gets the list", machine("metadata:\n", "metadata:\n  zzzzzzzz: 1\n"),
			`4:3: metadata has no field "zzzzzzzz"; its fields are name, labels and annotations`, structural},
		{"an unknown field at the top is unknown", machineYAML + "status: {}\n", `11:1: the document has no field "status"; its fields are apiVersion, kind, metadata and spec`, structural},
		{"a field that is given twice is refused with its first line", machineYAML + "  role: worker\n", `11:3: spec.role is given twice; the first is in line 8`, false},
		{"a label that is given twice is refused", machine("name: cp-1", "name: cp-1\n  labels: {a: x, a: y}"), `5:18: metadata.labels.a is given twice; the first is in line 5`, false},
		{"a key that isn't a text is refused", machine("name: cp-1", "name: cp-1\n  ? [a]\n  : b"), `5:5: a field's name in metadata must be a text, not a list`, false},
		// Missing fields.
		{"a missing name is named", machine("name: cp-1", "labels: {}"), `3:1: metadata.name is missing; it must be lower-case letters`, structural},
		{"a missing spec is named", strings.Split(machineYAML, "spec:")[0], `1:1: spec is missing; what belongs to it stands below it, indented: clusterRef, role, endpoint and uuid`, structural},
		{"an empty spec misses everything", strings.Split(machineYAML, "spec:")[0] + "spec: {}\n", `5:1: spec.clusterRef is missing`, structural},
		{"a null spec says what belongs to it", strings.Split(machineYAML, "spec:")[0] + "spec:\n", `5:1: spec is empty; what belongs to it stands below it, indented: clusterRef, role, endpoint and uuid`, structural},
		{"what belongs below a field stands beside it", machine("clusterRef:\n    name", "clusterRef:\n  name"), `6:3: spec.clusterRef is empty; what belongs to it stands below it, indented: name`, structural},
		{"an empty scalar says what it must be", machine("uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732", "uuid:"), `10:3: spec.uuid is empty; it must be a UUID`, structural},
		{"a destination without S3 is refused", backup("s3:\n      endpoint: https://s3.example.com\n      bucket: backups", "{}"), `8:3: spec.destination.s3 is missing`, structural},
		// Types.
		{"a text where a number is due", cluster("count: 3", `count: "3"`), `11:12: spec.controlPlane.count must be a whole number, not a text of 1 character; write it without quotes`, structural},
		{"a fraction where a whole number is due", cluster("count: 3", "count: 3.5"), `11:12: spec.controlPlane.count must be a whole number, not the number 3.5`, structural},
		{"an octal number is no count", cluster("count: 3", "count: 0o3"), `11:12: spec.controlPlane.count must be a whole number, not the number 0o3`, false},
		{"a number where a text is due", cluster("talosVersion: v1.13.6", "talosVersion: 1.13"), `8:17: spec.talosVersion must be a text, not the number 1.13; it must be a full version with its v, as in v1.13.6`, structural},
		{"a truth value where a text is due", machine("name: cp-1", "name: true"), `4:9: metadata.name must be a text, not true; put it in quotes`, structural},
		{"yes is a text, not a truth value", machineYAML + "  approved: yes\n", `11:13: spec.approved must be true or false, not a text of 3 characters; write true, without quotes`, false},
		{"a truth value in quotes", machineYAML + "  approved: \"false\"\n", `11:13: spec.approved must be true or false, not a text of 5 characters; write false, without quotes`, structural},
		{"a text that is no truth value gets no hint", machineYAML + "  approved: CANARY\n", `11:13: spec.approved must be true or false, not a text of 6 characters`, structural},
		{"a list where a mapping is due", cluster("  secrets:\n    file: secrets.age", "  secrets: [secrets.age]"), `12:12: spec.secrets must be a mapping, not a list; write it as in {file: secrets.age}`, structural},
		{"a text where a mapping is due isn't shown, since it may be a secret", cluster("  secrets:\n    file: secrets.age", "  secrets: AGE-SECRET-KEY-1CANARY"),
			`12:12: spec.secrets must be a mapping, not a text of 22 characters; write it as in {file: secrets.age}`, structural},
		{"a cluster's name where a mapping is due", machine("clusterRef:\n    name: prod", "clusterRef: prod"), `6:15: spec.clusterRef must be a mapping, not a text of 4 characters; write it as in {name: prod}`, structural},
		{"fields with dashes where a mapping is due", cluster("    count: 3", "  - count: 3"), `11:3: spec.controlPlane must be a mapping, not a list; write its fields without dashes`, structural},
		{"a mapping where a list is due", machineYAML + "  taints: {a: b}\n", `11:11: spec.taints must be a list, not a mapping; begin each item with a dash`, structural},
		{"a text where a list is due", clusterYAML + "  network: {podSubnets: 10.244.0.0/16}\n", `14:25: spec.network.podSubnets must be a list, not a text of 13 characters; write it in brackets`, structural},
		{"a taint as Kubernetes writes it", machineYAML + "  taints: [{key: a, effect: NoSchedule}]\n", `11:12: spec.taints[0] must be a text, not a mapping; it must be key=value:Effect`, structural},
		{"a mapping where a text is due", machine("endpoint: 10.0.0.11", "endpoint: {host: a}"), `9:13: spec.endpoint must be a text, not a mapping; it must be an IP address or DNS name`, structural},
		{"an empty item in a list", machineYAML + "  taints:\n  -\n", `12:4: spec.taints[0] is empty; leave it out`, structural},
		{"an annotation that isn't a text", machine("name: cp-1", "name: cp-1\n  annotations: {ichor.maesh.dev/paused: true}"), `5:41: metadata.annotations.ichor.maesh.dev/paused must be a text, not true; put it in quotes`, structural},
		{"a document that is a list", "- a\n", `1:1: the document is a list, not one of Ichor's kinds`, structural},
		{"a tag", machine("name: cp-1", "name: !secret cp-1"), `4:9: metadata.name bears the tag "!secret", and tags are not read; leave it out`, false},
		{"a binary value in a patch", machineYAML + "  patches: [{inline: {a: !!binary aGVsbG8=}}]\n", `11:26: spec.patches[0].inline.a bears the tag "!!binary", and tags are not read; leave it out`, false},
		{"a number that no config can hold", machineYAML + "  patches: [{inline: {a: .inf}}]\n", `11:26: spec.patches[0].inline.a is ".inf", which no config can hold`, false},
		{"a merge key with a text", machineYAML + "  <<: x\n", `11:7: the merge key << in spec takes a mapping or a list of them, not a text of 1 character`, false},
		{"a merge key with a list of texts", machineYAML + "  <<: [x]\n", `11:8: the merge key << in spec takes a mapping or a list of them, not a text of 1 character`, false},
		// Values.
		{"a name with a capital", machine("name: cp-1", "name: CP-1"), `4:9: metadata.name is "CP-1"; it must be lower-case letters, digits and "-"`, structural},
		{"a name of 64 letters", machine("name: cp-1", "name: "+strings.Repeat("a", 64)), `4:9: metadata.name is`, structural},
		{"a name with a terminal escape is shown without it", machine("name: cp-1", `name: "cp\e[31m1"`), `4:9: metadata.name is "cp1"; it must be`, structural},
		{"a role that doesn't exist", machine("role: controlplane", "role: control-plane"), `8:9: spec.role is "control-plane"; it must be controlplane or worker; did you mean "controlplane"?`, structural},
		{"a role in another case", machine("role: controlplane", "role: Worker"), `it must be controlplane or worker; did you mean "worker"?`, structural},
		{"an even number of control planes", cluster("count: 3", "count: 2"), `11:12: spec.controlPlane.count is 2; it must be 1, 3 or 5`, structural},
		{"no control plane", cluster("count: 3", "count: 0"), `11:12: spec.controlPlane.count is 0; it must be 1, 3 or 5`, structural},
		{"a cluster ID that is too short", cluster("id: 1f3a9c0d2b4e6f78", "id: 1f3a"), `6:7: spec.id is "1f3a"; it must be 16 lower-case hex digits`, structural},
		{"a cluster ID of digits without quotes", cluster("id: 1f3a9c0d2b4e6f78", "id: 1234567890123456"), `6:7: spec.id must be a text, not the number 1234567890123456; put it in quotes`, structural},
		{"an endpoint that isn't a URL", cluster("https://10.0.0.10:6443", "10.0.0.10:6443"), `7:13: spec.endpoint is "10.0.0.10:6443"; it must be an https URL`, structural},
		{"an endpoint with a path", cluster("https://10.0.0.10:6443", "https://10.0.0.10:6443/api"), `it must be an https URL without a path`, structural},
		{"an endpoint with a port that isn't one", cluster("https://10.0.0.10:6443", "https://10.0.0.10:66443"), `its port must be between 1 and 65535`, false},
		{"an endpoint with an empty port", cluster("https://10.0.0.10:6443", "'https://10.0.0.10:'"), `its port is missing after the colon`, false},
		{"an endpoint with a number too great", cluster("https://10.0.0.10:6443", "https://10.0.0.310:6443"), `it is not an IP address; each of its four numbers is at most 255`, false},
		{"an endpoint with a broken name", cluster("https://10.0.0.10:6443", "https://a_b.example.com"), `its host is neither an IP address nor a DNS name`, false},
		{"an IPv6 endpoint without brackets", machine("endpoint: 10.0.0.11", "endpoint: fd00::11:50000x"), `an IPv6 address with a port stands in brackets`, false},
		{"an endpoint that is everybody's", machine("endpoint: 10.0.0.11", "endpoint: 0.0.0.0"), `0.0.0.0 is no machine's address`, false},
		{"a machine's endpoint as a URL", machine("endpoint: 10.0.0.11", "endpoint: https://10.0.0.11"), `9:13: spec.endpoint is "https://10.0.0.11"; it must be an IP address or DNS name`, structural},
		{"a UUID without marks", machine("4c4c4544-0039-3510-8052-b4c04f4e3732", "4c4c454400393510-8052b4c04f4e3732"), `it must be a UUID, as in`, structural},
		{"the UUID of all zeros is refused by name", machine("4c4c4544-0039-3510-8052-b4c04f4e3732", "00000000-0000-0000-0000-000000000000"), `10:9: spec.uuid is "00000000-0000-0000-0000-000000000000"; all zeros is what boards without a UUID report`, false},
		{"the UUID of all F is refused by name", machine("4c4c4544-0039-3510-8052-b4c04f4e3732", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"), `all F is what boards without a UUID report`, false},
		{"a firmware maker's placeholder is refused by name", machine("4c4c4544-0039-3510-8052-b4c04f4e3732", "03000200-0400-0500-0006-000700080009"), `it is a firmware maker's placeholder that many boards share`, false},
		{"a version without its v", cluster("v1.13.6", "1.13.6"), `8:17: spec.talosVersion is "1.13.6"; it must be a full version with its v`, structural},
		{"a version without its patch", cluster("v1.36.2", "v1.36"), `it must be a full version with its v, as in v1.13.6`, structural},
		{"a contract with a patch", clusterYAML + "  contract: v1.13.6\n", `it must be major and minor of a Talos version, as in v1.13`, structural},
		{"an image with a tag", clusterYAML + "  install: {image: \"ghcr.io/siderolabs/installer:v1.13.6\"}\n", `it must be an image without tag or digest`, structural},
		{"an image with a digest", clusterYAML + "  install: {image: \"ghcr.io/siderolabs/installer@sha256:00\"}\n", `it must be an image without tag or digest`, structural},
		{"a disk that is no device", clusterYAML + "  install: {disk: sda}\n", `it must be a device, as in /dev/sda`, structural},
		{"a disk with a detour", clusterYAML + "  install: {disk: /dev/disk/../sda}\n", `it must be written without detours, as /dev/sda`, false},
		{"a network that doesn't begin at its first address", clusterYAML + "  network: {podSubnets: [10.244.0.1/16]}\n", `14:26: spec.network.podSubnets[0] is "10.244.0.1/16"; it has bits set beyond its length; did you mean 10.244.0.0/16?`, false},
		{"a network without a length", clusterYAML + "  network: {podSubnets: [10.244.0.0]}\n", `it must be a network, as in 10.244.0.0/16`, structural},
		{"a CNI that Talos doesn't bring", clusterYAML + "  network: {cni: cilium}\n", `it must be flannel or none`, structural},
		{"a share of more than all", clusterYAML + "  rollout: {maxUnavailableWorkers: 101%}\n", `it must be 1 or more, or between 1% and 100%`, structural},
		{"a share of nothing", clusterYAML + "  rollout: {maxUnavailableWorkers: 0}\n", `it must be 1 or more, or between 1% and 100%`, structural},
		{"a duration without a unit", clusterYAML + "  rollout: {drain: {timeout: 10}}\n", `14:30: spec.rollout.drain.timeout is "10"; it must be a duration with its unit`, structural},
		{"a duration of nothing", clusterYAML + "  rollout: {drain: {timeout: 0s}}\n", `it must be more than zero`, false},
		{"a duration that never ends", clusterYAML + "  rollout: {drain: {timeout: 10000h}}\n", `it must be at most a year`, false},
		{"a reboot policy that doesn't exist", clusterYAML + "  rollout: {reboots: auto}\n", `it must be automatic, window or manual`, structural},
		{"a schedule of six fields", backup("destination:", "schedule: \"0 0 * * * *\"\n  destination:"), `it must be five cron fields in UTC`, structural},
		{"a schedule by name", backup("destination:", "schedule: \"@hourly\"\n  destination:"), `it must be five cron fields in UTC`, structural},
		{"a schedule with a zone", backup("destination:", "schedule: \"TZ=Europe/Berlin 0 * * * *\"\n  destination:"), `it must be five cron fields in UTC`, structural},
		{"a schedule out of range", backup("destination:", "schedule: \"61 * * * *\"\n  destination:"), `spec.schedule is "61 * * * *"; it doesn't parse: end of range (61) above maximum (59)`, false},
		{"a schedule that no day meets", backup("destination:", "schedule: \"0 0 30 2 *\"\n  destination:"), `no day ever meets it`, false},
		{"a fingerprint that is cut off", machineYAML + "  fingerprint: 47DEQpj8HBSa\n", `it must be base64 of a SHA-256 (44 characters)`, structural},
		{"a fingerprint with bits too many", machineYAML + "  fingerprint: 47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFV=\n", `it is not base64; copy it whole`, false},
		{"a taint without an effect", machineYAML + "  taints: [dedicated=gpu]\n", `11:12: spec.taints[0] is "dedicated=gpu"; it must be key=value:Effect`, structural},
		{"a taint that is given twice", machineYAML + "  taints: [\"a=b:NoExecute\", \"a=b:NoExecute\"]\n", `spec.taints[1] repeats "a=b:NoExecute"; leave it out`, false},
		{"a label's key with a blank", machineYAML + "  labels: {\"a b\": c}\n", `11:12: the key "a b" in spec.labels can't stand; it must be a Kubernetes label key`, structural},
		{"a label's value with a slash", machineYAML + "  labels: {a: b/c}\n", `11:15: spec.labels.a is "b/c"; it must be empty, or letters`, structural},
		{"a host name with a capital", machineYAML + "  hostname: CP-1\n", `it must be a DNS name in lower case`, structural},
		{"a time without a zone", machineYAML + "  approvalDecision: {at: 2026-11-29T10:00:00}\n", `11:26: spec.approvalDecision.at is "2026-11-29T10:00:00"; it must be a time with its zone`, structural},
		{"a day is no time", machineYAML + "  approvalDecision: {at: 2026-11-29}\n", `it must be a time with its zone`, structural},
		{"a bucket that can't be", backup("bucket: backups", "bucket: My_Bucket"), `it must be a bucket's name`, structural},
		{"a prefix that ends with a slash", backup("bucket: backups", "bucket: backups\n      prefix: prod/"), `it must be folders divided by single slashes`, structural},
		{"a prefix that climbs", backup("bucket: backups", "bucket: backups\n      prefix: a/../b"), `".." in it is no folder's name`, false},
		{"an S3 endpoint without a scheme", backup("https://s3.example.com", "s3.example.com"), `it must be an http or https URL`, structural},
		{"an S3 endpoint with credentials in it", backup("https://s3.example.com", "https://key:secret@s3.example.com"), `it must be an http or https URL`, structural},
		{"a negative retention", backupYAML + "  retention: {keepLast: -1}\n", `12:25: spec.retention.keepLast is -1; it must be 0 or more`, structural},
		{"a retention of nothing", backupYAML + "  retention: {keepLast: 0}\n", `12:25: spec.retention keeps nothing`, false},
		// References.
		{"a reference that leaves the repository", cluster("file: secrets.age", "file: ../secrets.age"), `13:11: spec.secrets.file: "../secrets.age" leaves the repository`, false},
		{"a reference from the root of the machine", cluster("file: secrets.age", "file: /etc/passwd"), `it must be a path relative to the file it stands in`, structural},
		{"a reference with backslashes", cluster("file: secrets.age", `file: 'a\b'`), `it must be a path relative to the file it stands in`, structural},
		{"a reference into Git's own folder", cluster("file: secrets.age", "file: .git/config"), `is Git's own folder`, false},
		{"an empty reference", cluster("file: secrets.age", `file: ""`), `it must be a path relative to the file it stands in`, structural},
		{"a reference to the folder", cluster("file: secrets.age", `file: "."`), `is a folder, not a file`, false},
		// Fields that must agree.
		{"a patch that is a file and inline", machineYAML + "  patches: [{file: a.yaml, inline: {}}]\n", `11:13: spec.patches[0] has both file and inline`, structural},
		{"a patch that is neither", machineYAML + "  patches: [{}]\n", `11:13: spec.patches[0] has neither file nor inline`, structural},
		{"a machine's disk and selector", machineYAML + "  install: {disk: /dev/sda, diskSelector: {type: ssd}}\n", `spec.install has both disk and diskSelector`, structural},
		{"a selector that matches all", machineYAML + "  install: {diskSelector: {}}\n", `spec.install.diskSelector is empty, and would match any disk`, false},
		{"a cluster's ID on a machine", machine("name: prod", "name: prod\n    id: 1f3a9c0d2b4e6f78"), `8:9: spec.clusterRef.id is for operations only; leave it out`, structural},
		{"an annotation of ours that doesn't exist", machine("name: cp-1", "name: cp-1\n  annotations: {ichor.maesh.dev/pause: moving}"), `5:40: there is no annotation "ichor.maesh.dev/pause"; did you mean "ichor.maesh.dev/paused"?`, false},
		{"a cluster whose folder would be that of the leases", cluster("name: prod", "name: leases"), `a cluster can't be named leases`, false},
		{"a pause without a reason", machine("name: cp-1", "name: cp-1\n  annotations: {ichor.maesh.dev/paused: \" \"}"), `metadata.annotations.ichor.maesh.dev/paused gives no reason`, false},
		// Operations.
		{"an operation without the cluster's ID", operation(", id: 1f3a9c0d2b4e6f78", ""), `6:3: spec.clusterRef.id is missing`, structural},
		{"an operation without its body", strings.Split(operationYAML, "  node:")[0], `7:9: spec.kind is node, and spec.node is missing`, structural},
		{"an operation with another's body", operationYAML + "  adopt: {machineRef: {name: a, uuid: 4c4c4544-0039-3510-8052-b4c04f4e3733}}\n", `13:3: spec.adopt doesn't belong to spec.kind node; leave it out`, structural},
		{"an operation that isn't built yet", operation("kind: node", "kind: ca-rotation"), `7:9: spec.kind is "ca-rotation"; that isn't built yet (not-yet)`, structural},
		{"an operation that waits too long", operation("2026-11-30T10", "2026-12-06T11"), `9:14: spec.expiresAt is 169h0m0s after spec.createdAt, and an operation waits at most 7 days`, false},
		{"an operation that is over before it begins", operation("2026-11-30T10", "2026-11-29T10"), `spec.expiresAt is not after spec.createdAt`, false},
		{"a removal that waits over a day", edited(operation("action: reboot", "action: remove\n    confirm: w-1"), "2026-11-30T10", "2026-11-30T11"), `spec.expiresAt is 25h0m0s after spec.createdAt, and an operation that needs the override namespace waits at most 24 hours`, false},
		{"a removal that isn't confirmed", operation("action: reboot", "action: remove"), `12:13: spec.node.confirm is missing`, false},
		{"a removal that confirms another machine", operation("action: reboot", "action: remove\n    confirm: w-2"), `13:14: spec.node.confirm is "w-2", and the machine is "w-1"`, false},
		{"a machine that is gone does nothing then", operation("action: reboot", "action: remove\n    confirm: w-1\n    gone: true\n    then: reboot"), `spec.node.then says what the machine does, and spec.node.gone that it is off for good`, false},
		{"a reboot with a service", operation("action: reboot", "action: reboot\n    service: kubelet"), `13:14: spec.node.service is for action restart-service, and the action is reboot; leave it out`, false},
		{"a restart without a service", operation("action: reboot", "action: restart-service"), `spec.node.service is missing; it must be kubelet, containerd or cri`, false},
		{"a restart of a service that isn't allowed", operation("action: reboot", "action: restart-service\n    service: etcd"), `it must be kubelet, containerd or cri`, structural},
		{"an action that doesn't exist", operation("action: reboot", "action: restart"), `12:13: spec.node.action is "restart"; it must be reboot, shutdown, restart-service`, structural},
		{"a restore that confirms another cluster", edited(restoreYAML(), "confirm: prod", "confirm: staging"), `spec.etcdRestore.confirm is "staging", and the cluster is "prod"`, false},
		{"a restore without control planes", edited(restoreYAML(), "{cp-1: 4c4c4544-0039-3510-8052-b4c04f4e3732}", "{}"), `spec.etcdRestore.controlPlanes is empty`, false},
		{"a restore with a control plane that is on and off", restoreYAML() + "    without: {cp-1: 4c4c4544-0039-3510-8052-b4c04f4e3732}\n", `spec.etcdRestore.without.cp-1 also stands in spec.etcdRestore.controlPlanes`, false},
		{"a restore of a day that doesn't exist", edited(restoreYAML(), "20261129T090000Z", "20261131T090000Z"), `its date or time doesn't exist`, false},
		{"a restore with a digest in capitals", edited(restoreYAML(), "e3b0c4", "E3B0C4"), `it must be a SHA-256 as 64 lower-case hex digits`, structural},
		{"a restore that accepts something else", restoreYAML() + "    localDataLoss: sure\n", `it must be accepted`, structural},
		// Policies.
		{"a policy without rules", strings.Split(policyYAML, "  rules:")[0] + "  rules: []\n", `6:3: spec.rules is empty`, false},
		{"two rules of one name", policyYAML + "  - {name: prod-is-ha, scope: machine, expr: \"true\", message: \"''\"}\n", `11:12: spec.rules[1].name is "prod-is-ha", as spec.rules[0].name is`, false},
		{"a rule of no scope", policy("scope: cluster", "scope: fleet"), `it must be cluster, machine, backup or operation`, structural},
		{"a rule without an expression", policy(`expr: "self.spec.controlPlane.count >= 3"`, `expr: " "`), `it must be a CEL expression`, structural},
		// Kinds.
		{"a misspelt kind", machine("kind: TalosMachine", "kind: TalosMachin"), `2:7: there is no kind "TalosMachin"; did you mean "TalosMachine"?`, structural},
		{"a kind like no other", machine("kind: TalosMachine", "kind: Deployment"), `2:7: there is no kind "Deployment"; the kinds are TalosCluster, TalosMachine`, structural},
		{"a missing kind", machine("kind: TalosMachine\n", ""), `1:1: kind is missing; it must be TalosCluster, TalosMachine`, structural},
		{"another version", machine("v1alpha1", "v1"), `1:13: apiVersion is "ichor.maesh.dev/v1"; the only one that is read is ichor.maesh.dev/v1alpha1`, structural},
		{"a misspelt group", machine("ichor.maesh.dev/", "ichor.mesh.dev/"), `1:13: apiVersion is "ichor.mesh.dev/v1alpha1"; the only one that is read is`, structural},
		{"a missing apiVersion", machine("apiVersion: ichor.maesh.dev/v1alpha1\n", ""), `1:1: apiVersion is missing; write apiVersion: ichor.maesh.dev/v1alpha1`, structural},
		{"a missing apiVersion and a misspelt kind", edited(machine("apiVersion: ichor.maesh.dev/v1alpha1\n", ""), "TalosMachine", "Talosmachine"), `1:1: apiVersion is missing`, structural},
		{"a Kubernetes object", "apiVersion: apps/v1\nkind: Deployment\n", `1:1: apiVersion "apps/v1", kind "Deployment" is not one of Ichor's kinds; if it is a Talos patch, name its file in a list of patches; else leave it out with .ichorignore`, structural},
		{"a Talos patch that nothing refers to", "machine: {}\n", `1:1: the document has neither apiVersion nor kind`, structural},
	}
}

func restoreYAML() string {
	return strings.Split(operationYAML, "  kind:")[0] + `  kind: etcd-restore
  createdAt: 2026-11-29T10:00:00Z
  expiresAt: 2026-11-30T10:00:00Z
  etcdRestore:
    backupRef: {name: hourly}
    snapshot: {name: etcd-20261129T090000Z.snapshot.age, sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
    confirm: prod
    controlPlanes: {cp-1: 4c4c4544-0039-3510-8052-b4c04f4e3732}
`
}

func TestWhatCannotBeReadIsSaidWithItsPlace(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range refusals() {
		require.False(t, seen[c.name], "two cases are called %q", c.name)
		seen[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			fleet, problems := loadAll(map[string]string{"a.yaml": c.document})
			got := lines(problems)
			for _, want := range strings.Split(c.want, "\n") {
				require.Contains(t, strings.NewReplacer(" [prod]", "", " []", "").Replace(got), want)
			}
			for _, p := range problems {
				require.NotZero(t, p.Line, "a problem in a document has a line")
				require.NotContains(t, p.Message, "CANARY")
			}
			require.Zero(t, len(fleet.Clusters)+len(fleet.Machines)+len(fleet.Backups)+len(fleet.Operations)+len(fleet.Policies),
				"what has a problem is not in the fleet")
		})
	}
}

func TestAllProblemsOfADocumentAreShownAtOnce(t *testing.T) {
	document := edited(edited(edited(machineYAML, "role: controlplane", "role: boss"), "endpoint: 10.0.0.11", "endpoint: ''"), "uuid: 4c4c", "uiid: 4c4c")
	_, problems := loadAll(map[string]string{"c.yaml": clusterYAML, "m.yaml": document})
	require.Equal(t, `m.yaml:8:9: [prod] spec.role is "boss"; it must be controlplane or worker
m.yaml:9:13: [prod] spec.endpoint is ""; it must be an IP address or DNS name, with a port or without, as in 10.0.0.11 or [fd00::11]:50000
m.yaml:10:3: [prod] spec has no field "uiid"; did you mean "uuid"?
`, lines(problems))
	require.Equal(t, "TalosMachine", problems[0].Kind)
	require.Equal(t, "cp-1", problems[0].Name)
}

func TestOneMistakeIsOneProblem(t *testing.T) {
	for name, c := range map[string]struct{ document, want string }{
		"a misspelt field is not missing too": {edited(machineYAML, "uuid:", "uiid:"), `10:3: [] spec has no field "uiid"; did you mean "uuid"?`},
		"a patch that is a text is not without file and inline too": {machineYAML + "  patches: [a.yaml]\n",
			"11:13: [] spec.patches[0] must be a mapping, not a text of 6 characters; write it as in file: patches/time.yaml"},
		"a second document without its marker": {machineYAML + machineYAML, "11:1: [] another document seems to begin here; put --- on a line of its own before it"},
		"a marker without its line break":      {machineYAML + "---" + machineYAML, "11:1: [] another document seems to begin here; put --- on a line of its own before it"},
	} {
		_, problems := loadAll(map[string]string{"m.yaml": c.document})
		require.Equal(t, "m.yaml:"+c.want+"\n", lines(problems), name)
	}
}

func TestManyProblemsOfADocumentAreCounted(t *testing.T) {
	_, problems := loadAll(map[string]string{"m.yaml": machineYAML + "  taints: [" + strings.Repeat("x, ", 100) + "]\n"})
	require.Len(t, problems, maxProblems+1)
	require.Contains(t, lines(problems), "m.yaml:1:1: [] 80 more problems in this document are not listed")
}
