package signedcommit

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	pgperrors "github.com/ProtonMail/go-crypto/openpgp/errors"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"ichor.maesh.dev/internal/printable"
)

const (
	maxKeyring = 4 << 20
	minRSABits = 2048
	keyBegin   = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
)

// Keyring is whose OpenPGP signatures count: every key in it.
type Keyring struct{ keys openpgp.EntityList }

// Key is one key of a keyring, for people. Nothing rests on Name.
type Key struct{ Fingerprint, Name string }

// ParseKeyring reads armoured public keys, one block or several. A private key refuses the file. name stands in errors.
func ParseKeyring(name string, data []byte) (*Keyring, error) {
	if len(data) > maxKeyring {
		return nil, fmt.Errorf("%s has %d bytes, and may have %d", name, len(data), maxKeyring)
	}
	ring := &Keyring{}
	for rest := string(data); ; {
		_, block, found := strings.Cut(rest, keyBegin)
		if !found {
			break
		}
		if block, rest, found = strings.Cut(block, "-----END PGP PUBLIC KEY BLOCK-----"); !found {
			return nil, fmt.Errorf("%s ends inside of a block of keys", name)
		}
		keys, err := readKeys(keyBegin + block + "-----END PGP PUBLIC KEY BLOCK-----\n")
		if err != nil {
			return nil, fmt.Errorf("%s: a block of keys can't be read: %s; export it anew with gpg --armor --export", name, printable.Text(err.Error()))
		}
		ring.keys = append(ring.keys, keys...)
	}
	switch {
	case bytes.Contains(data, []byte("PGP PRIVATE KEY")):
		return nil, fmt.Errorf("%s holds a private key; give public ones, as gpg --armor --export writes them, and take the private key away from here", name)
	case len(ring.keys) == 0:
		return nil, fmt.Errorf("%s holds no armoured public key; make it with gpg --armor --export", name)
	}
	return ring, nil
}

// readKeys reads a block. The library panics on some broken ones.
func readKeys(block string) (keys openpgp.EntityList, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("it is broken")
		}
	}()
	return openpgp.ReadArmoredKeyRing(strings.NewReader(block))
}

// Keys lists the keys.
func (k *Keyring) Keys() []Key {
	var list []Key
	for _, entity := range k.keys {
		list = append(list, keyOf(entity))
	}
	return list
}

func keyOf(entity *openpgp.Entity) Key {
	key := Key{Fingerprint: fmt.Sprintf("%X", entity.PrimaryKey.Fingerprint)}
	if _, identity := entity.PrimarySelfSignature(); identity != nil {
		key.Name = printable.Text(identity.Name)
	}
	return key
}

// Verify says whose signature over payload it is. The key, its expiry and revocation, and the signature's own end are judged
// at now. An error is a sentence.
func (k *Keyring) Verify(payload, armoured []byte, now time.Time) (who Key, err error) {
	defer func() {
		if recover() != nil { // the library reads what an attacker wrote
			who, err = Key{}, errors.New("the OpenPGP signature is broken")
		}
	}()
	raw, err := unarmour(armoured)
	if err != nil {
		return Key{}, err
	}
	signature, err := oneSignature(raw)
	if err != nil {
		return Key{}, err
	}
	keys := k.keys.KeysById(*signature.IssuerKeyId)
	if len(keys) == 0 {
		return Key{}, fmt.Errorf("the signature is of the OpenPGP key %016X, and the keyring doesn't hold it", *signature.IssuerKeyId)
	}
	config := &packet.Config{Time: func() time.Time { return now }}
	_, entity, err := openpgp.VerifyDetachedSignature(k.keys, bytes.NewReader(payload), bytes.NewReader(raw), config)
	if err != nil {
		return Key{}, explain(keyOf(keys[0].Entity), err)
	}
	who = keyOf(entity)
	for _, key := range keys {
		if weak := weakKey(key.PublicKey); weak != "" {
			return Key{}, fmt.Errorf("the OpenPGP key %s is %s; sign with another", who, weak)
		}
	}
	return who, nil
}

