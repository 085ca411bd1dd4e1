// Package sealed opens and makes files sealed with age.
//
// A sealed file may stand wherever a fleet repository names a file. Identities opens both sealed and plain data, so a
// caller needs no case of its own, and remembers every value that came out of a sealed file, so that logs and diffs can
// hide it. X25519 (age-keygen) and SSH (ed25519, RSA) keys are understood, in age's binary and armored form.
//
// Nothing in an error of this package comes from inside a sealed file or an identity.
package sealed
