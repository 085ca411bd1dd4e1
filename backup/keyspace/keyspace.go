// Package keyspace counts what the key space of an etcd database holds. It reads the database through bbolt, so it is called only in a child
// process: a page that lies may take the process down.
package keyspace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"

	"go.etcd.io/bbolt"
)

const (
	keySpace        = "key"
	revisionKeySize = 17
	tombstone       = 't'
	// setSize is how many keys are remembered at a time, at some 40 bytes each. A key space with more entries is walked once for each such
	// share of it.
	setSize = 400_000
	// mostNodes and longestNode bound what is kept of a database that holds anything.
	mostNodes, longestNode = 5_000, 253
	nodePrefix             = "/registry/minions/"
)

// Counts is what a key space holds.
type Counts struct {
	Revision  int64            `json:"revision"`
	Keys      int64            `json:"keys"`
	Resources map[string]int64 `json:"resources,omitempty"`
	// Nodes are the names of its Kubernetes Nodes, sorted: the first [mostNodes] that were met.
	Nodes []string `json:"nodes,omitempty"`
}

// Count is [CountUpTo] for all there is.
func Count(db *bbolt.DB) (Counts, error) { return CountUpTo(db, math.MaxInt64) }

// CountUpTo walks the key space of a database, as it was at a revision: what came later is left out, and what etcd has compacted since
// then is missing. Of each key only the newest entry counts, unless that is its deletion. The mark that bumping a
// revision leaves counts as no key.
func CountUpTo(db *bbolt.DB, upTo int64) (Counts, error) {
	counts := Counts{Revision: 1, Resources: map[string]int64{}}
	err := db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte(keySpace))
		if bucket == nil {
			return fmt.Errorf("the database holds no key space of etcd")
		}
		entries := int64(0)
		cursor := bucket.Cursor()
		for k, _ := cursor.First(); k != nil; k, _ = cursor.Next() {
			if len(k) != revisionKeySize && len(k) != revisionKeySize+1 {
				return fmt.Errorf("the key space has an entry whose key has %d bytes", len(k))
			}
			if at := int64(binary.BigEndian.Uint64(k)); at <= upTo {
				counts.Revision = at
				entries++
			}
		}
		shares := uint64(entries/setSize) + 1
		seed := maphash.MakeSeed()
		for share := range shares {
			if err := countShare(bucket, seed, shares, share, upTo, &counts); err != nil {
				return err
			}
		}
		slices.Sort(counts.Nodes)
		return nil
	})
	return counts, err
}

// countShare counts the keys whose hash falls into one share, from the newest entry to the oldest.
func countShare(bucket *bbolt.Bucket, seed maphash.Seed, shares, share uint64, upTo int64, counts *Counts) error {
	seen := make(map[uint64]struct{})
	cursor := bucket.Cursor()
	for k, v := cursor.Last(); k != nil; k, v = cursor.Prev() {
		if len(v) == 0 || int64(binary.BigEndian.Uint64(k)) > upTo {
			continue // what came later, or the mark of a bumped revision: it is no key's
		}
		key, err := keyOf(v)
		if err != nil {
			return fmt.Errorf("the entry of revision %d: %w", binary.BigEndian.Uint64(k), err)
		}
		hash := maphash.Bytes(seed, key)
		if hash%shares != share {
			continue
		}
		if _, newer := seen[hash]; newer {
			continue
		}
		seen[hash] = struct{}{}
		if len(k) == revisionKeySize+1 && k[revisionKeySize] == tombstone {
			continue
		}
		counts.Keys++
		if resource := resourceOf(key); resource != "" {
			counts.Resources[resource]++
		}
		if node, is := bytes.CutPrefix(key, []byte(nodePrefix)); is && len(node) <= longestNode && len(counts.Nodes) < mostNodes {
			counts.Nodes = append(counts.Nodes, string(node))
		}
	}
	return nil
}

// keyOf reads the key out of an entry without copying the value: etcd writes it first, as field 1 of a protocol buffer (mvccpb.KeyValue).
func keyOf(entry []byte) ([]byte, error) {
	const fieldKey = 1<<3 | 2
	if len(entry) == 0 || entry[0] != fieldKey {
		return nil, fmt.Errorf("it doesn't begin with a key")
	}
	length, n := binary.Uvarint(entry[1:])
	if n <= 0 || length > uint64(len(entry)-1-n) {
		return nil, fmt.Errorf("its key is longer than itself")
	}
	return entry[1+n : 1+n+int(length)], nil
}

// resourceOf gives the Kubernetes type of a key, "pods" or "apiextensions.k8s.io/customresourcedefinitions"; empty where it is none.
func resourceOf(key []byte) string {
	rest, ok := bytes.CutPrefix(key, []byte("/registry/"))
	if !ok {
		return ""
	}
	parts := strings.SplitN(string(rest), "/", 3)
	switch {
	case len(parts) < 2:
		return ""
	case parts[0] == "services" && parts[1] == "specs":
		return "services"
	case parts[0] == "services" && parts[1] == "endpoints":
		return "endpoints"
	case parts[0] == "minions":
		return "nodes"
	case strings.Contains(parts[0], ".") && len(parts) == 3:
		return parts[0] + "/" + parts[1]
	}
	return parts[0]
}
