package gitsource

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
)

// session is one conversation with git-upload-pack.
type session interface {
	AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error)
	UploadPack(ctx context.Context, request *packp.UploadPackRequest) (*packp.UploadPackResponse, error)
	Close() error
}

// pushSession is one conversation with git-receive-pack.
type pushSession interface {
	AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error)
	ReceivePack(ctx context.Context, request *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error)
	Close() error
}

// stream is a session over two pipes: a process of this machine, or a command over ssh. A context that ends kills it.
type stream struct {
	in  io.WriteCloser
	out io.Reader
	// kill ends the other side at once; wait waits for its end and gives what it wrote to its standard error.
	kill func()
	wait func() string

	// asked is set once a pack was asked for: then the other side may be in the middle of sending it.
	asked     bool
	closeOnce sync.Once
	stderr    string
}

// goodbyeTimeout bounds how long the other side may take to end by itself.
const goodbyeTimeout = 2 * time.Second

var (
	_ session     = (*stream)(nil)
	_ pushSession = (*stream)(nil)
)

// remoteError is what git on the other side said on its standard error before it ended.
type remoteError struct{ text string }

func (e *remoteError) Error() string { return e.text }

func (s *stream) AdvertisedReferencesContext(ctx context.Context) (*packp.AdvRefs, error) {
	defer context.AfterFunc(ctx, s.kill)()
	refs := packp.NewAdvRefs()
	err := refs.Decode(io.LimitReader(s.out, maxRefs))
	switch {
	case err == nil && !refs.IsEmpty():
		return refs, nil
	case err == nil || errors.Is(err, packp.ErrEmptyAdvRefs):
		return nil, transport.ErrEmptyRemoteRepository
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	// The reason, if there is one, is on standard error.
	if text := s.end(); text != "" {
		return nil, &remoteError{text: text}
	}
	return nil, err
}

func (s *stream) UploadPack(ctx context.Context, request *packp.UploadPackRequest) (*packp.UploadPackResponse, error) {
	if err := request.Validate(); err != nil {
		return nil, err
	}
	s.asked = true
	stop := context.AfterFunc(ctx, s.kill)
	var message bytes.Buffer
	err := errors.Join(request.UploadRequest.Encode(&message), request.UploadHaves.Encode(&message, false),
		pktline.NewEncoder(&message).EncodeString("done\n"))
	if err == nil {
		_, err = s.in.Write(message.Bytes())
	}
	if err != nil {
		stop()
		return nil, err
	}
	response := packp.NewUploadPackResponse(request)
	if err := response.Decode(&streamBody{stream: s, stop: stop, ctx: ctx}); err != nil {
		stop()
		return nil, err
	}
	return response, nil
}

// ReceivePack sends commits, and gives what the other side says to them.
func (s *stream) ReceivePack(ctx context.Context, request *packp.ReferenceUpdateRequest) (*packp.ReportStatus, error) {
	s.asked = true
	defer context.AfterFunc(ctx, s.kill)()
	if err := request.Encode(s.in); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	var answer io.Reader = s.out
	switch {
	case request.Capabilities.Supports(capability.Sideband64k):
		answer = sideband.NewDemuxer(sideband.Sideband64k, s.out)
	case request.Capabilities.Supports(capability.Sideband):
		answer = sideband.NewDemuxer(sideband.Sideband, s.out)
	}
	report := packp.NewReportStatus()
	if err := report.Decode(answer); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if text := s.end(); text != "" {
			return nil, &remoteError{text: text}
		}
		return nil, err
	}
	return report, report.Error()
}

// Close says goodbye where nothing was asked for, ends the other side and waits for its end.
func (s *stream) Close() error {
	s.end()
	return nil
}

func (s *stream) end() string {
	s.closeOnce.Do(func() {
		if s.asked {
			s.kill()
		} else {
			_, _ = s.in.Write(pktline.FlushPkt)
		}
		_ = s.in.Close()
		timer := time.AfterFunc(goodbyeTimeout, s.kill)
		defer timer.Stop()
		s.stderr = s.wait()
		s.kill()
	})
	return s.stderr
}

// streamBody is the pack as it arrives.
type streamBody struct {
	stream *stream
	stop   func() bool
	ctx    context.Context
}

func (b *streamBody) Read(p []byte) (int, error) {
	n, err := b.stream.out.Read(p)
	if err != nil && b.ctx.Err() != nil {
		err = b.ctx.Err()
	}
	return n, err
}

func (b *streamBody) Close() error {
	b.stop()
	return nil
}

// lineBuffer keeps the first line, up to 1 KiB, of what is written to it.
type lineBuffer struct {
	mu   sync.Mutex
	data []byte
}

func (l *lineBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := 1024 - len(l.data); room > 0 {
		l.data = append(l.data, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// text gives the first line that isn't blank.
func (l *lineBuffer) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.data) {
		line = bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(line), []byte("remote:")))
		if len(line) > 0 {
			return string(line)
		}
	}
	return ""
}
