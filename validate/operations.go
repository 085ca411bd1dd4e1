package validate

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
)

// The rules of operations that are not written in CEL.
const (
	// RuleOperationTimes is the rule of an operation that can't be accepted any more, or not yet.
	RuleOperationTimes = "operation-times"
	// RuleSignature is the rule of an operation whose signature would be refused.
	RuleSignature = "signature"
)

// Signatures is what came of checking the signatures of operations.
type Signatures struct {
	Findings []Finding
	// Checked is how many signatures were checked, Unchecked how many were not because nobody said who may sign.
	Checked, Unchecked int
}

// CheckOperations judges the times of new operations, and the signatures of those that are new or changed since old, at a time.
// Without an older fleet it looks at the signatures of all that are not expired. signers may be nil: then signatures are
// counted only.
func CheckOperations(old, proposed *schema.Fleet, signers *operation.AllowedSigners, now time.Time) Signatures {
	c := operationCheck{old: old, proposed: proposed, signers: signers, now: now}
	for _, op := range proposed.Operations {
		c.check(op)
	}
	return c.result
}

type operationCheck struct {
	old, proposed *schema.Fleet
	signers       *operation.AllowedSigners
	now           time.Time
	result        Signatures
}

func (c *operationCheck) check(op *schema.TalosOperation) {
	override := c.override(op)
	late := operation.CheckTimes(op.Spec, override, c.now)
	changed := c.old != nil && !c.merged(op)
	switch {
	case changed && late != nil:
		c.add(op, RuleOperationTimes, op.Source.At("spec.expiresAt"), late)
	case late != nil && late.Reason == operation.Expired:
		return // nobody will ask for its signature again
	case !changed && c.old != nil && c.sameSignature(op):
		return
	}
	if c.signers == nil {
		c.result.Unchecked++
		return
	}
	c.result.Checked++
	c.signature(op, override)
}

// merged says whether the base has the operation with the same bytes.
func (c *operationCheck) merged(op *schema.TalosOperation) bool {
	before := find(c.old.Operations, op.Spec.ClusterRef.Name, op.Metadata.Name)
	return before != nil && bytes.Equal(before.Raw, op.Raw)
}

func (c *operationCheck) sameSignature(op *schema.TalosOperation) bool {
	before := find(c.old.Operations, op.Spec.ClusterRef.Name, op.Metadata.Name)
	if before == nil {
		return false
	}
	_, was, errWas := signatureOf(c.old, before)
	_, is, errIs := signatureOf(c.proposed, op)
	return (errWas == nil) == (errIs == nil) && bytes.Equal(was, is)
}

// override says whether a resume or cancel names an operation that needs the override namespace, as far as the repository knows.
func (c *operationCheck) override(op *schema.TalosOperation) bool {
	name := ""
	switch {
	case op.Spec.Resume != nil:
		name = op.Spec.Resume.Operation
	case op.Spec.Cancel != nil:
		name = op.Spec.Cancel.Operation
	default:
		return false
	}
	named := find(c.proposed.Operations, op.Spec.ClusterRef.Name, name)
	if named == nil && c.old != nil {
		named = find(c.old.Operations, op.Spec.ClusterRef.Name, name)
	}
	return named != nil && named.Spec.NeedsOverride()
}

func (c *operationCheck) signature(op *schema.TalosOperation, override bool) {
	namespaces := operation.Namespaces(op.Spec, override)
	file, armoured, err := signatureOf(c.proposed, op)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.add(op, RuleSignature, op.Source.Position, &operation.Refusal{Reason: operation.SignatureMissing, Message: fmt.Sprintf(
			"there is no %s; sign it with ssh-keygen -Y sign -n %s -f KEY %s", path.Base(file), namespaces[0], op.Source.File)})
	case err != nil:
		c.add(op, RuleSignature, op.Source.Position, &operation.Refusal{Reason: operation.SignatureMissing, Message: err.Error()})
	default:
		if _, refusal := c.signers.Verify(op.Raw, armoured, c.now, namespaces...); refusal != nil {
			c.add(op, RuleSignature, schema.Position{File: file}, refusal)
		}
	}
}

func (c *operationCheck) add(op *schema.TalosOperation, rule string, at schema.Position, refusal *operation.Refusal) {
	cluster := c.proposed.ClusterFor(op.Source.File, op.Spec.ClusterRef.Name)
	if cluster == "" {
		cluster = op.Spec.ClusterRef.Name
	}
	c.result.Findings = append(c.result.Findings, Finding{Rule: rule, Severity: Error, Position: at, Kind: schema.KindOperation,
		Name: op.Metadata.Name, Cluster: cluster,
		Message: fmt.Sprintf("%s would be refused (%s): %s", op.Metadata.Name, refusal.Reason, refusal.Message)})
}

// signatureOf reads the signature beside an operation's file. It gives its path in any case.
func signatureOf(fleet *schema.Fleet, op *schema.TalosOperation) (file string, armoured []byte, err error) {
	file = op.Source.File + operation.SignatureSuffix
	_, armoured, err = fleet.ReadRef(op.Source.File, schema.FileRef{File: path.Base(file)})
	return file, armoured, err
}

// find gives the operation of that cluster and name, or nil.
func find(operations []*schema.TalosOperation, cluster, name string) *schema.TalosOperation {
	for _, op := range operations {
		if op.Spec.ClusterRef.Name == cluster && op.Metadata.Name == name {
			return op
		}
	}
	return nil
}
