package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/schema"
)

// opVerifyFlags are the command line of op verify.
type opVerifyFlags struct {
	signers    signerFlags
	at, output string
	override   bool
}

// opVerifyAnswer is what op verify says, and its -o json.
type opVerifyAnswer struct {
	File     string            `json:"file"`
	At       time.Time         `json:"at"`
	Accepted bool              `json:"accepted"`
	Name     string            `json:"name,omitempty"`
	Cluster  string            `json:"cluster,omitempty"`
	ID       string            `json:"clusterID,omitempty"`
	Kind     string            `json:"kind,omitempty"`
	Does     string            `json:"does,omitempty"`
	Digest   string            `json:"digest"`
	Expires  *time.Time        `json:"expiresAt,omitempty"`
	Signer   *opVerifySigner   `json:"signer,omitempty"`
	Refusals []opVerifyRefusal `json:"refusals"`
}

// opVerifySigner is whose signature it is.
type opVerifySigner struct {
	Principal   string               `json:"principal"`
	Fingerprint string               `json:"fingerprint"`
	Line        int                  `json:"line"`
	Namespace   string               `json:"namespace"`
	Certificate *opVerifyCertificate `json:"certificate,omitempty"`
}

type opVerifyCertificate struct {
	Serial      uint64    `json:"serial"`
	KeyID       string    `json:"keyID"`
	Authority   string    `json:"authority"`
	ValidBefore time.Time `json:"validBefore"`
}

type opVerifyRefusal struct {
	Reason  operation.Reason `json:"reason"`
	Message string           `json:"message"`
	Hint    string           `json:"hint"`
}

func (a *app) opVerifyCommand() *cobra.Command {
	f := &opVerifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Say whose signature stands beside an operation, and whether it would be accepted",
		Long: `Judges FILE and FILE.sig by the file of allowed signers, as the agent does before it accepts an operation: the file, the
signature, the key's line, the times. It says who signed and which line allows it, or each reason why not.

What the fleet repository knows of the cluster and the machine is for 'ichor validate'; whether the name was used before,
the agent alone knows.`,
		Example: `  ichor op verify operations/20261129-reboot-w1.yaml --allowed-signers ~/allowed_signers
  ichor op verify operations/20261129-reboot-w1.yaml --allowed-signers ~/allowed_signers --at 2026-11-29T12:00:00Z`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return a.opVerify(f, args[0]) },
	}
	flags := cmd.Flags()
	f.signers.add(flags)
	flags.StringVar(&f.at, "at", "", "judge as at this time, as in 2026-11-29T12:00:00Z (default: now)")
	flags.BoolVar(&f.override, "override", false, "ask for the override namespace: for a resume or cancel of what wipes or rewinds")
	addOutput(flags, &f.output, "text", "json")
	return cmd
}

func (a *app) opVerify(f *opVerifyFlags, file string) error {
	if err := checkOutput(f.output, "text", "json"); err != nil {
		return err
	}
	now := a.clock.Now()
	if f.at != "" {
		at, err := time.Parse(time.RFC3339, f.at)
		if err != nil {
			return usageError(fmt.Errorf("--at %q is no time", f.at), "write it as in 2026-11-29T12:00:00Z")
		}
		now = at
	}
	signers, err := f.signers.mustLoad()
	if err != nil {
		return err
	}
	data, err := readOperation(file)
	if err != nil {
		return err
	}
	armoured, err := readAtMost(file+operation.SignatureSuffix, maxOperation)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cannot(err, "")
	}
	answer, op, sure := judgeOperation(signers, file, data, armoured, f.override, now)
	if f.output == "json" {
		encoder := json.NewEncoder(a.out)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(answer); err != nil {
			return err
		}
	} else {
		a.sayVerified(answer, op, now)
	}
	if !sure {
		fmt.Fprintln(a.err, "the operation that it names isn't beside it, so an ordinary namespace was taken for enough; --override asks for more")
	}
	if !answer.Accepted {
		return errNo
	}
	return nil
}

// judgeOperation asks everything that can be asked of the two files and the signers, so that all that is wrong is said at once.
func judgeOperation(signers *operation.AllowedSigners, file string, data, armoured []byte, asked bool, now time.Time) (answer opVerifyAnswer, op *schema.TalosOperation, sure bool) {
	answer = opVerifyAnswer{File: file, At: now.UTC(), Digest: operation.Digest(data), Refusals: []opVerifyRefusal{}}
	refuse := func(refusal *operation.Refusal) {
		if refusal != nil {
			answer.Refusals = append(answer.Refusals, opVerifyRefusal{refusal.Reason, refusal.Message, wayOut(refusal.Reason)})
		}
	}
	op, refusal := operation.Read(file, data)
	if refusal != nil {
		refuse(refusal)
		return answer, nil, true
	}
	expires := op.Spec.ExpiresAt.UTC()
	answer.Name, answer.Cluster, answer.ID, answer.Expires = op.Metadata.Name, op.Spec.ClusterRef.Name, op.Spec.ClusterRef.ID, &expires
	answer.Kind, answer.Does = kindOf(op.Spec), operation.Sentence(op.Spec)
	override, sure := needsOverride(file, op, asked)
	signer, refusal := signers.Verify(data, armoured, now, operation.Namespaces(op.Spec, override)...)
	refuse(refusal)
	if refusal == nil {
		answer.Signer = &opVerifySigner{Principal: signer.Principal, Fingerprint: signer.Fingerprint, Line: signer.Line, Namespace: signer.Namespace}
		if c := signer.Certificate; c != nil {
			answer.Signer.Certificate = &opVerifyCertificate{c.Serial, c.KeyID, c.Authority, c.ValidBefore}
		}
	}
	refuse(operation.CheckTimes(op.Spec, override, now))
	answer.Accepted = len(answer.Refusals) == 0
	return answer, op, sure
}

func (a *app) sayVerified(answer opVerifyAnswer, op *schema.TalosOperation, now time.Time) {
	if op != nil {
		for _, line := range describeOperation(op, now) {
			fmt.Fprintln(a.out, a.clean(line))
		}
	}
	if s := answer.Signer; s != nil {
		text := fmt.Sprintf("signed by %s with the key %s for %s; line %d of the allowed signers allows it", s.Principal, s.Fingerprint, s.Namespace, s.Line)
		if c := s.Certificate; c != nil {
			text += fmt.Sprintf(", by the certificate %q (serial %d) of %s, which ends at %s", c.KeyID, c.Serial, c.Authority, c.ValidBefore.UTC().Format(time.RFC3339))
		}
		fmt.Fprintln(a.out, a.clean(text))
	}
	for _, refusal := range answer.Refusals {
		fmt.Fprintf(a.out, "refused (%s): %s\n", refusal.Reason, a.clean(refusal.Message))
		fmt.Fprintf(a.out, "  → %s\n", refusal.Hint)
	}
}
