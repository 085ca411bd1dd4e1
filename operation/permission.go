package operation

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/internal/printable"
)

// Signer is whose signature it is, as the allowed signers have it. It is what the audit names.
type Signer struct {
	// Principal is a label: the line's principals, or the one that the certificate names. Nothing rests on it.
	Principal string
	// Fingerprint is of the key that signed, Line the line that allows it, Namespace what it signed for.
	Fingerprint string
	Line        int
	Namespace   string
	// Certificate is nil where the line holds the key itself.
	Certificate *Certificate
}

// Certificate is the certificate that stands between a line and the key.
type Certificate struct {
	Serial uint64
	KeyID  string
	// Authority is the fingerprint of the key that signed the certificate.
	Authority   string
	ValidBefore time.Time
}

// String says who it is.
func (s Signer) String() string {
	text := fmt.Sprintf("%s (%s, line %d of the allowed signers)", s.Principal, s.Fingerprint, s.Line)
	if c := s.Certificate; c != nil {
		text = fmt.Sprintf("%s (%s with certificate %q, serial %d, of %s, line %d of the allowed signers)", s.Principal, s.Fingerprint,
			c.KeyID, c.Serial, c.Authority, s.Line)
	}
	return text
}

// Verify says whose signature over these bytes it is. One of the namespaces must be the signature's, and a line must allow it
// for the key at that time. An empty signature is a missing one.
func (s *AllowedSigners) Verify(data, armoured []byte, now time.Time, namespaces ...string) (Signer, *Refusal) {
	if len(armoured) == 0 {
		return Signer{}, refuse(SignatureMissing, "there is no signature; make one with ssh-keygen -Y sign -n %s -f KEY FILE", strings.Join(namespaces[:min(1, len(namespaces))], ""))
	}
	signed, refusal := readSignature(armoured)
	if refusal != nil {
		return Signer{}, refusal
	}
	if !oneOf(signed.Namespace, namespaces) {
		return Signer{}, refuse(NamespaceWrong, "the signature is for the namespace %q, and must be for %s; sign again with -n", printable.Text(signed.Namespace),
			strings.Join(namespaces, " or "))
	}
	if err := signed.covers(data); err != nil {
		return Signer{}, refuse(SignatureWrong, "the signature of %s is not of these bytes; if the file was changed, sign it anew", ssh.FingerprintSHA256(signed.key))
	}
	if refusal := s.isRevoked(signed); refusal != nil {
		return Signer{}, refusal
	}
	return s.permits(signed, now)
}

func oneOf(name string, names []string) bool {
	for _, one := range names {
		if one == name && name != "" {
			return true
		}
	}
	return false
}

func (s *AllowedSigners) isRevoked(signed *signature) *Refusal {
	if line, ok := s.revoked[string(signed.key.Marshal())]; ok {
		return refuse(KeyRevoked, "the key %s is revoked (line %d of the revoked signers); sign with another", ssh.FingerprintSHA256(signed.key), line)
	}
	if signed.certificate == nil {
		return nil
	}
	if line, ok := s.revoked[string(signed.certificate.SignatureKey.Marshal())]; ok {
		return refuse(KeyRevoked, "the authority %s of the certificate is revoked (line %d of the revoked signers); sign with another key",
			ssh.FingerprintSHA256(signed.certificate.SignatureKey), line)
	}
	return nil
}

// permits makes the one pass over the lines. When none permits it, the one that came nearest says why.
func (s *AllowedSigners) permits(signed *signature, now time.Time) (Signer, *Refusal) {
	var nearest *Refusal
	distance := 0
	for _, line := range s.lines {
		signer, came, refusal := line.permits(signed, now)
		if came == 0 {
			continue
		}
		if refusal == nil {
			return signer, nil
		}
		if came > distance {
			nearest, distance = refusal, came
		}
	}
	if nearest == nil {
		nearest = s.unknown(signed)
	}
	return Signer{}, nearest
}

// unknown says that no line speaks of the key, and what comes near.
func (s *AllowedSigners) unknown(signed *signature) *Refusal {
	if signed.certificate == nil {
		for _, line := range s.lines {
			if same(line.key, signed.key) {
				return refuse(KeyUnknown, "the signature is of the key %s, which line %d of the allowed signers holds as cert-authority: it speaks for certificates and not for itself",
					ssh.FingerprintSHA256(signed.key), line.number)
			}
		}
		return refuse(KeyUnknown, "the signature is of the key %s, and no line of the allowed signers holds it", ssh.FingerprintSHA256(signed.key))
	}
	authority := ssh.FingerprintSHA256(signed.certificate.SignatureKey)
	for _, line := range s.lines {
		if same(line.key, signed.certificate.SignatureKey) {
			return refuse(KeyUnknown, "the signature is of a certificate of %s, and line %d of the allowed signers doesn't say cert-authority", authority, line.number)
		}
	}
	return refuse(KeyUnknown, "the signature is of a certificate of %s, and no cert-authority line of the allowed signers holds that key", authority)
}

