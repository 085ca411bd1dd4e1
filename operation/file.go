package operation

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"

	"ichor.maesh.dev/schema"
)

// SignatureSuffix follows the name of an operation's file in that of its signature.
const SignatureSuffix = ".sig"

// Identity is what an operation is known by, for ever.
type Identity struct {
	ClusterID, Name string
	// Digest is the SHA-256 of the file, in hex.
	Digest string
}

// identityOf gives the identity of an operation that was read from a file.
func identityOf(op *schema.TalosOperation) Identity {
	return Identity{ClusterID: op.Spec.ClusterRef.ID, Name: op.Metadata.Name, Digest: Digest(op.Raw)}
}

// Digest gives the SHA-256 of a file in hex.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Read takes the file of an operation apart. The file's name must be the operation's, and the file exactly one operation of
// bytes that everyone reads alike.
func Read(file string, data []byte) (*schema.TalosOperation, *Refusal) {
	fleet, problems := schema.Decode(file, data)
	if len(problems) > 0 {
		p := problems[0]
		place := ""
		if p.Line > 0 {
			place = fmt.Sprintf("line %d, column %d: ", p.Line, p.Column)
		}
		more := ""
		if len(problems) > 1 {
			more = fmt.Sprintf("; and %d more", len(problems)-1)
		}
		return nil, refuse(Malformed, "%s%s%s", place, p.Message, more)
	}
	if len(fleet.Operations) != 1 {
		return nil, refuse(Malformed, "%s holds no operation; it must be one document of kind %s", path.Base(file), schema.KindOperation)
	}
	op := fleet.Operations[0]
	if want := op.Metadata.Name + ".yaml"; path.Base(file) != want {
		return nil, refuse(FileNameDiffers, "the operation is called %s and its file %q; the file must be called %s", op.Metadata.Name,
			path.Base(file), want)
	}
	return op, nil
}

// TargetOf names what an operation is about: its machine, its backup, or the operation that a resume or cancel names.
func TargetOf(spec schema.OperationSpec) string {
	switch ref := spec.Machine(); {
	case ref != nil:
		return ref.Name
	case spec.EtcdBackup != nil:
		return spec.EtcdBackup.BackupRef.Name
	case spec.EtcdRestore != nil:
		return spec.EtcdRestore.BackupRef.Name
	case spec.Resume != nil:
		return spec.Resume.Operation
	case spec.Cancel != nil:
		return spec.Cancel.Operation
	}
	return ""
}

// Namespace is what the signature of an ordinary operation on a cluster is made for.
func Namespace(cluster string) string { return "ichor-operation@" + cluster }

// overrideNamespace is what the signature of an operation that wipes or rewinds is made for. It serves for ordinary ones too.
func overrideNamespace(cluster string) string { return "ichor-override@" + cluster }

// Namespaces gives those that serve for an operation. The first is the one to sign under. A resume or cancel needs what
// the operation that it names needs, which the caller knows: override adds to what the operation itself says.
func Namespaces(spec schema.OperationSpec, override bool) []string {
	cluster := spec.ClusterRef.Name
	if override || spec.NeedsOverride() {
		return []string{overrideNamespace(cluster)}
	}
	return []string{Namespace(cluster), overrideNamespace(cluster)}
}
