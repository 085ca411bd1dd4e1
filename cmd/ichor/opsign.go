package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
)

// opSignFlags are the command line of op sign.
type opSignFlags struct {
	key, certificate string
	override, force  bool
}

func (a *app) opSignCommand() *cobra.Command {
	f := &opSignFlags{}
	cmd := &cobra.Command{
		Use:   "sign FILE",
		Short: "Sign the file of an operation",
		Long: `Checks FILE as 'ichor validate' does (its shape, its bytes, its name, its times), says what it does, and writes the signature
to FILE.sig. What the repository knows of its target is for 'ichor validate' to check.

With --key and a private key that one signs; its passphrase is asked for on the terminal. With --key and a public key or a
certificate the SSH agent signs with that one; without --key the SSH agent signs if it holds one key. The namespace is chosen
by what the operation does. Nothing is committed, and nothing is sent anywhere.`,
		Example: `  ichor op sign operations/20261129-reboot-w1.yaml
  ichor op sign --key ~/.ssh/id_ed25519 operations/20261129-reboot-w1.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.opSign(cmd.Context(), f, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.key, "key", "", "private key to sign with, or public key or certificate to pick one of the SSH agent")
	flags.StringVar(&f.certificate, "certificate", "", "certificate to show for the key, as in id_ed25519-cert.pub")
	flags.BoolVar(&f.override, "override", false, "sign under the override namespace: for a resume or cancel of what wipes or rewinds")
	flags.BoolVar(&f.force, "force", false, "replace a signature that is there")
	return cmd
}

func (a *app) opSign(ctx context.Context, f *opSignFlags, file string) error {
	data, err := readOperation(file)
	if err != nil {
		return err
	}
	op, refusal := operation.Read(file, data)
	if refusal != nil {
		return refusedError(file, refusal)
	}
	override, sure := needsOverride(file, op, f.override)
	if refusal := operation.CheckTimes(op.Spec, override, a.clock.Now()); refusal != nil {
		return refusedError(file, refusal)
	}
	target := file + operation.SignatureSuffix
	if _, err := os.Lstat(target); err == nil && !f.force {
		return answerNo(fmt.Errorf("%s exists, and may be someone else's signature", target), "look at it with 'ichor op verify', or replace it with --force")
	}
	for _, line := range describeOperation(op, a.clock.Now()) {
		fmt.Fprintln(a.out, a.clean(line))
	}
	signer, err := a.signer(ctx, f)
	if err != nil {
		return err
	}
	namespace := operation.Namespaces(op.Spec, override)[0]
	armoured, err := operation.Sign(data, namespace, signer)
	if stopped := ctx.Err(); stopped != nil {
		return cannot(fmt.Errorf("it was stopped, and nothing was written: %w", stopped), "")
	}
	if err != nil {
		return cannot(err, "")
	}
	if now, err := readOperation(file); err != nil || !bytes.Equal(now, data) {
		return answerNo(fmt.Errorf("%s changed while it was being signed, and nothing was written", file), "read it again, and sign what it says now")
	}
	if err := writeWhole(target, armoured, 0o644, f.force); err != nil {
		return cannot(fmt.Errorf("writing %s: %w", target, err), "")
	}
	a.saySigned(op, file, namespace, signer, sure)
	return nil
}

// signingKey names the key that signs, and its certificate.
func signingKey(signer ssh.Signer) string {
	if certificate, ok := signer.PublicKey().(*ssh.Certificate); ok {
		return fmt.Sprintf("the key %s and its certificate %q of %s", ssh.FingerprintSHA256(certificate.Key), certificate.KeyId, ssh.FingerprintSHA256(certificate.SignatureKey))
	}
	return "the key " + ssh.FingerprintSHA256(signer.PublicKey())
}

func (a *app) saySigned(op *schema.TalosOperation, file, namespace string, signer ssh.Signer, sure bool) {
	fmt.Fprintf(a.out, "signed for %s with %s\n", namespace, a.clean(signingKey(signer)))
	fmt.Fprintf(a.out, "%s is written; commit both files, and no other version of the first\n", a.clean(file+operation.SignatureSuffix))
	if !sure {
		fmt.Fprintf(a.err, "the operation that %s names isn't beside it, so what it needs isn't known; if it wipes or rewinds, sign again with --override --force\n", a.clean(op.Metadata.Name))
	}
}

// needsOverride says whether an operation needs the override namespace, and whether that is sure. A resume or cancel needs
// what the operation needs that it names, which stands beside it unless someone moved it.
func needsOverride(file string, op *schema.TalosOperation, asked bool) (override, sure bool) {
	if asked || op.Spec.NeedsOverride() {
		return true, true
	}
	name, digest := "", ""
	switch {
	case op.Spec.Resume != nil:
		name, digest = op.Spec.Resume.Operation, op.Spec.Resume.Digest
	case op.Spec.Cancel != nil:
		name, digest = op.Spec.Cancel.Operation, op.Spec.Cancel.Digest
	default:
		return false, true
	}
	beside := filepath.Join(filepath.Dir(file), name+".yaml")
	data, err := readAtMost(beside, maxOperation)
	if err != nil || operation.Digest(data) != digest {
		return false, false
	}
	other, refusal := operation.Read(beside, data)
	if refusal != nil {
		return false, false
	}
	return other.Spec.NeedsOverride(), true
}

// signer finds the key that signs.
func (a *app) signer(ctx context.Context, f *opSignFlags) (ssh.Signer, error) {
	signer, err := a.keyOrAgent(ctx, f)
	if err != nil || f.certificate == "" {
		return signer, err
	}
	certificate, err := readAtMost(f.certificate, maxOperation)
	if err != nil {
		return nil, cannot(fmt.Errorf("--certificate: %w", err), "give a file such as ~/.ssh/id_ed25519-cert.pub")
	}
	with, err := operation.CertificateSigner(signer, certificate)
	if err != nil {
		return nil, cannot(fmt.Errorf("--certificate: %w", err), "give the certificate that was made for this key")
	}
	return with, nil
}

func (a *app) keyOrAgent(ctx context.Context, f *opSignFlags) (ssh.Signer, error) {
	if f.key == "" {
		return a.agentSigner(ctx, nil, nil)
	}
	text, err := readAtMost(f.key, maxOperation)
	if err != nil {
		return nil, cannot(fmt.Errorf("--key: %w", err), "give a private key, or a public key of the SSH agent")
	}
	if public, _, _, _, err := ssh.ParseAuthorizedKey(text); err == nil {
		return a.agentSigner(ctx, public, text)
	}
	signer, err := operation.KeySigner(text, func() ([]byte, error) {
		return a.askPassphrase(ctx, fmt.Sprintf("passphrase of %s: ", a.clean(f.key)))
	})
	if err != nil {
		return nil, cannot(fmt.Errorf("--key %s: %w", f.key, err), "")
	}
	return signer, nil
}

// agentSigner has the SSH agent sign, with the key that is asked for. For a certificate the agent need only hold its key.
func (a *app) agentSigner(ctx context.Context, public ssh.PublicKey, text []byte) (ssh.Signer, error) {
	socket := a.getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return nil, cannot(errors.New("no SSH agent is running here (SSH_AUTH_SOCK is not set)"), "name a private key with --key FILE, or start an agent and add a key with ssh-add")
	}
	connection, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, cannot(fmt.Errorf("the SSH agent doesn't answer: %w", err), "name a private key with --key FILE, or start an agent")
	}
	// It is asked for the signature later, and hung up on with the end of the program, or when that is stopped: an agent that waits for a touch
	// of a security key, or hangs, gives no answer by itself.
	context.AfterFunc(ctx, func() { _ = connection.Close() })
	held := agent.NewClient(connection)
	certificate, ok := public.(*ssh.Certificate)
	if !ok {
		signer, err := operation.AgentSigner(held, public)
		if err != nil {
			return nil, agentRefused(ctx, err, public)
		}
		return signer, nil
	}
	if signer, err := operation.AgentSigner(held, public); err == nil {
		return signer, nil
	}
	signer, err := operation.AgentSigner(held, certificate.Key)
	if err != nil {
		return nil, agentRefused(ctx, err, public)
	}
	with, err := operation.CertificateSigner(signer, bytes.TrimSpace(text))
	if err != nil {
		return nil, cannot(err, "")
	}
	return with, nil
}

// agentRefused says what to do where the SSH agent doesn't sign.
func agentRefused(ctx context.Context, err error, public ssh.PublicKey) error {
	switch {
	case ctx.Err() != nil:
		return cannot(fmt.Errorf("it was stopped while the SSH agent was asked, and nothing was signed: %w", ctx.Err()), "")
	case public == nil:
		return cannot(err, "pick one with --key and its public key, as in --key ~/.ssh/id_ed25519.pub, or name a private key")
	}
	return cannot(err, "add it with ssh-add, or name the private key with --key")
}
