package member

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
)

// senderCable lays the cable of the machine that a connection comes from. A peer says who it is in its first request.
func (cfg Config) senderCable(front net.Conn) net.Conn {
	in := bufio.NewReaderSize(front, 8<<10)
	peer := cfg.Network.Member(sender(in))
	read := &buffered{Conn: front, in: in}
	if !peer.IsValid() || peer == cfg.Address {
		return read
	}
	return cfg.Network.Link(peer).Wrap(read)
}

type buffered struct {
	net.Conn
	in *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

// sender reads ahead to the end of an HTTP/1 request's headers and returns the ID of the etcd member that sent it, "" when
// it is none. It consumes nothing.
func sender(in *bufio.Reader) string {
	for size := 1; size <= in.Size(); {
		if _, err := in.Peek(size); err != nil {
			return ""
		}
		head, _ := in.Peek(in.Buffered())
		if head[0] != 'G' && head[0] != 'P' || bytes.HasPrefix(head, []byte("PRI ")) {
			return ""
		}
		if end := bytes.Index(head, []byte("\r\n\r\n")); end >= 0 {
			req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head[:end+4])))
			if err != nil {
				return ""
			}
			return req.Header.Get("X-Server-From")
		}
		size = len(head) + 1
	}
	return ""
}
