package backup

import (
	"io"
	"sync"
)

const (
	// besideBuffers is how many buffers a goroutine beside a stream may lag behind it, and besideBuffer how many bytes each holds: two
	// chunks of age's.
	besideBuffers = 4
	besideBuffer  = 128 << 10
)

// besideWriter passes what is written on to a writer in a goroutine of its own, so that hashing and sealing share no core.
type besideWriter struct {
	full, free chan []byte
	done       chan struct{}
	once       sync.Once
}

// beside begins to write to w, whose Write must never fail, until wait.
func beside(w io.Writer) *besideWriter {
	b := &besideWriter{full: make(chan []byte, besideBuffers), free: make(chan []byte, besideBuffers), done: make(chan struct{})}
	for range besideBuffers {
		b.free <- make([]byte, besideBuffer)
	}
	go func() {
		defer close(b.done)
		for buffer := range b.full {
			_, _ = w.Write(buffer)
			b.free <- buffer[:besideBuffer]
		}
	}()
	return b
}

// Write never fails. It keeps nothing of p.
func (b *besideWriter) Write(p []byte) (int, error) {
	written := len(p)
	for len(p) > 0 {
		buffer := <-b.free
		n := copy(buffer, p)
		b.full <- buffer[:n]
		p = p[n:]
	}
	return written, nil
}

// wait returns when all has been written to the writer. Nothing may be written after it.
func (b *besideWriter) wait() {
	b.once.Do(func() { close(b.full) })
	<-b.done
}
