package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
)

// maxOperation bounds what is read as an operation's file or its signature; both have smaller bounds of their own, with reasons.
const maxOperation = 1 << 20

func (a *app) opCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "op",
		Short: "See how operations stand, sign them, verify signatures, and see who may sign what",
		Long: `An operation is a file of kind TalosOperation and, beside it, an OpenSSH signature over its exact bytes. 'list' and 'show' say
what became of operations; the others make and check the signature, as ssh-keygen does: what one of them makes, the other reads.
'ichor run-op' writes, signs and pushes an operation in one go.`,
	}
	cmd.AddCommand(a.opListCommand(), a.opShowCommand(), a.opSignCommand(), a.opVerifyCommand(), a.opRightsCommand())
	return cmd
}

// readOperation reads the file of an operation.
func readOperation(file string) ([]byte, error) {
	data, err := readAtMost(file, maxOperation)
	if err != nil {
		return nil, cannot(err, "give the file of an operation, as in operations/20261129-reboot-w1.yaml")
	}
	return data, nil
}

func readAtMost(file string, limit int64) ([]byte, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file", file)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s has %d bytes, and may have %d", file, info.Size(), limit)
	}
	return os.ReadFile(file)
}

// describeOperation says what an operation is, in lines for a person.
func describeOperation(op *schema.TalosOperation, now time.Time) []string {
	lines := []string{
		fmt.Sprintf("%s %s", op.Metadata.Name, operation.Sentence(op.Spec)),
		fmt.Sprintf("  cluster: %s (id %s)", op.Spec.ClusterRef.Name, op.Spec.ClusterRef.ID),
		fmt.Sprintf("  kind: %s", kindOf(op.Spec)),
		fmt.Sprintf("  expires: %s (%s)", op.Spec.ExpiresAt.UTC().Format(time.RFC3339), untilThen(op.Spec.ExpiresAt.Sub(now))),
		fmt.Sprintf("  digest: %s", operation.Digest(op.Raw)),
	}
	if op.Spec.Reason != "" {
		lines = append(lines, "  reason: "+op.Spec.Reason)
	}
	return lines
}

func kindOf(spec schema.OperationSpec) string {
	if spec.Node != nil {
		return string(spec.Kind) + "/" + spec.Node.Action
	}
	return string(spec.Kind)
}

func untilThen(d time.Duration) string {
	switch {
	case d <= 0:
		return "over"
	case d < time.Minute:
		return "in less than a minute"
	}
	text := d.Round(time.Minute).String() // as in 24h0m0s
	text = strings.TrimSuffix(text, "0s")
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return "in " + text
}

// refusedError is a refusal as an error with its way out.
func refusedError(file string, refusal *operation.Refusal) error {
	return answerNo(fmt.Errorf("%s would be refused (%s): %w", file, refusal.Reason, errors.New(refusal.Message)), wayOut(refusal.Reason))
}

// wayOut says what a person does about a refusal.
func wayOut(reason operation.Reason) string {
	switch reason {
	case operation.Malformed:
		return "correct the file, and sign it then"
	case operation.FileNameDiffers:
		return "rename the file; its signature, if it has one, stays good under the new name with .sig"
	case operation.SignatureMissing:
		return "sign it with 'ichor op sign FILE'"
	case operation.SignatureMalformed:
		return "take the .sig as it was made (Git changes line ends unless .gitattributes says '*.sig -text'), or sign anew"
	case operation.SignatureWrong:
		return "read what the file says now, and sign that with 'ichor op sign --force FILE'"
	case operation.NamespaceWrong:
		return "sign anew with 'ichor op sign --force FILE', which picks the namespace by what the operation does"
	case operation.KeyUnknown:
		return "sign with a key that the allowed signers hold, or have its public half added to them, with namespaces="
	case operation.KeyWeak:
		return "make a new key with 'ssh-keygen -t ed25519', and have it added to the allowed signers"
	case operation.KeyUntouched:
		return "sign again, and touch the security key when it blinks"
	case operation.KeyRevoked:
		return "sign with another key; if you did not revoke this one, ask who did"
	case operation.KeyNotYetValid, operation.KeyExpired:
		return "sign with a key whose line holds now, or have valid-after= and valid-before= of the line changed"
	case operation.CertificateRefused:
		return "have a certificate made with ssh-keygen -s CA -I ID -n PRINCIPAL -V +8h, without other options"
	case operation.CertificateNotYetValid, operation.CertificateExpired:
		return "have the certificate made anew, and sign with that one"
	case operation.NamespacesMissing, operation.NamespaceNotAllowed:
		return "have namespaces= of the line extended by who keeps the allowed signers, or let someone else sign"
	case operation.ClusterUnknown, operation.ClusterDiffers:
		return "write a new operation with the cluster's name and its spec.id"
	case operation.CreatedAhead:
		return "look at the clocks, wait until then, or write a new operation"
	case operation.Expired, operation.LivesTooLong:
		return "write a new operation, with another name and other times, and sign that"
	case operation.AlreadyAccepted, operation.NameUsed:
		return "write a new operation under another name"
	case operation.BytesChanged:
		return "put the file back as it was, or cancel the operation and write a new one"
	}
	return ""
}
