package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
)

const garbageMachine = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosMachine
metadata: {name: cp-1}
spec:
  clusterRef: {name: prod}
  role: controlplane
  endpoint: 10.0.0.11
  approved: true
  uuid: 4c4c4544-0039-3510-8052-b4c04f4e3732
`

// What one file may cost, whatever stands in it: 2 s here, and what a machine makes of that which is three times slower.
const (
	garbageTime   = 3 * 2 * time.Second
	garbageMemory = 200 << 20
)

// Whatever stands in a repository, the command ends with findings that have a place, or takes what is legitimate, in
// little time and memory. Time is what the processor worked, which doesn't depend on what else runs.
func TestGarbageIsAnsweredQuicklyAndInLittleMemory(t *testing.T) {
	inline := ciCluster + "  patches:\n    all:\n    - inline:\n"
	for name, c := range map[string]struct {
		text string
		// want is a finding; empty when the file is legitimate.
		want string
	}{
		"an empty file":                      {"", ""},
		"a file of comments only":            {"# nothing\n---\n# here\n", ""},
		"a byte order mark":                  {"\ufeff" + garbageMachine, ""},
		"Windows line ends":                  {strings.ReplaceAll(garbageMachine, "\n", "\r\n"), ""},
		"a byte order mark and Windows ends": {"\ufeff" + strings.ReplaceAll(garbageMachine, "\n", "\r\n"), ""},
		"no line end at the end":             {strings.TrimSuffix(garbageMachine, "\n"), ""},
		"Latin-1":                            {garbageMachine + "# caf\xe9\n", "x.yaml:10:6: error: schema: the file is not UTF-8 text"},
		"UTF-16 with a mark":                 {utf16Text("\ufeff"+garbageMachine, true), "x.yaml:1:1: error: schema: the file is UTF-16"},
		"UTF-16 without a mark":              {utf16Text(garbageMachine, false), "x.yaml:1:2: error: schema: the file holds a NUL byte"},
		"noise":                              {strings.Repeat("\x00\xff\x1b[2J{[*&!|>%@`", 5000), "x.yaml:1:1: error: schema: "},
		"tabs":                               {strings.ReplaceAll(garbageMachine, "  role", "\trole"), "x.yaml:6:1: error: schema: the file is not YAML: .*a tab can't indent YAML"},
		"a field given twice":                {garbageMachine + "  role: worker\n", "x.yaml:10:3: error: schema: spec.role is given twice; the first is in line 6"},
		"a quoted truth":                     {strings.Replace(garbageMachine, "approved: true", `approved: "true"`, 1), "x.yaml:8:13: error: schema: spec.approved must be true or false"},
		"a billion laughs":                   {inline + laughs(), "x.yaml:.*: error: schema: .*once its aliases are followed"},
		"aliases in many documents":          {strings.Repeat(garbageMachine+"  patches:\n  - inline: {a: &a [1,1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], e: [*d,*d,*d,*d,*d]}\n---\n", 1000), "the file's documents hold more than 300000 names and values"},
		"an alias to itself":                 {inline + "        a: &a [*a]\n", "x.yaml:.*: error: schema: the document nests more than 100 levels deep"},
		"lists 20,000 deep":                  {"a: " + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), "x.yaml:1:.*: error: schema: .*nests more than 100 levels deep"},
		"mappings 20,000 deep":               {inline + "        a: " + strings.Repeat("{a: ", 20_000) + strings.Repeat("}", 20_000), "x.yaml:.*: error: schema: .*nests more than 100 levels deep"},
		"dashes 20,000 deep":                 {strings.Repeat("- ", 20_000) + "a\n", "x.yaml:.*: error: schema: .*nests more than 100 levels deep"},
		"a line of 10 MiB":                   {"a: " + strings.Repeat("x", 10<<20), "x.yaml: error: schema: can't read the file: the file has 10485763 bytes"},
		"a line of almost 1 MiB":             {garbageMachine + "  hostname: " + strings.Repeat("x", 1<<20-1000), `x.yaml:10:13: error: schema: spec.hostname is`},
		"a megabyte of brackets":             {strings.Repeat("[", 1<<20), "x.yaml: error: schema: the file holds more than"},
		"as many commas as may be":           {inline + "        a: [" + strings.Repeat("a,", 140_000) + "]\n", "x.yaml:.*: error: schema: the document holds more than 50000 names and values"},
		"as many documents as may be":        {strings.Repeat("{a: b}\n---\n", 2000), "x.yaml:1:1: error: schema: the document has neither apiVersion nor kind"},
		"as many problems as may be":         {strings.Repeat(strings.Replace(garbageMachine, "role: controlplane", "role: boss", 1)+"---\n", 1900), "x.yaml:6:9: error: schema: spec.role is \"boss\""},
	} {
		t.Run(name, func(t *testing.T) {
			folder := garbageFleet(t)
			require.NoError(t, os.WriteFile(filepath.Join(folder, "x.yaml"), []byte(c.text), 0o600))
			checkGarbage(t, folder, c.want)
		})
	}
}

