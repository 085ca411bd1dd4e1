package schema

import (
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// billionLaughs is nine levels of nine aliases each.
func billionLaughs(field string) string {
	var out strings.Builder
	out.WriteString("l0: &l0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&out, "l%d: &l%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d, ", i-1), 9), ", "))
	}
	return out.String() + field
}

// What is hostile to a parser must be a clear problem, quickly, and in little memory.
func TestHostileFilesAreRefusedQuicklyAndInLittleMemory(t *testing.T) {
	inline := clusterYAML + "  patches:\n    all:\n    - inline:\n"
	indented := func(text string) string {
		return "        " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n        ") + "\n"
	}
	staircase := func(levels int) string {
		var out strings.Builder
		for i := range levels {
			out.WriteString(strings.Repeat(" ", i) + "a:\n")
		}
		return out.String()
	}
	for name, c := range map[string]struct {
		text, want string
	}{
		"a billion laughs in a patch":           {inline + indented(billionLaughs("x: *l9\n")), "the document holds more than 50000 names and values once its aliases are followed"},
		"a billion laughs in fields":            {billionLaughs(clusterYAML), `the document has no field "l1"`},
		"a billion laughs in mappings":          {inline + "        a: &a {b: 1, c: 2}\n" + laughingMaps(20), "more than 50000 names and values once its aliases are followed"},
		"a billion laughs by merging":           {inline + mergeBomb(20), "once its aliases are followed"},
		"a quadratic blow-up of a text":         {inline + "        a: &a " + strings.Repeat("x", 500_000) + "\n        b: [" + strings.Repeat("*a, ", 10_000) + "]\n", "the document holds more than 4194304 bytes once its aliases are followed"},
		"an alias to itself":                    {inline + "        a: &a [*a]\n", "the document nests more than 100 levels deep"},
		"a mapping that merges itself":          {inline + "        a: &a {<<: *a, b: 1}\n", "levels deep"},
		"an alias to a mapping with one key":    {inline + "        a: &a {x: 1, x: 1, x: 1}\n        b: [" + strings.Repeat("*a, ", 60_000) + "]\n", "more than 50000 names and values"},
		"lists 100000 deep":                     {inline + "        a: " + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + "\n", "the document nests more than 100 levels deep"},
		"lists 9000 deep":                       {inline + "        a: " + strings.Repeat("[", 9_000) + strings.Repeat("]", 9_000) + "\n", "the document nests more than 100 levels deep"},
		"mappings 70000 deep in one line":       {inline + "        a: " + strings.Repeat("{a: ", 70_000) + "\n", "the document nests more than 100 levels deep"},
		"mappings 1400 deep by indentation":     {inline + indented(staircase(1400)), "the document nests more than 100 levels deep"},
		"lists 100000 deep by dashes":           {inline + "        a:\n        " + strings.Repeat("- ", 100_000) + "a\n", "the document nests more than 100 levels deep"},
		"keys 100000 deep":                      {strings.Repeat("? ", 100_000), "the document nests more than 100 levels deep"},
		"a file of 64 MiB":                      {machineYAML + strings.Repeat("# "+strings.Repeat("x", 1021)+"\n", 64<<10), "can't read the file: the file has 671"},
		"a file of nothing but dashes":          {strings.Repeat("---\n", 100_000), "the file holds more than 2000 documents; split it"},
		"a file of many documents":              {strings.Repeat("--- {a: b}\n", 3_000), "the file holds more than 2000 documents; split it"},
		"lists 9000 deep by dashes, often":      {strings.Repeat(strings.Repeat("- ", 9_000)+"a\n", 58), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a file of list marks":                  {strings.Repeat("- \n", MaxFileSize/3), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a file of commas":                      {"[" + strings.Repeat("a,", MaxFileSize/2-2) + "]", "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a file of one key":                     {strings.Repeat("a: b\n", MaxFileSize/5), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a kind with one key a thousand times":  {machineYAML + strings.Repeat("a: b\n", 20_000), "more problems in this document are not listed"},
		"a file of colons":                      {strings.Repeat(":", MaxFileSize), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a file of quotes":                      {strings.Repeat(`"`, MaxFileSize-1), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a file of question marks":              {strings.Repeat("?\n", MaxFileSize/2), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a list of just few enough commas":      {"[" + strings.Repeat("a,", MaxMarks-10) + "]", "the document is a list"},
		"a mapping of just few enough keys":     {strings.Repeat("a: b\n", MaxMarks/2-10), "the document has neither apiVersion nor kind"},
		"a file of open brackets":               {strings.Repeat("[", MaxFileSize), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a file of anchors":                     {strings.Repeat("- &a a\n", MaxFileSize/8), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a file of exclamation marks":           {strings.Repeat("!", MaxFileSize), ""},
		"a file of percent signs":               {strings.Repeat("%A b\n", MaxFileSize/5), "the file holds more than 1048576 bytes, or 150000 commas, colons, brackets, quotes, list items and line breaks; split it"},
		"a key of a megabyte":                   {machineYAML + "? " + strings.Repeat("k", MaxFileSize-1000) + "\n: v\n", "the document has no field"},
		"a name of a megabyte":                  {edited(machineYAML, "name: cp-1", "name: "+strings.Repeat("n", MaxFileSize-1000)), "metadata.name is"},
		"a schedule of a megabyte":              {edited(backupYAML, "destination:", "schedule: \""+strings.Repeat("*,", 50_000)+"* * * * *\"\n  destination:"), "and may have 256"},
		"a number of a megabyte":                {edited(clusterYAML, "count: 3", "count: "+strings.Repeat("9", MaxFileSize-1000)), "must be a whole number"},
		"many problems in each of many objects": {strings.Repeat(edited(machineYAML, "role: controlplane", "role: boss")+"---\n", 1_500), "spec.role"},
	} {
		t.Run(name, func(t *testing.T) {
			files := tree(map[string]string{"a.yaml": c.text})
			used := allocated(func() {
				began := time.Now()
				_, problems := Load(files, []string{"."})
				require.Less(t, time.Since(began), 2*time.Minute, "reading ends, on a slow and busy machine too")
				require.NotEmpty(t, problems)
				require.Contains(t, lines(problems), c.want)
				require.Less(t, len(lines(problems)), 1<<20, "problems are short")
			})
			require.Less(t, used, uint64(300<<20), "reading takes little memory")
		})
	}
}

// allocated gives how many bytes were taken in all, collected or not: more than what was needed at once, and the same
// each time.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func laughingMaps(levels int) string {
	var out strings.Builder
	last := "a"
	for i := range levels {
		fmt.Fprintf(&out, "        m%d: &m%d {x: *%s, y: *%s, z: *%s}\n", i, i, last, last, last)
		last = fmt.Sprintf("m%d", i)
	}
	return out.String()
}

func mergeBomb(levels int) string {
	var out strings.Builder
	out.WriteString("        b: &b {k: v}\n")
	last := "b"
	for i := range levels {
		fmt.Fprintf(&out, "        m%d: &m%d {<<: [*%s, *%s, *%s, *%s]}\n", i, i, last, last, last, last)
		last = fmt.Sprintf("m%d", i)
	}
	return out.String()
}

func TestManyFilesAreBoundedTogether(t *testing.T) {
	files := fstest.MapFS{}
	large := []byte("# " + strings.Repeat("x", MaxFileSize-3) + "\n")
	for i := range MaxTotalSize/MaxFileSize + 1 {
		files[fmt.Sprintf("f%03d.yaml", i)] = &fstest.MapFile{Data: large}
	}
	_, problems := Load(files, []string{"."})
	require.Equal(t, "f064.yaml: [] the YAML files have more than 67108864 bytes together; give fewer roots, or leave files out with .ichorignore\n", lines(problems))
}

func TestManyAliasesInManyDocumentsAreBoundedTogether(t *testing.T) {
	files := fstest.MapFS{"cluster.yaml": {Data: []byte(clusterYAML)}}
	bomb := edited(machineYAML, "name: cp-1", "name: cp-1\n  labels: &l {a: b}") + "  patches:\n  - inline: {a: &a [1,2,3,4,5,6,7,8,9], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], e: [*d,*d,*d,*d,*d]}\n"
	for i := range 150 {
		files[fmt.Sprintf("m%03d.yaml", i)] = &fstest.MapFile{Data: []byte(bomb)}
	}
	_, problems := Load(files, []string{"."})
	require.Contains(t, lines(problems), ": [] the documents hold more than 3000000 names and values together; give fewer roots",
		"what wasn't read may belong to any cluster")
}

func TestManyAliasesInOneFileAreBoundedTogether(t *testing.T) {
	bomb := edited(machineYAML, "name: cp-1", "name: cp-1\n  labels: &l {a: b}") + "  patches:\n  - inline: {a: &a [1,2,3,4,5,6,7,8,9], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b], d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], e: [*d,*d,*d,*d,*d]}\n---\n"
	files := fstest.MapFS{"cluster.yaml": {Data: []byte(clusterYAML)}, "m.yaml": {Data: []byte(strings.Repeat(bomb, 50))}}
	fleet, problems := Load(files, []string{"."})
	require.Contains(t, lines(problems), "[prod] the file's documents hold more than 300000 names and values once their aliases are followed; split it, or use fewer aliases")
	require.Len(t, problems, 1)
	require.Len(t, fleet.Broken, 1, "the document at which reading ended")
}

func TestManyProblemsStopAll(t *testing.T) {
	files := fstest.MapFS{"cluster.yaml": {Data: []byte(clusterYAML)}}
	bad := strings.Repeat(edited(machineYAML, "role: controlplane", "role: boss")+"---\n", 1_000)
	for i := range 12 {
		files[fmt.Sprintf("m%03d.yaml", i)] = &fstest.MapFile{Data: []byte(bad)}
	}
	_, problems := Load(files, []string{"."})
	require.LessOrEqual(t, len(problems), maxTotalProblems+maxProblems)
	var stops []string
	for _, p := range problems {
		if p.Cluster == "" {
			stops = append(stops, p.Message)
		}
	}
	require.Equal(t, []string{"there are more than 10000 problems; what comes after this document was not read"}, stops)
}

func TestAHundredThousandSmallFilesAreRead(t *testing.T) {
	files := fstest.MapFS{"cluster.yaml": {Data: []byte(clusterYAML)}, "secrets.age": {}}
	for i := range 100_000 {
		files[fmt.Sprintf("f%06d.yaml", i)] = &fstest.MapFile{Data: []byte("# nothing\n")}
	}
	fleet, problems := Load(files, []string{"."})
	require.Empty(t, problems)
	require.Equal(t, 100_001, fleet.Files)
	require.Len(t, fleet.Clusters, 1)
}

// Files are read several at once, which must not be seen in what comes of them.
func TestWhatIsReadDoesNotDependOnWhoWasFirst(t *testing.T) {
	files := fstest.MapFS{"cluster.yaml": {Data: []byte(clusterYAML)}}
	for i := range 200 {
		machine := edited(machineYAML, "name: cp-1", fmt.Sprintf("name: m-%d", i))
		switch i % 5 {
		case 1:
			machine = edited(machine, "role: controlplane", "role: boss")
		case 2:
			machine += "  - not YAML"
		case 3:
			machine += strings.Repeat("# a longer file\n", 2000)
		}
		files[fmt.Sprintf("m%03d.yaml", i)] = &fstest.MapFile{Data: []byte(machine)}
	}
	var names []string
	first, firstProblems := Load(files, []string{"."})
	for _, m := range first.Machines {
		names = append(names, m.Source.File)
	}
	require.True(t, slices.IsSorted(names))
	require.Len(t, names, 120)
	for range 10 {
		again, problems := Load(files, []string{"."})
		require.Equal(t, firstProblems, problems)
		require.Equal(t, first.Machines, again.Machines)
		require.Equal(t, first.Broken, again.Broken)
	}
}

// bombFS is a tree of which each folder holds ten more: a Git tree of a few hundred bytes can be one.
type bombFS struct{}

func (bombFS) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func (bombFS) ReadDir(string) ([]fs.DirEntry, error) {
	folders := fstest.MapFS{}
	for i := range 10 {
		folders[fmt.Sprintf("d%d/x", i)] = &fstest.MapFile{}
	}
	return folders.ReadDir(".")
}

func (bombFS) Stat(string) (fs.FileInfo, error) { return fstest.MapFS{"d/x": {}}.Stat("d") }

func TestATreeWithoutEndIsRefused(t *testing.T) {
	_, problems := Load(bombFS{}, []string{"."})
	require.Equal(t, ".: [] folders nest more than 64 deep at "+strings.TrimSuffix(strings.Repeat("d0/", 65), "/")[:maxShown]+"…\n", lines(problems))
}

func TestAFileThatLiesAboutItsSizeIsCutOff(t *testing.T) {
	_, err := readBounded(endless{}, "x", 1000)
	require.EqualError(t, err, "the file has 1001 bytes or more, and at most 1000 are read")
}

// endless is a file without end that claims to be empty.
type endless struct{}

func (endless) Open(string) (fs.File, error)  { return endless{}, nil }
func (endless) Stat() (fs.FileInfo, error)    { return fstest.MapFS{"x": {}}.Stat("x") }
func (endless) Read(into []byte) (int, error) { return len(into), nil }
func (endless) Close() error                  { return nil }
