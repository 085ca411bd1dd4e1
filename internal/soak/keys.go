package soak

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"

	"filippo.io/age"
	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
	"ichor.maesh.dev/validate"
)

// Keys is what takes long to make and is made once for many histories.
type Keys struct {
	Identities *sealed.Identities
	Validator  reconcile.Validator
	Signers    *operation.AllowedSigners
	Clusters   []*ClusterKeys
	// snapshots are what an etcd streams, at each of its ages.
	snapshots [][]byte
	alice     ssh.Signer
	mallory   ssh.Signer
}

// ClusterKeys are the secrets of one cluster.
type ClusterKeys struct {
	Bundle *talos.Bundle
	ID     string
	Sealer *statefile.Sealer
	// Owner is whose its snapshots are.
	Owner backup.Owner
	// Sealed is the text of its secrets.age.
	Sealed string
}

// clusterNames are the clusters that a history may have.
func clusterNames() []string { return []string{"prod", "edge"} }

// NewKeys makes the secrets of all clusters, and who may sign.
func NewKeys() (*Keys, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	k := &Keys{}
	if k.Identities, err = sealed.ParseIdentities("soak", []byte(identity.String())); err != nil {
		return nil, err
	}
	recipients, err := sealed.ParseRecipients("recipients.txt", []byte(identity.Recipient().String()))
	if err != nil {
		return nil, err
	}
	if k.Validator, err = validate.New(); err != nil {
		return nil, err
	}
	for range clusterNames() {
		cluster, err := newClusterKeys(recipients)
		if err != nil {
			return nil, err
		}
		k.Clusters = append(k.Clusters, cluster)
	}
	if k.snapshots, err = newSnapshots(); err != nil {
		return nil, err
	}
	if k.alice, err = newSigner(); err != nil {
		return nil, err
	}
	if k.mallory, err = newSigner(); err != nil {
		return nil, err
	}
	k.Signers, err = allowing(k.alice)
	return k, err
}

// allowing lets these sign whatever there is to sign.
func allowing(signers ...ssh.Signer) (*operation.AllowedSigners, error) {
	text := ""
	for n, signer := range signers {
		text += fmt.Sprintf(`signer-%d namespaces="ichor-operation@*,ichor-override@*" %s`, n+1, ssh.MarshalAuthorizedKey(signer.PublicKey()))
	}
	return operation.ParseAllowedSigners("allowed_signers", []byte(text))
}

func newClusterKeys(recipients []sealed.Recipient) (*ClusterKeys, error) {
	bundle, err := talos.GenerateBundle("v1.13")
	if err != nil {
		return nil, err
	}
	plain, err := bundle.Marshal()
	if err != nil {
		return nil, err
	}
	text, err := sealed.Seal(recipients, plain)
	if err != nil {
		return nil, err
	}
	material := bundle.SealingMaterial()
	sealer, err := statefile.NewSealer(material.ClusterID, material.EncryptionSecret, "")
	if err != nil {
		return nil, err
	}
	owner, err := backup.NewOwner(material.ClusterID, material.ClusterSecret, material.EncryptionSecret)
	if err != nil {
		return nil, err
	}
	return &ClusterKeys{Bundle: bundle, ID: schema.ClusterID(bundle.ClusterID()), Sealer: sealer, Owner: owner, Sealed: string(text)}, nil
}

func newSigner() (ssh.Signer, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return ssh.NewSignerFromKey(private)
}
