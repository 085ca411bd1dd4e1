package apid

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

// JournalFile is the journal's name in a node's folder.
const JournalFile = "journal.jsonl"

// Entry is one call that a node got, written when the node's answer was known and before it was sent; or, when Corrects is
// set, what became known of an earlier entry later.
type Entry struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	Node   string    `json:"node,omitempty"`
	BootID string    `json:"bootID,omitempty"`
	Caller Caller    `json:"caller"`
	// Route is the metadata by which the call was routed: "", "node" or "nodes".
	Route string `json:"route,omitempty"`
	// Proxied: another node's front passed the call on.
	Proxied bool `json:"proxied,omitempty"`
	// Forwarded are the targets to which this node's front passed the call on; then this node did nothing itself.
	Forwarded []string `json:"forwarded,omitempty"`
	Method    string   `json:"method"`
	// Request is a redacted summary; never a config, never a secret.
	Request map[string]any `json:"request,omitempty"`
	Code    string         `json:"code"`
	Text    string         `json:"text,omitempty"`
	// Mutating: the method changes something when it succeeds.
	Mutating bool `json:"mutating,omitempty"`
	// Accepted: the node took a mutating call. OK alone is not enough where Talos answers OK and drops the call.
	Accepted bool `json:"accepted,omitempty"`
	// Note says why Accepted differs from the answer.
	Note string `json:"note,omitempty"`
	// Corrects is the sequence number of the entry whose Accepted and Note this line replaces.
	Corrects uint64 `json:"corrects,omitempty"`
}

// Journal is every call that one node got, in memory and, when it was opened with a folder, in a file of JSON lines.
type Journal struct {
	node  string
	clock clock.PassiveClock

	mu      sync.Mutex
	file    *os.File
	entries []Entry
	seq     uint64
	err     error
}

// NewJournal keeps a node's journal in memory.
func NewJournal(node string, c clock.PassiveClock) *Journal {
	return &Journal{node: node, clock: c}
}

// OpenJournal keeps it also in dir/journal.jsonl, going on after what is there.
func OpenJournal(dir, node string, c clock.PassiveClock) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of %s's journal: %w", node, err)
	}

	path := filepath.Join(dir, JournalFile)

	entries, err := ReadJournal(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}

	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening %s's journal: %w", node, err)
	}

	j := NewJournal(node, c)
	j.file, j.entries = file, entries

	for _, e := range entries {
		j.seq = max(j.seq, e.Seq)
	}

	return j, nil
}

// Close closes the file; it also returns the first error that writing met.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()

	if j.file == nil {
		return j.err
	}

	err := errors.Join(j.err, j.file.Close())
	j.file = nil

	return err
}

// Entries are the calls so far, oldest first, corrections applied.
func (j *Journal) Entries() []Entry {
	j.mu.Lock()
	defer j.mu.Unlock()

	return slices.Clone(j.entries)
}

// Accepted are the calls of a method that the node took. The method is the bare name ("Bootstrap") or the full one.
func (j *Journal) Accepted(method string) []Entry {
	return Accepted(j.Entries(), method)
}

// Accepted filters entries for those of a method, bare or full, that a node took.
func Accepted(entries []Entry, method string) []Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool {
		return !e.Accepted || (e.Method != method && e.Method[strings.LastIndexByte(e.Method, '/')+1:] != method)
	})
}

func (j *Journal) record(e Entry) uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()

	j.seq++
	e.Seq, e.Time, e.Node = j.seq, j.clock.Now().UTC(), j.node

	if e.Corrects == 0 {
		j.entries = append(j.entries, e)
	} else {
		apply(j.entries, e)
	}

	if j.file != nil {
		line, err := json.Marshal(e)
		if err == nil {
			_, err = j.file.Write(append(line, '\n'))
		}

		if err != nil && j.err == nil {
			j.err = fmt.Errorf("writing %s's journal: %w", j.node, err)
		}
	}

	return j.seq
}

func apply(entries []Entry, correction Entry) {
	for i := range entries {
		if entries[i].Seq == correction.Corrects {
			entries[i].Accepted, entries[i].Note = correction.Accepted, correction.Note
		}
	}
}

// ReadJournal reads a journal's file, corrections applied. A last line that is still being written is left out.
func ReadJournal(path string) ([]Entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening a journal: %w", err)
	}

	defer file.Close() //nolint:errcheck // only read from

	return DecodeJournal(file)
}

// DecodeJournal reads JSON lines, corrections applied. A last line without its end is left out.
func DecodeJournal(r io.Reader) ([]Entry, error) {
	var entries []Entry

	reader := bufio.NewReader(r)

	for n := 1; ; n++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return entries, nil
		}

		if err != nil {
			return nil, fmt.Errorf("reading a journal: %w", err)
		}

		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("reading line %d of a journal: %w", n, err)
		}

		if e.Corrects != 0 {
			apply(entries, e)
		} else {
			entries = append(entries, e)
		}
	}
}

type callKey struct{}

// Call is one call in the journal while, and after, it is handled.
type Call struct {
	journal *Journal
	front   string // the call's number at the front, see Server.Answered
	// received summarizes what a stream brought; nil for other calls, whose entry has it.
	received func() map[string]any

	mu       sync.Mutex
	entry    Entry
	override *bool
	note     string
	done     bool
	seq      uint64
}

// CallFrom finds the call of a handler's context. It is never nil; where there is none, what is told to it is dropped.
func CallFrom(ctx context.Context) *Call {
	if call, ok := ctx.Value(callKey{}).(*Call); ok {
		return call
	}

	return &Call{}
}

// WithCall gives a context in which CallFrom finds a call, for what goes on after the call was answered.
func WithCall(ctx context.Context, call *Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}

// SetAccepted says whether the node took the call, where that differs from the answer: a reset that was answered OK and then
// dropped because another sequence held the lock, or an effect that happened although the answer was an error. It may be
// called during the call or after it.
func (c *Call) SetAccepted(accepted bool, note string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.done {
		c.override, c.note = &accepted, note

		return
	}

	if c.journal != nil {
		c.journal.record(Entry{Corrects: c.seq, Method: c.entry.Method, BootID: c.entry.BootID, Accepted: accepted, Note: note})
	}
}

// Settle writes a call's entry before its handler has ended, for one whose caller may hear of the end first.
func (c *Call) Settle(err error) { c.finish(err) }

func (c *Call) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.done {
		return
	}

	c.done = true

	if c.received != nil {
		c.entry.Request = c.received()
	}

	c.entry.Code, c.entry.Text = codeOf(err), answerText(err)
	c.entry.Accepted = err == nil && c.entry.Mutating && !dryRun(c.entry.Request)

	if c.override != nil {
		c.entry.Accepted, c.entry.Note = *c.override, c.note
	}

	if c.journal != nil {
		c.seq = c.journal.record(c.entry)
	}
}

func dryRun(request map[string]any) bool {
	dry, _ := request["dryRun"].(bool)

	return dry
}

func codeOf(err error) string {
	if err == nil {
		return codes.OK.String()
	}

	if s, ok := status.FromError(err); ok {
		return s.Code().String()
	}

	return status.FromContextError(err).Code().String()
}

// answerText is an error's text fit for a journal: what follows "diff:" holds configs.
func answerText(err error) string {
	if err == nil {
		return ""
	}

	text := status.Convert(err).Message()
	if before, _, found := strings.Cut(text, "diff:"); found {
		text = before + "diff: (left out)"
	}

	const most = 400

	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}

		return r
	}, text)

	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}

	return text
}
