package plan

import "ichor.maesh.dev/validate"

// Report is a whole plan. Its JSON form is stable.
type Report struct {
	// Base is the commit that the change is meant for, empty when there is none.
	Base string `json:"base"`
	// Live says that the machines were looked at.
	Live bool `json:"live"`
	// Refused says that a rule refuses the change, Changes that something would happen.
	Refused bool   `json:"refused"`
	Changes bool   `json:"changes"`
	Summary string `json:"summary"`
	// Notes are what the plan takes for granted.
	Notes    []string           `json:"notes"`
	Findings []validate.Finding `json:"findings"`
	Clusters []Cluster          `json:"clusters"`
}

// Cluster is what would happen to one cluster.
type Cluster struct {
	Name string `json:"name"`
	// Change is new, changed, removed or same.
	Change string `json:"change"`
	// Refused are the rules that keep the cluster on its former revision; then nothing is planned.
	Refused []string `json:"refused"`
	// Reason and Message are what the status of the cluster would say in the end.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Counts  Counts `json:"counts"`
	// Steps are the calls that the agent makes and what follows from them, in that order.
	Steps      []Step      `json:"steps"`
	Machines   []Machine   `json:"machines"`
	Reboots    []Reboot    `json:"reboots"`
	Etcd       Etcd        `json:"etcd"`
	Backups    []Document  `json:"backups"`
	Operations []Operation `json:"operations"`
	Notes      []string    `json:"notes"`
}

// Counts count machines by what happens to them.
type Counts struct {
	FirstConfig int `json:"firstConfig"`
	Live        int `json:"live"`
	Reboot      int `json:"reboot"`
	Waiting     int `json:"waiting"`
	Unknown     int `json:"unknown"`
	Unmanaged   int `json:"unmanaged"`
	Nothing     int `json:"nothing"`
}

// Outcome is what happens to a machine.
type Outcome string

// The outcomes.
const (
	OutcomeNothing     Outcome = "nothing"      // it stays as it is
	OutcomeFirstConfig Outcome = "first-config" // it gets its first config and Talos is installed
	OutcomeLive        Outcome = "live"         // its config changes without a reboot
	OutcomeReboot      Outcome = "reboot"       // its config changes at its next boot
	OutcomeWaiting     Outcome = "waiting"      // something keeps it from being changed: Reason says what
	OutcomeUnknown     Outcome = "unknown"      // it can't be told from here
	OutcomeUnmanaged   Outcome = "unmanaged"    // it is no longer in Git, and runs on as it is
)

// Machine is what happens to one machine.
type Machine struct {
	Name    string  `json:"name"`
	Role    string  `json:"role"`
	Address string  `json:"address"`
	Outcome Outcome `json:"outcome"`
	// Reason and Message are what the status of the machine would say in the end.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Diff is how its config changes, secrets hidden; empty for a first config and where nothing changes.
	Diff string `json:"diff"`
	// RebootBecause are the fields that Talos can't change while it runs.
	RebootBecause string `json:"rebootBecause"`
	// Upgrade are versions that Git wants and that no config change brings.
	Upgrade string `json:"upgrade"`
	// Live is what the machine showed; null without a look.
	Live *Live `json:"live"`
}

// Live is what a machine showed when it was looked at.
type Live struct {
	Mode         string `json:"mode"`
	Stage        string `json:"stage"`
	Ready        bool   `json:"ready"`
	TalosVersion string `json:"talosVersion"`
	Problem      string `json:"problem"`
	// DryRun is ok, refused, unknown or not-sent, and DryRunMessage says why where it isn't ok.
	DryRun        string `json:"dryRun"`
	DryRunMessage string `json:"dryRunMessage"`
}

// Step is one call of the agent, or what a machine does by itself.
type Step struct {
	// Action is as in the state's intents (first-config, config-try, config-confirm, config-stage, bootstrap, remove-member,
	// reset-ephemeral, reboot), or join.
	Action  string `json:"action"`
	Machine string `json:"machine"`
	Via     string `json:"via"`
	// Sentence says it in words; Refused why the gate would not make the call.
	Sentence string `json:"sentence"`
	Refused  string `json:"refused"`
}

// Reboot is a machine that reboots, or has to.
type Reboot struct {
	Machine string `json:"machine"`
	// When is now (the agent does it) or waiting (somebody has to).
	When    string `json:"when"`
	Because string `json:"because"`
	// Message says what it waits for, and what happens to etcd meanwhile.
	Message string `json:"message"`
	// Drain is how long the node may take to be drained before it.
	Drain string `json:"drain"`
}

// Etcd is what happens to the members of etcd.
type Etcd struct {
	Bootstrap string   `json:"bootstrap"`
	Joins     []string `json:"joins"`
	Removed   []string `json:"removed"`
	Members   []string `json:"members"`
}

// Document is a backup that is new, changed or removed.
type Document struct {
	Name     string `json:"name"`
	Change   string `json:"change"`
	Sentence string `json:"sentence"`
}

// Operation is an operation that is new in the change.
type Operation struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Sentence  string `json:"sentence"`
}
