package operation

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// Sign gives the armoured signature of a file for a namespace. What would be refused isn't made.
func Sign(data []byte, namespace string, signer ssh.Signer) ([]byte, error) {
	signed, err := sshsig.SignWithRand(bytes.NewReader(data), rand.Reader, modernSigner{signer}, sshsig.HashSHA512, namespace)
	if err != nil {
		return nil, fmt.Errorf("sign for %s with %s: %w", namespace, ssh.FingerprintSHA256(signer.PublicKey()), err)
	}
	armoured := sshsig.Armor(signed)
	read, refusal := readSignature(armoured)
	if refusal != nil {
		return nil, fmt.Errorf("sign for %s with %s: %w", namespace, ssh.FingerprintSHA256(signer.PublicKey()), refusal)
	}
	if err := read.covers(data); err != nil {
		return nil, fmt.Errorf("sign for %s with %s: the signature that came back is wrong: %w", namespace,
			ssh.FingerprintSHA256(signer.PublicKey()), err)
	}
	return armoured, nil
}

// modernSigner never signs with SHA-1, which is what an RSA key does unless told otherwise, in a certificate too.
type modernSigner struct{ ssh.Signer }

func (s modernSigner) Sign(random io.Reader, data []byte) (*ssh.Signature, error) {
	switch s.PublicKey().Type() {
	case ssh.KeyAlgoRSA, ssh.CertAlgoRSAv01:
		return s.SignWithAlgorithm(random, data, ssh.KeyAlgoRSASHA512)
	}
	return s.Signer.Sign(random, data)
}

func (s modernSigner) SignWithAlgorithm(random io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	able, ok := s.Signer.(ssh.AlgorithmSigner)
	if !ok {
		return nil, fmt.Errorf("the key can't sign with %s", algorithm)
	}
	return able.SignWithAlgorithm(random, data, algorithm)
}

// KeySigner reads a private key. The passphrase is asked for only where the key has one.
func KeySigner(key []byte, passphrase func() ([]byte, error)) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey(key)
	var locked *ssh.PassphraseMissingError
	if errors.As(err, &locked) {
		if passphrase == nil {
			return nil, errors.New("the key has a passphrase; give it, or sign with the SSH agent")
		}
		secret, err := passphrase()
		if err != nil {
			return nil, fmt.Errorf("read the passphrase: %w", err)
		}
		signer, err = ssh.ParsePrivateKeyWithPassphrase(key, secret)
		if err != nil {
			return nil, errors.New("the key doesn't open: the passphrase is wrong, or the file is damaged")
		}
		return signer, nil
	}
	if err != nil { // the error may quote what it read
		return nil, errors.New("the file is no private key that can be read; security keys and the keys of a token sign through the SSH agent, or with ssh-keygen -Y sign")
	}
	return signer, nil
}

// CertificateSigner signs with a key and shows a certificate for it. certificate is the line of a file such as id_ed25519-cert.pub.
func CertificateSigner(signer ssh.Signer, certificate []byte) (ssh.Signer, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey(certificate)
	if err != nil {
		return nil, fmt.Errorf("the certificate can't be read: %w", err)
	}
	made, ok := key.(*ssh.Certificate)
	if !ok {
		return nil, fmt.Errorf("%s is a key and no certificate", ssh.FingerprintSHA256(key))
	}
	with, err := ssh.NewCertSigner(made, signer)
	if err != nil {
		return nil, fmt.Errorf("the certificate is not for the key %s", ssh.FingerprintSHA256(signer.PublicKey()))
	}
	return with, nil
}

// AgentSigner finds a key in an SSH agent. Without a key to look for, the agent must hold exactly one.
func AgentSigner(from agent.Agent, key ssh.PublicKey) (ssh.Signer, error) {
	signers, err := from.Signers()
	if err != nil {
		return nil, fmt.Errorf("ask the SSH agent for its keys: %w", err)
	}
	var held []string
	for _, signer := range signers {
		if key != nil && same(signer.PublicKey(), key) {
			return signer, nil
		}
		held = append(held, ssh.FingerprintSHA256(signer.PublicKey()))
	}
	switch {
	case len(signers) == 0:
		return nil, errors.New("the SSH agent holds no key; add one with ssh-add")
	case key != nil:
		return nil, fmt.Errorf("the SSH agent doesn't hold %s; it holds %s", ssh.FingerprintSHA256(key), strings.Join(held, ", "))
	case len(signers) > 1:
		return nil, fmt.Errorf("the SSH agent holds %d keys (%s); say which one is meant", len(signers), strings.Join(held, ", "))
	}
	return signers[0], nil
}
