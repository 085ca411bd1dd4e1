package schema

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
)

// format is what a scalar field must look like. The field's "is" tag names it; decoding and the JSON Schema both read
// it, so that they can't differ.
type format struct {
	// want completes "it must be ...".
	want string
	// enum lists all values, if there are few. later are values that a coming version takes.
	enum, later []string
	// ints lists all values of a number, if there are few; else least is the smallest.
	ints  []int
	least int
	// pattern is a regular expression in the subset that Go and ECMAScript share, anchored.
	pattern string
	regexp  *regexp.Regexp
	// longest is the greatest number of bytes, if it is bounded.
	longest int
	// check looks at what a pattern can't say. It gives a sentence's end: "it ...".
	check func(string) error
	// normal gives the one spelling that is kept.
	normal func(string) string
}

// test gives an error that completes "<field> is <value>; ".
func (f *format) test(value string) error {
	if f.enum != nil && !slices.Contains(f.enum, value) {
		if slices.Contains(f.later, value) {
			return fmt.Errorf("that isn't built yet (not-yet)")
		}
		return fmt.Errorf("it must be %s%s", f.want, didYouMean(value, f.enum))
	}
	if f.longest > 0 && len(value) > f.longest {
		return fmt.Errorf("it has %d bytes, and may have %d", len(value), f.longest)
	}
	if f.regexp != nil && !f.regexp.MatchString(value) {
		return fmt.Errorf("it must be %s", f.want)
	}
	if f.check != nil {
		return f.check(value)
	}
	return nil
}

func (f *format) testNumber(value int) error {
	if f.ints != nil && !slices.Contains(f.ints, value) || f.ints == nil && value < f.least {
		return fmt.Errorf("it must be %s", f.want)
	}
	return nil
}

// The building blocks of the patterns.
const (
	labelPattern   = `[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?`
	dnsPattern     = labelPattern + `(\.` + labelPattern + `)*`
	uuidPattern    = `[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}`
	versionPattern = `v(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})(-(alpha|beta|rc)\.[0-9]{1,4})?`
	// labelValue is the part of a Kubernetes label or qualified name after the slash.
	labelValuePattern = `[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?`
	labelKeyPattern   = `(` + dnsPattern + `/)?` + labelValuePattern
)

// allFormats gives the formats by name. They are made once, since to compile their patterns takes longer than to read a document; nobody
// changes them afterwards.
var allFormats = sync.OnceValue(newFormats)

func newFormats() map[string]*format {
	formats := nameFormats()
	for name, f := range placeFormats() {
		formats[name] = f
	}
	for name, f := range choiceFormats() {
		formats[name] = f
	}
	for _, f := range formats {
		if f.pattern != "" {
			f.regexp = regexp.MustCompile(f.pattern)
		}
	}
	return formats
}

func nameFormats() map[string]*format {
	return map[string]*format{
		"label": {want: `lower-case letters, digits and "-", at most 63, beginning and ending with a letter or digit`,
			pattern: `^` + labelPattern + `$`},
		"labelKey": {want: `a Kubernetes label key, as in "example.com/rack"`, pattern: `^` + labelKeyPattern + `$`, longest: 317},
		"labelValue": {want: `empty, or letters, digits, "-", "_" and ".", at most 63, beginning and ending with a letter or digit`,
			pattern: `^(` + labelValuePattern + `)?$`},
		"taint": {want: "key=value:Effect with NoSchedule, PreferNoSchedule or NoExecute, as in \"dedicated=gpu:NoSchedule\"",
			pattern: `^` + labelKeyPattern + `(=(` + labelValuePattern + `)?)?:(NoSchedule|PreferNoSchedule|NoExecute)$`, longest: 400},
		"dnsName": {want: "a DNS name in lower case, as in \"cp-1\" or \"cp-1.example.com\"", pattern: `^` + dnsPattern + `$`, longest: 253},
		"clusterID": {want: "16 lower-case hex digits, as \"ichor secrets generate\" prints them: they follow from the secrets bundle",
			pattern: `^[0-9a-f]{16}$`},
		"uuid": {want: "a UUID, as in 4c4c4544-0039-3510-8052-b4c04f4e3732", pattern: `^` + uuidPattern + `$`,
			check: ownUUID, normal: strings.ToLower},
		"sha256": {want: "a SHA-256 as 64 lower-case hex digits", pattern: `^[0-9a-f]{64}$`},
		"fingerprint": {want: "base64 of a SHA-256 (44 characters), as the machine's console shows it",
			pattern: `^[A-Za-z0-9+/]{43}=$`, check: digestBase64},
		"version":  {want: "a full version with its v, as in v1.13.6", pattern: `^` + versionPattern + `$`},
		"contract": {want: "major and minor of a Talos version, as in v1.13", pattern: `^v1\.[1-9][0-9]{0,2}$`},
		"line":     {want: "one line of at most 1024 characters", pattern: `^[^\x00-\x1f\x7f]*$`, longest: 1024},
		"snapshot": {want: "a snapshot's name, as in etcd-20261129T100000Z.snapshot.age",
			pattern: `^etcd-[0-9]{8}T[0-9]{6}Z\.snapshot\.age$`, check: snapshotTime},
		"expression": {want: "a CEL expression", pattern: `\S`, longest: 16384},
		"cron": {want: `five cron fields in UTC, as in "0 2 * * SAT"`, pattern: `^[^\s@=]+( +[^\s=]+){4}$`, longest: 256,
			check: cronFires},
	}
}

