// Package operation reads, signs and judges the files of signed operations.
//
// An operation is a file of the kind TalosOperation and an OpenSSH signature over its exact bytes, as `ssh-keygen -Y sign`
// writes it. [Read] takes the file apart, [Sign] makes the signature, and [AllowedSigners] holds who may sign what: a file in
// OpenSSH's format that stands outside the fleet repository, since who may push must not decide who may wipe.
//
// Nothing here does I/O or looks at a clock. What is refused is a [Refusal]: a stable [Reason] and a sentence. [Admit] asks
// everything that is asked before an operation is accepted; its parts are asked again when the operation starts or is resumed.
//
// The identity of an operation is its cluster's ID, its name and the SHA-256 of its file, never the bytes of the signature:
// a signature can be made anew, and some kinds can be altered by anyone without becoming wrong.
//
// The format of the file and its signature stays: what one version of Ichor accepts, later ones do. docs/operations/signing.md
// describes it for those who sign by hand.
package operation
