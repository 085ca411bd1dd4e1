package cleartext

import (
	"bytes"
	"sort"
)

// text is what is searched.
type text struct {
	// lower is data in lower case, byte by byte.
	data, lower []byte
	documents   []*document
}

// document is a part of a text, up to the next line of three dashes, and what it looks like.
type document struct {
	number, begin, end int
	looked             bool

	bundle, kubeconfig, talosconfig, machineConfig, accessKey, registries bool
}

// maxDocuments is how many documents of a file are told apart; what comes after is one.
const maxDocuments = 10_000

func newText(data []byte) *text {
	t := &text{data: data, lower: lowered(data)}
	begin := 0
	for from := 0; len(t.documents) < maxDocuments; {
		next := bytes.Index(data[from:], []byte("\n---"))
		if next < 0 {
			break
		}
		at := from + next + 1
		from = at + 3
		if from == len(data) || data[from] == '\n' || data[from] == '\r' || data[from] == ' ' {
			t.documents = append(t.documents, &document{number: len(t.documents), begin: begin, end: at})
			begin = at
		}
	}
	t.documents = append(t.documents, &document{number: len(t.documents), begin: begin, end: len(data)})
	return t
}

// at gives the document that an offset lies in.
func (t *text) at(offset int) *document {
	n := sort.Search(len(t.documents), func(n int) bool { return t.documents[n].end > offset })
	return t.documents[min(n, len(t.documents)-1)]
}

// hasKey says whether a text has a key of that name, with a value in its line.
func hasKey(lower []byte, name string, withValue bool) bool {
	const tries = 1000
	from := 0
	for range tries {
		next := bytes.Index(lower[from:], []byte(name))
		if next < 0 {
			return false
		}
		begin := from + next
		from = begin + len(name)
		if begin > 0 && isWord(lower[begin-1]) {
			continue
		}
		rest := scanner(lower[from:])
		rest.quote()
		rest.space("\t ")
		if !rest.one(":") {
			continue
		}
		rest.space("\t ")
		if !withValue || len(rest) > 0 && rest[0] != '\n' && rest[0] != '\r' {
			return true
		}
	}
	return false
}

// around gives the document that an offset lies in, looked at once.
func (t *text) around(offset int) *document {
	d := t.at(offset)
	if d.looked {
		return d
	}
	d.looked = true
	lower := t.lower[d.begin:d.end]
	has := func(words ...string) bool {
		for _, word := range words {
			if !bytes.Contains(lower, []byte(word)) {
				return false
			}
		}
		return true
	}
	d.bundle = has("trustdinfo") || has("bootstraptoken")
	d.kubeconfig = has("clusters", "users", "contexts") || has("client-key-data")
	d.talosconfig = !d.kubeconfig && has("contexts", "ca", "crt", "key")
	d.machineConfig = hasKey(lower, "machine", false) || hasKey(lower, "cluster", false)
	for _, name := range []string{"accesskeyid", "accesskey", "access_key", "access-key"} {
		d.accessKey = d.accessKey || hasKey(lower, name, true)
	}
	d.registries = has("registryauthconfig") || hasKey(lower, "machine", false) && hasKey(lower, "registries", false) && hasKey(lower, "auth", false)
	return d
}

// label says what a key in the document is part of.
func (d *document) label(what What) What {
	switch {
	case what != PrivateKey:
		return what
	case d.bundle:
		return Bundle
	case d.kubeconfig:
		return Kubeconfig
	case d.talosconfig:
		return Talosconfig
	case d.machineConfig:
		return MachineConfig
	}
	return what
}
