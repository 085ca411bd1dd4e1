package backup

import (
	"strings"
	"time"
)

// The name of a snapshot's object is etcd-<time>.snapshot.age, the time in UTC, so that names sort by time.
const (
	namePrefix = "etcd-"
	nameSuffix = ".snapshot.age"
	nameTime   = "20060102T150405Z"
)

// ObjectName gives the name of the snapshot that was begun at a time, to the second.
func ObjectName(at time.Time) string {
	return namePrefix + at.UTC().Format(nameTime) + nameSuffix
}

// ParseName gives the time in the name of a snapshot's object. Any other name, and any other way to write the same time, is not one.
func ParseName(name string) (time.Time, bool) {
	middle, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return time.Time{}, false
	}
	middle, ok = strings.CutSuffix(middle, nameSuffix)
	if !ok {
		return time.Time{}, false
	}
	at, err := time.Parse(nameTime, middle)
	if err != nil || ObjectName(at) != name {
		return time.Time{}, false
	}
	return at, true
}