func placeFormats() map[string]*format {
	return map[string]*format{
		"clusterEndpoint": {want: "an https URL without a path, as in https://10.0.0.10:6443", pattern: `^https://[^/?#@\s]+/?$`, longest: 300,
			check: func(s string) error { return plainURL(s) }},
		"s3Endpoint": {want: "an http or https URL without a path, as in https://s3.example.com", pattern: `^https?://[^/?#@\s]+/?$`, longest: 300,
			check: func(s string) error { return plainURL(s) }},
		"machineEndpoint": {want: "an IP address or DNS name, with a port or without, as in 10.0.0.11 or [fd00::11]:50000",
			pattern: `^[0-9A-Za-z.:\[\]-]+$`, longest: 300, check: hostAndPort},
		"image": {want: "an image without tag or digest, as in factory.talos.dev/metal-installer/<schematic>: the tag is talosVersion",
			pattern: `^[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+$`, longest: 300},
		"device": {want: `a device, as in /dev/sda`, pattern: `^/dev/[A-Za-z0-9][-A-Za-z0-9_.:+@/]*$`, longest: 300, check: cleanPath},
		"cidr":   {want: "a network, as in 10.244.0.0/16", pattern: `^[0-9A-Fa-f.:]+/[0-9]{1,3}$`, check: network},
		"path":   {want: "a path relative to the file it stands in, with forward slashes, as in patches/time.yaml", pattern: `^[^/\\\x00-\x1f\x7f][^\\\x00-\x1f\x7f]*$`, longest: 1024},
		"region": {want: "a region's name, as in eu-1", pattern: `^[A-Za-z0-9][-A-Za-z0-9]{0,62}$`},
		"bucket": {want: "a bucket's name: 3 to 63 lower-case letters, digits, \"-\" and \".\"",
			pattern: `^[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]$`},
		"prefix": {want: "folders divided by single slashes, with none at either end, as in backups/prod",
			pattern: `^[-A-Za-z0-9_.=]+(/[-A-Za-z0-9_.=]+)*$`, longest: 512, check: cleanPrefix},
	}
}

func choiceFormats() map[string]*format {
	choice := func(values ...string) *format { return &format{want: either(values), enum: values} }
	operations := choice(string(OperationNode), string(OperationEtcdBackup), string(OperationEtcdRestore), string(OperationAdopt),
		string(OperationBootstrap), string(OperationResume), string(OperationCancel))
	operations.later = []string{"shutdown", "ca-rotation"}
	return map[string]*format{
		"controlPlanes": {want: "1, 3 or 5: an even number bears no more failures than one less", ints: []int{1, 3, 5}},
		"kept":          {want: "0 or more", least: 0},
		"positive":      {want: "1 or more", least: 1},
		"role":          choice(string(RoleControlPlane), string(RoleWorker)),
		"reboots":       choice(string(RebootsAutomatic), string(RebootsWindow), string(RebootsManual)),
		"cni":           choice("flannel", "none"),
		"addressing":    choice("auto", "path", "host"),
		"operationKind": operations,
		"nodeAction": choice(ActionReboot, ActionShutdown, ActionRestartService, ActionEtcdDefrag, ActionEtcdForfeit,
			ActionRemove),
		"service":  choice("kubelet", "containerd", "cri"),
		"then":     choice("powerOff", "reboot"),
		"accepted": choice("accepted"),
		"scope":    choice("cluster", "machine", "backup", "operation"),
		"severity": choice("error", "warning"),
	}
}

// either joins values as "a, b or c".
func either(values []string) string { return listed(values, "or") }

func listed(values []string, word string) string {
	if len(values) < 2 {
		return strings.Join(values, "")
	}
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " " + word + " " + values[last]
}