func TestAFileOfOneGiBIsNotRead(t *testing.T) {
	folder := garbageFleet(t)
	file, err := os.Create(filepath.Join(folder, "x.yaml"))
	require.NoError(t, err)
	require.NoError(t, file.Truncate(1<<30))
	require.NoError(t, file.Close())
	checkGarbage(t, folder, "x.yaml: error: schema: can't read the file: the file has 1073741824 bytes")
}

// What is no plain file is no document, and what can't end is not waited for.
func TestOnlyPlainFilesAreRead(t *testing.T) {
	folder := garbageFleet(t)
	require.NoError(t, syscall.Mkfifo(filepath.Join(folder, "fifo.yaml"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(folder, "folder.yaml"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "folder.yaml", "x.yaml"), []byte(garbageMachine), 0o600))
	for name, to := range map[string]string{"loop": ".", "self.yaml": "self.yaml", "zero.yaml": "/dev/zero", "up.yaml": "../../etc/passwd", "fifo2.yaml": "fifo.yaml"} {
		require.NoError(t, os.Symlink(to, filepath.Join(folder, name)))
	}
	checkGarbage(t, folder, "")

	require.NoError(t, os.WriteFile(filepath.Join(folder, "folder.yaml", "x.yaml"), []byte(garbageMachine+"  patches: [{file: ../fifo.yaml}, {file: ../zero.yaml}]\n"), 0o600))
	checkGarbage(t, folder, "folder.yaml/x.yaml:10:20: error: file-exists: .*fifo.yaml is not a regular file")
	require.NoError(t, syscall.Mkfifo(filepath.Join(folder, ".ichorignore"), 0o600))
	checkGarbage(t, folder, "error: schema: can't read .ichorignore: .ichorignore is not a regular file")
}

func TestAFileThatMayNotBeReadIsAFinding(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	folder := garbageFleet(t)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "x.yaml"), []byte(garbageMachine), 0))
	checkGarbage(t, folder, "x.yaml: error: schema: can't read the file: permission denied")
}

// A name can hold anything but a slash; it stays on its line and does nothing to the terminal.
func TestNamesOfFilesCanNotForgeALine(t *testing.T) {
	folder := garbageFleet(t)
	for _, name := range []string{"a\nx.yaml: error: forged: b.yaml", "\x1b[2Jc.yaml", "\xff\xfe.yaml", "\u202elmay.yaml"} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("kind: Nothing\n"), 0o600))
	}
	for _, format := range reportFormats() {
		out := checkGarbage(t, folder, "Nothing", "-o", format)
		require.NotContains(t, out, "\x1b", format)
		require.NotContains(t, out, "\u202e", format)
		require.NotRegexp(t, `(?m)^x\.yaml: error: forged`, out, format)
	}
}

func garbageFleet(t *testing.T) string {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "cluster.yaml"), []byte(ciCluster), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "secrets.age"), nil, 0o600))
	return folder
}

// checkGarbage runs the command and looks for a finding (none when want is empty), a panic, and what it cost.
func checkGarbage(t *testing.T, folder, want string, arguments ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	command := exec.Command("ichor", append([]string{"validate", "--no-render", folder}, arguments...)...)
	command.Stdout, command.Stderr = &out, &errs
	peak := filepath.Join(t.TempDir(), "peak")
	command.Env = append(os.Environ(), peakFile+"="+peak)
	err := command.Run()
	var exit *exec.ExitError
	if want == "" {
		require.NoError(t, err, "%.2000s\n%.2000s", out.String(), errs.String())
		require.Empty(t, out.String())
	} else {
		require.True(t, errors.As(err, &exit) && exit.ExitCode() == exitNo, "%v: %.2000s", err, errs.String())
		require.True(t, regexp.MustCompile(want).MatchString(out.String()), "want %s, got %.2000s", want, out.String())
	}
	require.NotContains(t, errs.String(), "panic")
	usage := command.ProcessState.SysUsage().(*syscall.Rusage)
	worked := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	require.Less(t, worked, garbageTime)
	memory := peakOf(t, peak)
	require.Less(t, memory, int64(garbageMemory))
	if testing.Verbose() {
		t.Logf("%s, %d MiB", worked.Round(time.Millisecond), memory>>20)
	}
	return out.String()
}

// peakOf reads the most memory, in bytes, that the command had resident.
func peakOf(t *testing.T, file string) int64 {
	t.Helper()
	status, err := os.ReadFile(file)
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`).FindSubmatch(status)
	require.NotNil(t, found, "%s", status)
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)
	return kilobytes << 10
}

func utf16Text(text string, bigEndian bool) string {
	var out strings.Builder
	for _, unit := range utf16.Encode([]rune(text)) {
		high, low := byte(unit>>8), byte(unit)
		if bigEndian {
			out.Write([]byte{high, low})
		} else {
			out.Write([]byte{low, high})
		}
	}
	return out.String()
}

// laughs is nine levels of nine aliases each, as a patch.
func laughs() string {
	var out strings.Builder
	out.WriteString("        l0: &l0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&out, "        l%d: &l%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d, ", i-1), 9), ", "))
	}
	return out.String()
}
