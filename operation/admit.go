package operation

import (
	"time"

	"ichor.maesh.dev/schema"
)

const (
	// maxAhead is how far createdAt may lie in the future: what clocks differ by.
	maxAhead        = 5 * time.Minute
	maxLife         = 7 * 24 * time.Hour
	maxOverrideLife = 24 * time.Hour
)

// MaxLife is how long an operation may wait for its start, with the rule as a sentence. override is as in [Submission].
func MaxLife(spec schema.OperationSpec, override bool) (most time.Duration, rule string) {
	if override || spec.NeedsOverride() {
		return maxOverrideLife, "one that needs the override namespace waits at most 24 hours"
	}
	return maxLife, "an operation waits at most 7 days"
}

// Submission is an operation as it was found.
type Submission struct {
	// File is the path of the file; only its last part counts.
	File string
	// Data is the file, Signature the file beside it; empty when there is none.
	Data, Signature []byte
	// Override says that a resume or cancel names an operation that needs the override namespace.
	Override bool
}

// Accepted is an operation that was accepted before.
type Accepted struct {
	Identity
	// Over says that it has ended.
	Over bool
}

// Known is what an operation is judged against.
type Known struct {
	Signers *AllowedSigners
	// Clusters are the IDs of the clusters by name.
	Clusters map[string]string
	Accepted []Accepted
	// Now is the time, never behind the latest that was recorded: a clock that was put back makes nothing valid again.
	Now time.Time
}

// Admitted is an operation that may be accepted.
type Admitted struct {
	Operation *schema.TalosOperation
	Identity  Identity
	Signer    Signer
}

// Admit asks everything that is asked before an operation is accepted: the file, its cluster, its signature, its times, its
// name. The signature comes before times and name, since only a valid one uses up a name.
func Admit(s Submission, known Known) (Admitted, *Refusal) {
	op, refusal := Read(s.File, s.Data)
	if refusal != nil {
		return Admitted{}, refusal
	}
	admitted := Admitted{Operation: op, Identity: identityOf(op)}
	if refusal := CheckCluster(op.Spec.ClusterRef, known.Clusters); refusal != nil {
		return Admitted{}, refusal
	}
	if admitted.Signer, refusal = known.Signers.Verify(s.Data, s.Signature, known.Now, Namespaces(op.Spec, s.Override)...); refusal != nil {
		return Admitted{}, refusal
	}
	if refusal := CheckTimes(op.Spec, s.Override, known.Now); refusal != nil {
		return Admitted{}, refusal
	}
	if refusal := checkName(admitted.Identity, known.Accepted); refusal != nil {
		return Admitted{}, refusal
	}
	return admitted, nil
}

// CheckCluster refuses an operation whose cluster isn't there, or isn't the one that its signer saw. clusters are IDs by name.
func CheckCluster(ref schema.ClusterRef, clusters map[string]string) *Refusal {
	id, known := clusters[ref.Name]
	switch {
	case !known:
		return refuse(ClusterUnknown, "the operation is for cluster %s, and there is none of that name", ref.Name)
	case id != ref.ID:
		return refuse(ClusterDiffers, "the operation is for cluster %s with the id %s, and %s has the id %s: it was signed for another cluster", ref.Name, ref.ID, ref.Name, id)
	}
	return nil
}

// CheckTimes refuses an operation that is expired, was made in the future, or lives too long. A paused operation doesn't
// expire, so it isn't asked when one is resumed. override is as in [Submission].
func CheckTimes(spec schema.OperationSpec, override bool, now time.Time) *Refusal {
	most, what := MaxLife(spec, override)
	switch life := spec.ExpiresAt.Sub(spec.CreatedAt); {
	case life > most:
		return refuse(LivesTooLong, "expiresAt is %s after createdAt, and %s; write a new operation", life, what)
	case spec.CreatedAt.Sub(now) > maxAhead:
		return refuse(CreatedAhead, "createdAt is %s, and it is %s: it lies more than 5 minutes ahead; look at the clock of the machine that wrote it", stamp(spec.CreatedAt), stamp(now))
	case !now.Before(spec.ExpiresAt):
		return refuse(Expired, "expiresAt was %s, and it is %s; write a new operation", stamp(spec.ExpiresAt), stamp(now))
	}
	return nil
}

// checkName refuses an operation whose name an accepted one of the cluster has used: with other bytes, or the same.
func checkName(id Identity, accepted []Accepted) *Refusal {
	for _, other := range accepted {
		switch {
		case other.ClusterID != id.ClusterID || other.Name != id.Name:
		case other.Digest == id.Digest:
			return refuse(AlreadyAccepted, "%s was accepted before, and an operation runs once; write a new one under another name", id.Name)
		case !other.Over:
			return refuse(BytesChanged, "%s was accepted with the digest %.12s, and its file has the digest %.12s now: an operation never changes; put the file back, or cancel it and write a new one", id.Name, other.Digest, id.Digest)
		default:
			return refuse(NameUsed, "another operation called %s was accepted before (digest %.12s), and a name serves once; give this one another name", id.Name, other.Digest)
		}
	}
	return nil
}