// ownUUID refuses the UUIDs that many boards share: another machine with the same one would pass for this one.
func ownUUID(s string) error {
	const wayOut = "give the board its own with its vendor's tool"
	switch strings.ToLower(s) {
	case "00000000-0000-0000-0000-000000000000":
		return fmt.Errorf("all zeros is what boards without a UUID report, so it names no machine; %s", wayOut)
	case "ffffffff-ffff-ffff-ffff-ffffffffffff":
		return fmt.Errorf("all F is what boards without a UUID report, so it names no machine; %s", wayOut)
	case "03000200-0400-0500-0006-000700080009", "00020003-0004-0005-0006-000700080009":
		return fmt.Errorf("it is a firmware maker's placeholder that many boards share, so it names no machine; %s", wayOut)
	}
	return nil
}

func digestBase64(s string) error {
	if _, err := base64.StdEncoding.Strict().DecodeString(s); err != nil {
		return fmt.Errorf("it is not base64; copy it whole from the machine's console")
	}
	return nil
}

func snapshotTime(s string) error {
	if _, err := time.Parse("etcd-20060102T150405Z.snapshot.age", s); err != nil {
		return fmt.Errorf("its date or time doesn't exist")
	}
	return nil
}

// ParseCron reads a schedule of five fields in UTC. Names for schedules and time zones, which the parser would take, are refused.
func ParseCron(text string) (cron.Schedule, error) {
	if strings.ContainsAny(text, "=@") {
		return nil, errors.New("it names a schedule or a time zone")
	}
	schedule, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("TZ=UTC " + text)
	if err != nil {
		return nil, errors.New(strings.TrimSuffix(err.Error(), ": "+text))
	}
	return schedule, nil
}

// cronFires refuses a schedule that doesn't parse or that no day ever meets.
func cronFires(s string) error {
	schedule, err := ParseCron(s)
	if err != nil {
		return fmt.Errorf("it doesn't parse: %w", err)
	}
	if schedule.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return fmt.Errorf("no day ever meets it")
	}
	return nil
}

// plainURL checks the host and port of a URL whose form the pattern has already held.
func plainURL(s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return fmt.Errorf("it is not a URL")
	}
	if err := host(u.Hostname()); err != nil {
		return err
	}
	if strings.HasSuffix(u.Host, ":") {
		return fmt.Errorf("its port is missing after the colon")
	}
	return port(u.Port())
}

func hostAndPort(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return host(s)
	}
	name, number := splitEndpoint(s)
	if number == "" && strings.HasSuffix(s, ":") {
		return fmt.Errorf("its port is missing after the colon")
	}
	if strings.ContainsAny(name, "[]") || strings.Contains(s, "[") != strings.Contains(name, ":") {
		return fmt.Errorf("an IPv6 address with a port stands in brackets, as in [fd00::11]:50000")
	}
	if err := host(name); err != nil {
		return err
	}
	return port(number)
}

// host checks an IP address or DNS name.
func host(s string) error {
	if address, err := netip.ParseAddr(s); err == nil {
		switch {
		case address.Zone() != "":
			return fmt.Errorf("an address with a zone means another machine elsewhere; use one without")
		case address.IsUnspecified() || address.IsMulticast():
			return fmt.Errorf("%s is no machine's address", address)
		}
		return nil
	}
	last := s[strings.LastIndexByte(s, '.')+1:]
	switch {
	case s == "":
		return fmt.Errorf("its host is missing")
	case strings.Trim(last, "0123456789") == "":
		return fmt.Errorf("it is not an IP address; each of its four numbers is at most 255")
	case len(s) > 253 || !isDNSName(strings.ToLower(s)):
		return fmt.Errorf("its host is neither an IP address nor a DNS name")
	}
	return nil
}

// isDNSName is dnsPattern without a regular expression.
func isDNSName(s string) bool {
	for _, label := range strings.Split(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
	}
	return true
}

func port(s string) error {
	if s == "" {
		return nil
	}
	if number, err := strconv.ParseUint(s, 10, 16); err != nil || number == 0 {
		return fmt.Errorf("its port must be between 1 and 65535")
	}
	return nil
}

func network(s string) error {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return fmt.Errorf("it must be a network, as in 10.244.0.0/16")
	}
	if prefix.Masked() != prefix {
		return fmt.Errorf("it has bits set beyond its length; did you mean %s?", prefix.Masked())
	}
	return nil
}

func cleanPath(s string) error {
	if path.Clean(s) != s {
		return fmt.Errorf("it must be written without detours, as %s", path.Clean(s))
	}
	return nil
}

func cleanPrefix(s string) error {
	for _, part := range strings.Split(s, "/") {
		if part == "." || part == ".." {
			return fmt.Errorf("%q in it is no folder's name", part)
		}
	}
	return nil
}
