package statefile

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// recordFormat names the envelope of every sealed object.
const recordFormat = "ichor.maesh.dev/record/v1"

// maxGeneration keeps generations exact in every JSON reader.
const maxGeneration = 1 << 53

// Errors about what a record holds.
var (
	// ErrNewerSchema: the record was written by a newer program. It is not read further and never rewritten.
	ErrNewerSchema = errors.New("written by a newer ichor")
	// ErrNoSealer: the cluster's secrets bundle isn't there, so nothing can be sealed and nothing is written.
	ErrNoSealer = errors.New("without the cluster's secrets bundle nothing can be sealed, so nothing is written; give the agent an identity that opens it (--age-identity)")
)

// StateForgedError says that a sealed record was not written by anyone who holds the cluster's secrets bundle.
type StateForgedError struct {
	Key string
	Why string
}

func (e *StateForgedError) Error() string {
	return fmt.Sprintf("%s: %s: someone without this cluster's secrets bundle wrote it, or it was sealed with another bundle; "+
		"find out who can write the bucket, then put a good version back", e.Key, e.Why)
}

// Record is the envelope of state, marker, index and audit event: who wrote it is proved by its seal, which write it was by its
// nonce.
type Record struct {
	Key        string
	Generation uint64
	Nonce      string
	// Content is JSON, byte for byte what the seal covers.
	Content json.RawMessage
	// Checked says that the seal was checked and is good. False: there was no key to check it with.
	Checked bool
}

// NewNonce makes the random name of one write.
func NewNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}

type recordHeader struct {
	Format     string `json:"format"`
	Key        string `json:"key"`
	Generation uint64 `json:"generation"`
	Nonce      string `json:"nonce"`
	Seal       string `json:"seal"`
}

type recordFile struct {
	recordHeader
	Content json.RawMessage `json:"content"`
}

// EncodeRecord seals a record and gives the bytes of its object: valid JSON in two lines, the second of which is the content.
// Content must be JSON in one line.
func EncodeRecord(sealer *Sealer, key string, generation uint64, nonce string, content []byte) ([]byte, error) {
	if sealer == nil {
		return nil, ErrNoSealer
	}
	if !json.Valid(content) || bytes.ContainsAny(content, "\n\r") {
		return nil, fmt.Errorf("sealing %s: the content is not JSON in one line", key)
	}
	if generation == 0 || generation > maxGeneration {
		return nil, fmt.Errorf("sealing %s: the generation %d is out of range", key, generation)
	}
	header, err := json.Marshal(recordHeader{
		Format: recordFormat, Key: key, Generation: generation, Nonce: nonce,
		Seal: sealer.Seal(key, generation, nonce, content),
	})
	if err != nil {
		return nil, fmt.Errorf("sealing %s: %w", key, err)
	}
	var out bytes.Buffer
	out.Write(bytes.TrimSuffix(header, []byte("}")))
	out.WriteString(",\n\"content\":")
	out.Write(content)
	out.WriteString("}\n")
	return out.Bytes(), nil
}

// DecodeRecord opens the object at key. With a sealer a record that is not well sealed, or was sealed for another key, is a
// [*StateForgedError]; without one the record comes back with Checked false and must be used for showing only.
func DecodeRecord(sealer *Sealer, key string, data []byte) (*Record, error) {
	var file recordFile
	if err := decodeStrict(data, &file); err != nil {
		if newer := newerFormat(data); newer != "" {
			return nil, fmt.Errorf("%s has the format %q: %w; this one knows %s", key, newer, ErrNewerSchema, recordFormat)
		}
		return nil, &StateForgedError{Key: key, Why: "it is no record: " + err.Error()}
	}
	switch {
	case file.Format != recordFormat:
		if newer := newerFormat(data); newer != "" {
			return nil, fmt.Errorf("%s has the format %q: %w; this one knows %s", key, newer, ErrNewerSchema, recordFormat)
		}
		return nil, &StateForgedError{Key: key, Why: fmt.Sprintf("it has the format %.60q", file.Format)}
	case file.Key != key:
		return nil, &StateForgedError{Key: key, Why: fmt.Sprintf("it is the record of %.120q", file.Key)}
	case file.Generation == 0 || file.Generation > maxGeneration:
		return nil, &StateForgedError{Key: key, Why: "its generation is out of range"}
	case len(file.Content) == 0:
		return nil, &StateForgedError{Key: key, Why: "it has no content"}
	}
	record := &Record{Key: key, Generation: file.Generation, Nonce: file.Nonce, Content: file.Content}
	if sealer == nil {
		return record, nil
	}
	if !sealer.Check(file.Seal, key, file.Generation, file.Nonce, file.Content) {
		return nil, &StateForgedError{Key: key, Why: "its seal is wrong"}
	}
	record.Checked = true
	return record, nil
}

// newerFormat gives the format of a record of a later version, or "".
func newerFormat(data []byte) string {
	var probe struct {
		Format string `json:"format"`
	}
	if json.Unmarshal(data, &probe) != nil {
		return ""
	}
	var version int
	if n, err := fmt.Sscanf(probe.Format, "ichor.maesh.dev/record/v%d", &version); n == 1 && err == nil && version > 1 && version < 1000 {
		return fmt.Sprintf("ichor.maesh.dev/record/v%d", version)
	}
	return ""
}

// decodeStrict decodes one JSON value, refusing unknown fields and anything after it.
func decodeStrict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