// How near a line came.
const (
	otherKey = iota
	badCertificate
	withoutNamespaces
	badNamespace
	badTime
	permitted
)

// permits asks one line: the key, the namespace, the time.
func (l *signerLine) permits(signed *signature, now time.Time) (Signer, int, *Refusal) {
	signer := Signer{Principal: printable.Text(l.principals), Fingerprint: ssh.FingerprintSHA256(signed.key), Line: l.number, Namespace: signed.Namespace}
	certificate := signed.certificate
	switch {
	case certificate == nil && (l.authority || !same(l.key, signed.key)),
		certificate != nil && (!l.authority || !same(l.key, certificate.SignatureKey)):
		return signer, otherKey, nil
	case certificate != nil:
		principal, refusal := l.certified(certificate)
		if refusal != nil {
			return signer, badCertificate, refusal
		}
		signer.Principal = printable.Text(principal)
		signer.Certificate = &Certificate{Serial: certificate.Serial, KeyID: printable.Text(certificate.KeyId),
			Authority: ssh.FingerprintSHA256(certificate.SignatureKey), ValidBefore: time.Unix(int64(certificate.ValidBefore), 0).UTC()}
	}
	switch {
	case !l.hasNamespaces && signed.Namespace == CommitNamespace: // as OpenSSH has it
	case !l.hasNamespaces:
		return signer, withoutNamespaces, refuse(NamespacesMissing,
			"line %d of the allowed signers holds the key and has no namespaces=, so it gives no right to operations (a key for signing commits must not wipe); add namespaces=%q",
			l.number, signed.Namespace)
	case !l.allows(signed.Namespace):
		return signer, badNamespace, refuse(NamespaceNotAllowed, "line %d of the allowed signers allows %q, and not %s", l.number,
			printable.Text(l.namespaces), printable.Text(signed.Namespace))
	}
	if refusal := l.timely(certificate, now); refusal != nil {
		return signer, badTime, refusal
	}
	return signer, permitted, nil
}

// certified says which principal of the line a certificate names. Its time is not asked.
func (l *signerLine) certified(c *ssh.Certificate) (string, *Refusal) {
	no := func(format string, args ...any) (string, *Refusal) {
		return "", refuse(CertificateRefused, "the certificate %q (serial %d) is not taken: %s", printable.Text(c.KeyId), c.Serial, fmt.Sprintf(format, args...))
	}
	switch {
	case c.CertType != ssh.UserCert:
		return no("it is a host's; have one made for a user")
	case len(c.ValidPrincipals) == 0:
		return no("it names no principal, so it speaks for everyone; have one made with ssh-keygen -n")
	case c.ValidBefore == ssh.CertTimeInfinity || int64(c.ValidBefore) < 0:
		return no("it never ends; have one made with ssh-keygen -V")
	case len(c.CriticalOptions) > 0:
		return no("it bears a critical option, and none is known here; have one made without")
	}
	principal := ""
	for _, named := range c.ValidPrincipals {
		if principal == "" && matchesList(named, l.principals) {
			principal = named
		}
	}
	if principal == "" {
		return no("it names %s, and line %d of the allowed signers is for %s", printable.Text(strings.Join(c.ValidPrincipals, ", ")), l.number, printable.Text(l.principals))
	}
	during := time.Unix(int64(c.ValidBefore)-1, 0)
	checker := ssh.CertChecker{Clock: func() time.Time { return during }}
	if err := checker.CheckCert(principal, c); err != nil {
		return no("%s", printable.Text(err.Error()))
	}
	return principal, nil
}

// timely says whether the line, and the certificate if there is one, hold at that time. As in OpenSSH a line still holds in
// the second of its valid-before and a certificate doesn't.
func (l *signerLine) timely(c *ssh.Certificate, now time.Time) *Refusal {
	second := now.Unix()
	switch {
	case !l.after.IsZero() && second < l.after.Unix():
		return refuse(KeyNotYetValid, "line %d of the allowed signers holds from %s on, and it is %s", l.number, stamp(l.after), stamp(now))
	case !l.before.IsZero() && second > l.before.Unix():
		return refuse(KeyExpired, "line %d of the allowed signers held until %s, and it is %s", l.number, stamp(l.before), stamp(now))
	case c == nil:
		return nil
	case second < 0 || uint64(second) < c.ValidAfter:
		return refuse(CertificateNotYetValid, "the certificate %q (serial %d) holds from %s on, and it is %s", printable.Text(c.KeyId), c.Serial,
			stamp(time.Unix(int64(min(c.ValidAfter, 1<<38)), 0)), stamp(now))
	case uint64(second) >= c.ValidBefore:
		return refuse(CertificateExpired, "the certificate %q (serial %d) held until %s, and it is %s", printable.Text(c.KeyId), c.Serial,
			stamp(time.Unix(int64(c.ValidBefore), 0)), stamp(now))
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
