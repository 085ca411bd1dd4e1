package operation

import (
	"fmt"
	"time"

	"golang.org/x/crypto/ssh"

	"ichor.maesh.dev/internal/printable"
)

// CommitNamespace is what Git has the signatures of commits made for.
const CommitNamespace = "git"

// VerifyCommit says whose signature of a commit it is: payload is the commit's object without the signature. It is [AllowedSigners.Verify]
// for [CommitNamespace] with one difference, which is OpenSSH's own rule: a line without namespaces= allows it.
//
// The right is judged at now, not at the time that the commit bears: that one is written by the signer, and who holds a key that was
// taken away could write any.
func (s *AllowedSigners) VerifyCommit(payload, armoured []byte, now time.Time) (Signer, *Refusal) {
	return s.Verify(payload, armoured, now, CommitNamespace)
}

// CommitSigners says of each line whose key may sign commits who that is, in the order of the lines.
func (s *AllowedSigners) CommitSigners() []string {
	var list []string
	for _, line := range s.lines {
		if _, revoked := s.revoked[string(line.key.Marshal())]; revoked || strongKey("", line.key) != nil || line.hasNamespaces && !line.allows(CommitNamespace) {
			continue
		}
		who := fmt.Sprintf("%s (%s, line %d)", printable.Text(line.principals), ssh.FingerprintSHA256(line.key), line.number)
		if line.authority {
			who = fmt.Sprintf("those of %s with a certificate of %s (line %d)", printable.Text(line.principals), ssh.FingerprintSHA256(line.key), line.number)
		}
		list = append(list, who+during(line.after, line.before))
	}
	return list
}

// during says the bounds of a right in time; empty when there are none.
func during(from, until time.Time) string {
	text := ""
	if !from.IsZero() {
		text += " from " + from.Format(time.RFC3339)
	}
	if !until.IsZero() {
		text += " until " + until.Format(time.RFC3339)
	}
	return text
}
