package kube

import (
	"bytes"
	"mime"
	"net/http"

	"ichor.maesh.dev/internal/wirecount"
)

// The kinds of replies that are decoded.
const (
	kindJSON     = "application/json"
	kindProtobuf = "application/vnd.kubernetes.protobuf"
	kindText     = "text/plain"
)

// onlyKnownKinds gives the kind of a reply, and makes one that wasn't asked for a plain text: client-go decodes what the server says that it is,
// YAML with its aliases too.
func onlyKnownKinds(header http.Header) string {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err == nil && (kind == kindJSON || kind == kindProtobuf) {
		return kind
	}
	header.Set("Content-Type", kindText)
	return kindText
}

// envelope is what every object in protobuf begins with.
var envelope = []byte("k8s\x00")

// replyValues counts what a reply may hold once it is decoded.
func replyValues(kind string, data []byte) int {
	switch kind {
	case kindProtobuf:
		return wirecount.Values(bytes.TrimPrefix(data, envelope), maxReplyValues)
	case kindJSON:
		return jsonValues(data)
	}
	return 0
}

// jsonValues counts what begins a value or parts two of them, outside of texts.
func jsonValues(data []byte) int {
	count, text := 0, false
	for at := 0; at < len(data); at++ {
		switch c := data[at]; {
		case text && c == '\\':
			at++
		case c == '"':
			text = !text
		case text:
		case c == ',' || c == '{' || c == '[':
			count++
		}
	}
	return count
}
