package schema

import (
	"maps"
	"slices"
	"time"
)

// The longest time that an operation may wait for its start. An override wipes or rewinds, and must not lie around.
const (
	maxOperationAge = 7 * 24 * time.Hour
	maxOverrideAge  = 24 * time.Hour
)

func (d *decoder) checkOperation(spec OperationSpec) {
	if !d.has("spec.clusterRef.id") && d.has("spec.clusterRef") {
		d.problem(d.at("spec.clusterRef"), "spec.clusterRef.id is missing; it is the cluster's spec.id, so that the operation can reach no other")
	}
	d.checkBody(spec)
	d.checkTimes(spec)
	if spec.Node != nil {
		d.checkNode(*spec.Node)
	}
	if spec.EtcdRestore != nil {
		d.checkRestore(*spec.EtcdRestore)
		d.checkConfirm("spec.etcdRestore.confirm", spec.EtcdRestore.Confirm, spec.ClusterRef.Name)
	}
	if spec.Bootstrap != nil {
		d.checkConfirm("spec.bootstrap.confirm", spec.Bootstrap.Confirm, spec.ClusterRef.Name)
	}
}

// checkConfirm holds that the confirmation is the cluster's name.
func (d *decoder) checkConfirm(at, confirm, cluster string) {
	if confirm != "" && cluster != "" && confirm != cluster {
		d.problem(d.at(at), "%s is %s, and the cluster is %s; they must be the same", at, shown(confirm), shown(cluster))
	}
}

// checkBody holds that exactly the body that belongs to the kind is present.
func (d *decoder) checkBody(spec OperationSpec) {
	body := spec.Kind.Body()
	if body == "" {
		return // the kind has a problem of its own
	}
	if !d.has("spec." + body) {
		d.problem(d.at("spec.kind"), "spec.kind is %s, and spec.%s is missing", spec.Kind, body)
	}
	for _, other := range []OperationKind{OperationNode, OperationEtcdBackup, OperationEtcdRestore, OperationAdopt,
		OperationBootstrap, OperationResume, OperationCancel} {
		if other != spec.Kind && d.has("spec."+other.Body()) {
			d.problem(d.at("spec."+other.Body()), "spec.%s doesn't belong to spec.kind %s; leave it out", other.Body(), spec.Kind)
		}
	}
}

func (d *decoder) checkTimes(spec OperationSpec) {
	if spec.CreatedAt.IsZero() || spec.ExpiresAt.IsZero() {
		return
	}
	age, most, why := spec.ExpiresAt.Sub(spec.CreatedAt), maxOperationAge, "an operation waits at most 7 days"
	if spec.NeedsOverride() {
		most, why = maxOverrideAge, "an operation that needs the override namespace waits at most 24 hours"
	}
	at := d.at("spec.expiresAt")
	switch {
	case age <= 0:
		d.problem(at, "spec.expiresAt is not after spec.createdAt")
	case age > most:
		d.problem(at, "spec.expiresAt is %s after spec.createdAt, and %s", age, why)
	}
}

func (d *decoder) checkNode(node NodeOperation) {
	if node.Action == "" {
		return // it has a problem of its own
	}
	only := func(field, action string) {
		if at := "spec.node." + field; node.Action != action && d.has(at) {
			d.problem(d.at(at), "%s is for action %s, and the action is %s; leave it out", at, action, node.Action)
		}
	}
	only("service", ActionRestartService)
	only("allowLeader", ActionEtcdDefrag)
	only("gone", ActionRemove)
	only("then", ActionRemove)
	only("confirm", ActionRemove)
	if node.Action == ActionRestartService && !d.has("spec.node.service") {
		d.problem(d.at("spec.node.action"), "spec.node.service is missing; it must be kubelet, containerd or cri")
	}
	if node.Action != ActionRemove {
		return
	}
	switch name := node.MachineRef.Name; {
	case !d.has("spec.node.confirm"):
		d.problem(d.at("spec.node.action"), "spec.node.confirm is missing; it must be the machine's name, because remove wipes it")
	case name != "" && node.Confirm != "" && node.Confirm != name:
		d.problem(d.at("spec.node.confirm"), "spec.node.confirm is %s, and the machine is %s; they must be the same", shown(node.Confirm), shown(name))
	}
	if node.Gone && d.has("spec.node.then") {
		d.problem(d.at("spec.node.then"), "spec.node.then says what the machine does, and spec.node.gone that it is off for good; leave one out")
	}
}

func (d *decoder) checkRestore(restore RestoreOperation) {
	if d.has("spec.etcdRestore.controlPlanes") && len(restore.ControlPlanes) == 0 {
		d.problem(d.at("spec.etcdRestore.controlPlanes"), "spec.etcdRestore.controlPlanes is empty; name those that you saw, with their UUIDs")
	}
	for _, name := range slices.Sorted(maps.Keys(restore.Without)) {
		if restore.ControlPlanes[name] != "" {
			at := join("spec.etcdRestore.without", name)
			d.problem(d.at(at), "%s also stands in spec.etcdRestore.controlPlanes; a control plane is restored or off for good, not both", at)
		}
	}
}
