// Package scrub keeps secrets out of texts. A Scrubber is told the secrets (credentials, passphrases, a bundle's values,
// what came out of sealed files) and replaces them wherever they appear: as they are, line by line, escaped for a URL or
// for JSON, in hexadecimal, and inside base64 at any alignment. It also takes out control characters, terminal escapes and
// bidirectional overrides, because the same texts come from repositories, nodes and stores and end on a terminal.
//
// Handler wraps an slog.Handler so that no record escapes it; Recover does the same for a panic.
//
// Values shorter than MinLength are not looked for: hiding every "true" would make texts useless and hide nothing.
package scrub
