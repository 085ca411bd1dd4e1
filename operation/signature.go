package operation

import (
	"bytes"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/internal/printable"
)

const (
	armourBegin = "-----BEGIN SSH SIGNATURE-----\n"
	armourEnd   = "\n-----END SSH SIGNATURE-----"
	// maxSignature bounds the file of a signature. One by a certificate with an RSA key of 16384 bits has some 10 KiB.
	maxSignature = 64 << 10
	minRSABits   = 2048
	maxRSABits   = 16384
	// touched is the flag that a security key sets when someone touched it.
	touched = 0x01
)

// signature is a signature that is well formed and strong, and not yet verified.
type signature struct {
	*sshsig.Signature
	// key is the key that signed; with a certificate, the one inside it.
	key         ssh.PublicKey
	certificate *ssh.Certificate
}

// readSignature takes an armoured signature apart. Exactly one spelling of each signature is read.
func readSignature(armoured []byte) (*signature, *Refusal) {
	blob, err := unarmour(armoured)
	if err != nil {
		return nil, refuse(SignatureMalformed, "the signature isn't one that ssh-keygen -Y sign writes: %s", err)
	}
	if signedWith(blob) == ssh.KeyAlgoRSA {
		return nil, refuse(KeyWeak, "the signature is an RSA signature with SHA-1, which can be forged; sign with rsa-sha2-512, as ssh-keygen -Y sign does")
	}
	parsed, err := sshsig.ParseSignature(blob)
	if err != nil {
		return nil, refuse(SignatureMalformed, "the signature isn't one that ssh-keygen -Y sign writes: %s", printable.Text(err.Error()))
	}
	if !bytes.Equal(parsed.Marshal(), blob) {
		return nil, refuse(SignatureMalformed, "the signature isn't one that ssh-keygen -Y sign writes: it holds bytes that nothing reads")
	}
	s := &signature{Signature: parsed, key: parsed.PublicKey}
	if certificate, ok := parsed.PublicKey.(*ssh.Certificate); ok {
		s.key, s.certificate = certificate.Key, certificate
	}
	if parsed.Namespace == "" {
		return nil, refuse(NamespaceWrong, "the signature is for no namespace, so it could be used for anything; sign with -n")
	}
	return s, s.strong()
}

// unarmour gives what stands in the armour, if that is all the file holds.
func unarmour(armoured []byte) ([]byte, error) {
	if len(armoured) > maxSignature {
		return nil, fmt.Errorf("it has %d bytes, and may have %d", len(armoured), maxSignature)
	}
	if bytes.IndexByte(armoured, '\r') >= 0 {
		return nil, fmt.Errorf("it holds carriage returns; keep Git from changing the ends of its lines (*.sig -text in .gitattributes)")
	}
	text, ok := strings.CutPrefix(string(armoured), armourBegin)
	if !ok {
		return nil, fmt.Errorf("it doesn't begin with %q", strings.TrimSpace(armourBegin))
	}
	text, after, ok := strings.Cut(text, armourEnd)
	if !ok {
		return nil, fmt.Errorf("it doesn't end with %q", strings.TrimSpace(armourEnd))
	}
	if after != "" && after != "\n" {
		return nil, fmt.Errorf("something follows its last line")
	}
	lines := strings.Split(text, "\n")
	for _, line := range lines {
		if line == "" {
			return nil, fmt.Errorf("it holds an empty line")
		}
	}
	blob, err := base64.StdEncoding.Strict().DecodeString(strings.Join(lines, ""))
	if err != nil {
		return nil, fmt.Errorf("it isn't base64")
	}
	return blob, nil
}

// signedWith gives the algorithm that a signature names, empty if it can't be made out.
func signedWith(blob []byte) string {
	var outer struct {
		Magic                                     [6]byte
		Version                                   uint32
		Key, Namespace, Reserved, Hash, Signature string
	}
	var inner ssh.Signature
	if ssh.Unmarshal(blob, &outer) != nil || ssh.Unmarshal([]byte(outer.Signature), &inner) != nil {
		return ""
	}
	return inner.Format
}

// strong refuses what is too weak to be believed.
func (s *signature) strong() *Refusal {
	if refusal := strongKey("the key", s.key); refusal != nil {
		return refusal
	}
	if s.certificate != nil {
		if refusal := strongKey("the certificate's authority", s.certificate.SignatureKey); refusal != nil {
			return refusal
		}
		if s.certificate.Signature.Format == ssh.KeyAlgoRSA {
			return refuse(KeyWeak, "the certificate was signed with SHA-1; have it made anew with ssh-keygen -s CA -t rsa-sha2-512")
		}
	}
	rest := s.Signature.Signature.Rest
	switch s.key.Type() {
	case ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		if len(rest) != 5 { // flags and a counter
			return refuse(SignatureMalformed, "the signature of the security key isn't whole; sign again")
		}
		if rest[0]&touched == 0 {
			return refuse(KeyUntouched, "the security key %s signed without being touched, so nobody was there; sign again and touch it (a key made with no-touch-required can't sign operations)",
				ssh.FingerprintSHA256(s.key))
		}
	default:
		if len(rest) > 0 {
			return refuse(SignatureMalformed, "the signature isn't one that ssh-keygen -Y sign writes: something follows it")
		}
	}
	return nil
}

// keyTypes are the types of keys that may sign.
func keyTypes() []string {
	return []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA,
		ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256}
}

func strongKey(what string, key ssh.PublicKey) *Refusal {
	if !isKeyType(key.Type()) {
		return refuse(KeyWeak, "%s is of type %s, which can't sign operations; use %s", what, printable.Text(key.Type()), ssh.KeyAlgoED25519)
	}
	if key.Type() != ssh.KeyAlgoRSA {
		return nil
	}
	holder, ok := key.(ssh.CryptoPublicKey)
	if !ok {
		return refuse(KeyWeak, "%s %s is an RSA key of unknown size", what, ssh.FingerprintSHA256(key))
	}
	public, ok := holder.CryptoPublicKey().(*rsa.PublicKey)
	switch {
	case !ok:
		return refuse(KeyWeak, "%s %s is an RSA key of unknown size", what, ssh.FingerprintSHA256(key))
	case public.N.BitLen() < minRSABits || public.N.BitLen() > maxRSABits:
		return refuse(KeyWeak, "%s %s is an RSA key of %d bits, and %d to %d are taken; use a larger one, or %s", what,
			ssh.FingerprintSHA256(key), public.N.BitLen(), minRSABits, maxRSABits, ssh.KeyAlgoED25519)
	}
	return nil
}

func isKeyType(name string) bool {
	for _, known := range keyTypes() {
		if name == known {
			return true
		}
	}
	return false
}

// covers says whether the signature is of these bytes.
func (s *signature) covers(data []byte) error {
	return sshsig.Verify(bytes.NewReader(data), s.Signature, s.PublicKey, s.HashAlgorithm, s.Namespace)
}

// same says whether two keys are the same one.
func same(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }
