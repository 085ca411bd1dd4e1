package schema

import (
	"bytes"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Text says where each character of a scalar stands in its file, however YAML wrote it: plain, quoted, literal or folded.
// Folding changes nothing but blanks, so the characters that aren't blank are the same ones in the same order.
type Text struct {
	value string
	// marks are the places of the characters of the value that aren't blank.
	marks []mark
	start Position
}

type mark struct{ line, column int32 }

// At gives the place of the character at an offset in bytes. That of a blank is the one after the character before it.
func (t Text) At(offset int) Position {
	before := 0
	for _, r := range t.value[:min(max(offset, 0), len(t.value))] {
		if !unicode.IsSpace(r) {
			before++
		}
	}
	at := t.start
	r, _ := utf8.DecodeRuneInString(t.value[min(max(offset, 0), len(t.value)):])
	onCharacter := offset < len(t.value) && !unicode.IsSpace(r)
	switch {
	case onCharacter && before < len(t.marks):
		at.Line, at.Column = int(t.marks[before].line), int(t.marks[before].column)
	case before > 0 && before <= len(t.marks):
		at.Line, at.Column = int(t.marks[before-1].line), int(t.marks[before-1].column)+1
	}
	return at
}

// fileLines finds the beginnings of the lines of a file, once they are asked for.
type fileLines struct {
	data   []byte
	starts []int
}

// newLines leaves a byte order mark out: the parser doesn't count it.
func newLines(data []byte) *fileLines {
	return &fileLines{data: bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))}
}

func (l *fileLines) find() {
	if l.starts != nil {
		return
	}
	l.starts = []int{0}
	for i, c := range l.data {
		if c == '\n' {
			l.starts = append(l.starts, i+1)
		}
	}
}

// text finds the characters of a scalar in its file.
func (l *fileLines) text(file string, n *yaml.Node) Text {
	t := Text{value: n.Value, start: Position{File: file, Line: n.Line, Column: n.Column}}
	if l.find(); n.Line < 1 || n.Line > len(l.starts) {
		return t
	}
	r := &rawText{data: l.data, at: l.starts[n.Line-1], line: n.Line, column: 1}
	for r.column < n.Column && r.more() {
		r.next()
	}
	r.skipProperties()
	quote := byte(0)
	switch {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		for r.more() && r.data[r.at] != '\n' { // the header
			r.next()
		}
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 && r.more():
		quote = r.data[r.at]
		r.next()
	}
	for _, want := range n.Value {
		if unicode.IsSpace(want) {
			continue
		}
		r.skipBlanks(quote)
		if !r.more() {
			break
		}
		t.marks = append(t.marks, mark{int32(r.line), int32(r.column)})
		r.character(quote)
	}
	return t
}

// rawText is a place in a file, moved on character by character.
type rawText struct {
	data         []byte
	at           int
	line, column int
}

func (r *rawText) more() bool { return r.at < len(r.data) }

// next moves on by one character and gives it.
func (r *rawText) next() rune {
	c, size := utf8.DecodeRune(r.data[r.at:])
	r.at += size
	r.column++
	if c == '\n' {
		r.line, r.column = r.line+1, 1
	}
	return c
}

// skipProperties passes an anchor and a tag before the value.
func (r *rawText) skipProperties() {
	for r.more() && (r.data[r.at] == '&' || r.data[r.at] == '!') {
		for r.more() && !unicode.IsSpace(rune(r.data[r.at])) {
			r.next()
		}
		for r.more() && unicode.IsSpace(rune(r.data[r.at])) {
			r.next()
		}
	}
}

// skipBlanks passes blanks, and the escapes that stand for blanks or for nothing.
func (r *rawText) skipBlanks(quote byte) {
	for r.more() {
		c, _ := utf8.DecodeRune(r.data[r.at:])
		if quote == '"' && c == '\\' {
			escaped := *r
			if unicode.IsSpace(escaped.escape()) {
				*r = escaped
				continue
			}
			return
		}
		if !unicode.IsSpace(c) {
			return
		}
		r.next()
	}
}

// character passes one character as YAML wrote it.
func (r *rawText) character(quote byte) {
	if quote == '"' && r.data[r.at] == '\\' {
		r.escape()
		return
	}
	if c := r.next(); quote == '\'' && c == '\'' && r.more() {
		r.next()
	}
}

// escape passes an escape between double quotes and gives what it stands for, as far as that may be a blank.
func (r *rawText) escape() rune {
	r.next()
	if !r.more() {
		return 0
	}
	c := r.next()
	digits := map[rune]int{'x': 2, 'u': 4, 'U': 8}[c]
	if digits == 0 {
		if strings.ContainsRune("ntrvf \t\r\nNLP_", c) {
			return ' '
		}
		return c
	}
	end := min(r.at+digits, len(r.data))
	code, err := strconv.ParseUint(string(r.data[r.at:end]), 16, 32)
	for r.at < end {
		r.next()
	}
	if err != nil {
		return 0
	}
	return rune(code)
}
