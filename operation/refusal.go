package operation

import "fmt"

// Reason says why an operation is refused. The values are stable: they stand in the state, the audit and the status.
type Reason string

// The reasons.
const (
	// Malformed: the file can't be read as an operation.
	Malformed Reason = "Malformed"
	// FileNameDiffers: the file's name isn't the operation's.
	FileNameDiffers Reason = "FileNameDiffers"
	// SignatureMissing: there is no signature.
	SignatureMissing Reason = "SignatureMissing"
	// SignatureMalformed: the signature isn't exactly what ssh-keygen writes.
	SignatureMalformed Reason = "SignatureMalformed"
	// SignatureWrong: the signature is of other bytes, or forged.
	SignatureWrong Reason = "SignatureWrong"
	// NamespaceWrong: the signature is for something else.
	NamespaceWrong Reason = "NamespaceWrong"
	// KeyUnknown: no line holds the key, or the authority of the certificate.
	KeyUnknown Reason = "KeyUnknown"
	// KeyWeak: the key or its algorithm is too weak.
	KeyWeak Reason = "KeyWeak"
	// KeyUntouched: the security key was not touched.
	KeyUntouched Reason = "KeyUntouched"
	// KeyRevoked: the key or the certificate's authority is revoked.
	KeyRevoked Reason = "KeyRevoked"
	// KeyNotYetValid, KeyExpired: the line holds at another time.
	KeyNotYetValid Reason = "KeyNotYetValid"
	KeyExpired     Reason = "KeyExpired"
	// CertificateRefused: the certificate isn't one that may sign.
	CertificateRefused Reason = "CertificateRefused"
	// CertificateNotYetValid, CertificateExpired: the certificate holds at another time.
	CertificateNotYetValid Reason = "CertificateNotYetValid"
	CertificateExpired     Reason = "CertificateExpired"
	// NamespacesMissing: the key's line has no namespaces=, and so gives no right to operations.
	NamespacesMissing Reason = "NamespacesMissing"
	// NamespaceNotAllowed: the key's line doesn't allow the namespace.
	NamespaceNotAllowed Reason = "NamespaceNotAllowed"
	// ClusterUnknown: no cluster has the name.
	ClusterUnknown Reason = "ClusterUnknown"
	// ClusterDiffers: the cluster of that name has another ID.
	ClusterDiffers Reason = "ClusterDiffers"
	// CreatedAhead: createdAt is more than 5 minutes ahead.
	CreatedAhead Reason = "CreatedAhead"
	// Expired: expiresAt has passed.
	Expired Reason = "Expired"
	// LivesTooLong: there is too much time between createdAt and expiresAt.
	LivesTooLong Reason = "LivesTooLong"
	// BytesChanged: the operation was accepted with other bytes and isn't over.
	BytesChanged Reason = "BytesChanged"
	// NameUsed: another accepted operation had the name.
	NameUsed Reason = "NameUsed"
	// AlreadyAccepted: this very operation was accepted before; an operation runs once.
	AlreadyAccepted Reason = "AlreadyAccepted"
)

// Refusal is why an operation is refused: a reason, and a sentence that names the thing and the way out.
type Refusal struct {
	Reason  Reason
	Message string
}

// Error gives the sentence.
func (r *Refusal) Error() string { return r.Message }

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
