// Package cleartext finds secrets that stand in a file as anyone can read them: Talos secrets bundles, machine configs with
// keys, S3 credentials, age identities, talosconfigs, kubeconfigs and private keys of any kind.
//
// It goes by what stands in the file, never by the file's name or format: a bundle in a list, in JSON, in a Markdown page, in
// a comment, in base64 or in UTF-16 is found as one in YAML is. What is sealed with age or sops, a certificate, a public key,
// a placeholder or the mere name of a field is no secret. What it finds it names and places, and never quotes.
//
// Its work is bounded: it looks at the first MaxSearched bytes of a file, in time proportional to them.
package cleartext
