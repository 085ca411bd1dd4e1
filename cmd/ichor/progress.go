package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"ichor.maesh.dev/internal/bytesize"
)

// How often progress is shown: a line that is written over on a terminal, a new line elsewhere.
const (
	progressOnTerminal = 200 * time.Millisecond
	progressInPipe     = 10 * time.Second
)

// progressReader says on standard error how far the reading of something long has come.
type progressReader struct {
	io.ReadCloser
	app         *app
	name        string
	total, done int64
	terminal    bool
	last        time.Time
}

func (a *app) progress(name string, total int64, body io.ReadCloser) io.ReadCloser {
	p := &progressReader{ReadCloser: body, app: a, name: name, total: total, last: a.clock.Now()}
	if file, ok := a.err.(*os.File); ok {
		p.terminal = term.IsTerminal(int(file.Fd())) && a.getenv("TERM") != "dumb"
	}
	return p
}

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	p.done += int64(n)
	interval := progressInPipe
	if p.terminal {
		interval = progressOnTerminal
	}
	if now := p.app.clock.Now(); now.Sub(p.last) >= interval {
		p.last = now
		p.show()
	}
	if p.terminal && errors.Is(err, io.EOF) {
		fmt.Fprint(p.app.err, "\r\x1b[K")
	}
	return n, err
}

func (p *progressReader) show() {
	text := fmt.Sprintf("reading %s: %s of %s", p.app.clean(p.name), bytesize.Text(p.done), bytesize.Text(p.total))
	if p.terminal {
		fmt.Fprintf(p.app.err, "\r\x1b[K%s", text)
		return
	}
	fmt.Fprintln(p.app.err, text)
}

// Close ends the line that is being written over, so that an error doesn't follow on it.
func (p *progressReader) Close() error {
	if p.terminal {
		fmt.Fprint(p.app.err, "\r\x1b[K")
	}
	return p.ReadCloser.Close()
}
