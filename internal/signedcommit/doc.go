// Package signedcommit takes the object of a Git commit apart into what was signed and the signature, and judges OpenPGP
// signatures. Those of SSH keys are judged by package operation, which knows the allowed signers.
//
// It reads no commit that two programs could read differently: headers in another order, twice, with control characters, or
// hidden beside the signature are refused, because what is acted upon must be what was signed.
//
// OpenPGP is the library's, of which go-git is made too. What it lets pass and should not (SHA-1, small keys, text signatures,
// several signatures in one) is refused here.
package signedcommit