// String names a key.
func (k Key) String() string {
	if k.Name == "" {
		return k.Fingerprint
	}
	return fmt.Sprintf("%s (%s)", k.Name, k.Fingerprint)
}

// unarmour gives what stands in the armour, if nothing stands around it.
func unarmour(armoured []byte) ([]byte, error) {
	const end = "\n-----END PGP SIGNATURE-----\n"
	if at := bytes.Index(armoured, []byte(end)); !bytes.HasPrefix(armoured, []byte("-----BEGIN PGP SIGNATURE-----\n")) || at < 0 || at+len(end) != len(armoured) {
		return nil, errors.New("the OpenPGP signature isn't one armoured block, as git commit -S writes it")
	}
	block, err := armor.Decode(bytes.NewReader(armoured))
	if err != nil || block.Type != openpgp.SignatureType {
		return nil, errors.New("the armour of the OpenPGP signature is broken")
	}
	raw, err := io.ReadAll(io.LimitReader(block.Body, maxSignature))
	if err != nil {
		return nil, errors.New("the armour of the OpenPGP signature is broken")
	}
	return raw, nil
}

// oneSignature reads the one packet that may be there: a signature over bytes as they stand, with a hash that can't be forged.
func oneSignature(raw []byte) (*packet.Signature, error) {
	reader := packet.NewReader(bytes.NewReader(raw))
	first, err := reader.Next()
	if err != nil {
		return nil, errors.New("the OpenPGP signature is broken")
	}
	signature, ok := first.(*packet.Signature)
	if !ok {
		return nil, errors.New("the OpenPGP signature holds something else")
	}
	if _, err := reader.Next(); err != io.EOF {
		return nil, errors.New("the OpenPGP signature holds more than one signature")
	}
	switch {
	case signature.Version != 4 && signature.Version != 6:
		return nil, fmt.Errorf("the OpenPGP signature is of version %d, and 4 and 6 are read", signature.Version)
	case signature.SigType != packet.SigTypeBinary:
		return nil, errors.New("the OpenPGP signature is not one over the bytes as they stand")
	case signature.IssuerKeyId == nil:
		return nil, errors.New("the OpenPGP signature doesn't say of which key it is")
	}
	switch signature.Hash {
	case crypto.SHA256, crypto.SHA384, crypto.SHA512, crypto.SHA3_256, crypto.SHA3_512:
		return signature, nil
	}
	return nil, fmt.Errorf("the OpenPGP signature rests on %s, which can be forged or isn't known; set personal-digest-preferences SHA512 in gpg.conf", signature.Hash)
}

// weakKey says why a key is too weak; empty when it isn't.
func weakKey(key *packet.PublicKey) string {
	switch key.PubKeyAlgo {
	case packet.PubKeyAlgoDSA, packet.PubKeyAlgoElGamal:
		return "one of an algorithm that isn't taken (DSA)"
	}
	if public, ok := key.PublicKey.(*rsa.PublicKey); ok && public.N.BitLen() < minRSABits {
		return fmt.Sprintf("an RSA key of %d bits, and %d are the least", public.N.BitLen(), minRSABits)
	}
	return ""
}

// explain puts the library's refusal into a sentence.
func explain(key Key, err error) error {
	switch {
	case errors.Is(err, pgperrors.ErrKeyExpired):
		return fmt.Errorf("the OpenPGP key %s has expired; extend it and give the keyring anew, or sign with another", key)
	case errors.Is(err, pgperrors.ErrKeyRevoked):
		return fmt.Errorf("the OpenPGP key %s is revoked; sign with another", key)
	case errors.Is(err, pgperrors.ErrSignatureExpired):
		return fmt.Errorf("the signature of the OpenPGP key %s does not hold now: it has ended, or it was made by a clock that is ahead", key)
	case errors.Is(err, pgperrors.ErrUnknownIssuer):
		return fmt.Errorf("the OpenPGP key %s may not sign: it isn't made for signing", key)
	}
	return fmt.Errorf("the signature of the OpenPGP key %s is not of this commit: %s", key, printable.Text(err.Error()))
}
