package schema

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// named gives the clusterYAML or machineYAML another name, and a machine another cluster.
func clusterNamed(name string) string { return edited(clusterYAML, "name: prod", "name: "+name) }

func machineOf(cluster, name string) string {
	return edited(edited(machineYAML, "name: prod", "name: "+cluster), "name: cp-1", "name: "+name)
}

// names lists what is in a fleet, as kind/name.
func names(f *Fleet) []string {
	var all []string
	for _, c := range f.Clusters {
		all = append(all, "cluster/"+c.Metadata.Name)
	}
	for _, m := range f.Machines {
		all = append(all, "machine/"+m.Metadata.Name)
	}
	return all
}

func TestSeveralDocumentsAFileAreRead(t *testing.T) {
	fleet, problems := loadAll(map[string]string{"all.yaml": "# a comment only\n---\n" + clusterYAML + "---\n---\n" + machineOf("prod", "b") + "...\n---\n" + machineOf("prod", "a") + "---\n# end\n"})
	requireClean(t, problems)
	require.Equal(t, []string{"cluster/prod", "machine/b", "machine/a"}, names(fleet), "in the order of the file")
	require.Equal(t, 1, fleet.Files)
	require.Equal(t, 18, fleet.Machines[0].Source.Line)
}

func TestAnEmptyRepositoryIsAnEmptyFleet(t *testing.T) {
	fleet, problems := loadAll(map[string]string{"README.md": "hello", "empty.yaml": "", "comment.yaml": "# nothing\n", "null.yaml": "~\n"})
	requireClean(t, problems)
	require.Empty(t, names(fleet))
}

func TestOnlyTheRootsAreRead(t *testing.T) {
	files := map[string]string{
		"clusters/prod/cluster.yaml":    clusterNamed("prod"),
		"clusters/staging/cluster.yaml": clusterNamed("staging"),
		"apps/deployment.yaml":          "apiVersion: apps/v1\nkind: Deployment\n",
	}
	for name, c := range map[string]struct {
		roots, want []string
	}{
		"one root":                        {[]string{"clusters/prod"}, []string{"cluster/prod"}},
		"several roots":                   {[]string{"clusters/staging", "clusters/prod"}, []string{"cluster/staging", "cluster/prod"}},
		"a root in another":               {[]string{"clusters", "clusters/prod/", "./clusters"}, []string{"cluster/prod", "cluster/staging"}},
		"a root that is a file":           {[]string{"clusters/prod/cluster.yaml"}, []string{"cluster/prod"}},
		"no root reads nothing":           {nil, nil},
		"a root around another in detour": {[]string{"clusters/../clusters/prod"}, []string{"cluster/prod"}},
	} {
		t.Run(name, func(t *testing.T) {
			fleet, problems := Load(tree(files), c.roots)
			requireClean(t, problems)
			require.Equal(t, c.want, names(fleet))
		})
	}
}

func TestARootThatCannotBeReadStopsAll(t *testing.T) {
	files := map[string]string{"clusters/prod/cluster.yaml": clusterYAML, "README.md": "hello"}
	for root, want := range map[string]string{
		"cluster":         "cluster: [] there is no cluster in the repository; check the roots that were given",
		"..":              `..: [] the root ".." is not a path inside the repository; give it relative to the repository's top`,
		"clusters/../../": `clusters/../../: [] the root "clusters/../../" is not a path inside the repository`,
		"/etc":            `/etc: [] the root "/etc" is not a path inside the repository`,
		"README.md":       "README.md: [] the root README.md is neither a folder nor a YAML file",
	} {
		fleet, problems := Load(tree(files), []string{root, "."})
		require.Contains(t, lines(problems), want)
		require.Len(t, problems, 1)
		require.Len(t, fleet.Clusters, 1, "the other root is read all the same")
	}
}

func TestDotNamesAreLeftOut(t *testing.T) {
	fleet, problems := loadAll(map[string]string{
		"cluster.yaml":              clusterYAML,
		".github/workflows/ci.yaml": "on: push\n",
		".sops.yaml":                "creation_rules: []\n",
		"machines/.draft.yaml":      "kind: [",
		"a/.hidden/b/machine.yaml":  machineYAML,
	})
	requireClean(t, problems)
	require.Equal(t, []string{"cluster/prod"}, names(fleet))
}

func TestWhatTheIgnoreFileNamesIsLeftOut(t *testing.T) {
	foreign := "apiVersion: apps/v1\nkind: Deployment\n"
	files := map[string]string{
		".ichorignore":                   "# apps are for another tool\n/apps/\n*.tmp.yaml\n",
		"apps/a.yaml":                    foreign,
		"clusters/prod/cluster.yaml":     clusterYAML,
		"clusters/prod/x.tmp.yaml":       foreign,
		"clusters/prod/.ichorignore":     "charts/**\n!charts/keep.yaml\nvalues.yaml\n",
		"clusters/prod/charts/a/b.yaml":  foreign,
		"clusters/prod/charts/keep.yaml": machineOf("prod", "kept"),
		"clusters/prod/sub/values.yaml":  foreign,
	}
	fleet, problems := loadAll(files)
	requireClean(t, problems)
	require.Equal(t, []string{"cluster/prod", "machine/kept"}, names(fleet))

	fleet, problems = Load(tree(files), []string{"clusters/prod/sub", "clusters/prod"})
	requireClean(t, problems)
	require.Equal(t, []string{"cluster/prod", "machine/kept"}, names(fleet), "the files around a root hold in it too")

	files["clusters/prod/values.yaml.yaml"] = foreign
	_, problems = loadAll(files)
	require.Len(t, problems, 1, "what is not named is read")
}

func TestAnIgnoreFileThatCannotBeReadIsAProblem(t *testing.T) {
	_, problems := loadAll(map[string]string{".ichorignore": strings.Repeat("a\n", maxIgnoreLines+1)})
	require.Equal(t, ".: [] can't read .ichorignore: it holds more than 500 patterns\n", lines(problems))
	_, problems = loadAll(map[string]string{".ichorignore": strings.Repeat("a", maxIgnoreSize+1)})
	require.Contains(t, lines(problems), ".: [] can't read .ichorignore: the file has 65537 bytes or more, and at most 65536 are read")
}

func TestSymlinksAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	require.NoError(t, os.WriteFile(outside, []byte(machineYAML), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "real"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "cluster.yaml"), []byte(clusterYAML), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "secrets.age"), []byte("sealed"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link.yaml")))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "linked")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "real", "s3.age")))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "real", "zero.yaml")))

	fleet, problems := Load(os.DirFS(dir), []string{"."})
	requireClean(t, problems)
	require.Equal(t, []string{"cluster/prod"}, names(fleet))

	_, problems = Load(os.DirFS(dir), []string{"linked"})
	require.Equal(t, "linked: [] linked is a symlink, and symlinks are not followed; put the file itself there\n", lines(problems))

	_, data, err := fleet.ReadRef("real/cluster.yaml", FileRef{"secrets.age"})
	require.NoError(t, err)
	require.Equal(t, "sealed", string(data))
	_, _, err = fleet.ReadRef("real/cluster.yaml", FileRef{"s3.age"})
	require.EqualError(t, err, "can't read real/s3.age, to which real/cluster.yaml refers: real/s3.age is a symlink, and symlinks are not followed; put the file itself there")
	_, _, err = fleet.ReadRef("real/cluster.yaml", FileRef{"../linked/secrets.age"})
	require.EqualError(t, err, "can't read linked/secrets.age, to which real/cluster.yaml refers: linked is a symlink, and symlinks are not followed; put the file itself there")
}

func TestFilesThatAReferencePointsToAreNotReadAsKinds(t *testing.T) {
	cluster := clusterYAML + `  patches:
    all:
    - file: patches/all.yaml
    - file: ../shared/broken.yaml
`
	fleet, problems := loadAll(map[string]string{
		"clusters/prod/cluster.yaml":     cluster,
		"clusters/prod/patches/all.yaml": "machine: {}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\n",
		"clusters/shared/broken.yaml":    "machine: [\n",
	})
	requireClean(t, problems)
	require.Equal(t, 3, fleet.Files)

	_, problems = loadAll(map[string]string{
		"clusters/prod/cluster.yaml":     clusterYAML,
		"clusters/prod/patches/all.yaml": "machine: {}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\n",
	})
	require.Equal(t, `clusters/prod/patches/all.yaml:1:1: [prod] the document has neither apiVersion nor kind, so it is not one of Ichor's kinds; if it is a Talos patch, name its file in a list of patches; else leave it out with .ichorignore
clusters/prod/patches/all.yaml:3:1: [prod] apiVersion "v1alpha1", kind "HostnameConfig" is not one of Ichor's kinds; if it is a Talos patch, name its file in a list of patches; else leave it out with .ichorignore
`, lines(problems))
}

func TestAReferenceToAKindMakesNoMachineVanish(t *testing.T) {
	cluster := clusterYAML + "  patches:\n    all:\n    - file: machines/cp-1.yaml\n"
	fleet, problems := loadAll(map[string]string{"prod/cluster.yaml": cluster, "prod/machines/cp-1.yaml": "machine: {}\n---\n" + machineYAML})
	require.Equal(t, []string{"cluster/prod", "machine/cp-1"}, names(fleet))
	require.Equal(t, `prod/cluster.yaml:16:13: [prod] the reference points to prod/machines/cp-1.yaml, which holds one of Ichor's kinds in line 3; put what it refers to into a file of its own
prod/machines/cp-1.yaml:1:1: [prod] the document has neither apiVersion nor kind, so it is not one of Ichor's kinds; if it is a Talos patch, name its file in a list of patches; else leave it out with .ichorignore
`, lines(problems))

	// Even a misspelt one is not taken for a patch.
	misspelt := edited(machineYAML, "TalosMachine", "TalosMachin")
	_, problems = loadAll(map[string]string{"prod/cluster.yaml": cluster, "prod/machines/cp-1.yaml": misspelt})
	require.Contains(t, lines(problems), `prod/machines/cp-1.yaml:2:7: [prod] there is no kind "TalosMachin"`)
	require.Contains(t, lines(problems), "which holds one of Ichor's kinds")
}

func TestProblemsBelongToTheirCluster(t *testing.T) {
	bad := func(cluster string) string {
		return edited(machineOf(cluster, "bad"), "role: controlplane", "role: boss")
	}
	files := map[string]string{
		"clusters/prod/cluster.yaml":    clusterNamed("prod"),
		"clusters/staging/cluster.yaml": clusterNamed("staging"),
	}
	for name, c := range map[string]struct {
		file, document, owner string
	}{
		"by clusterRef":                            {"machines/bad.yaml", bad("staging"), "staging"},
		"by clusterRef before the path":            {"clusters/prod/bad.yaml", bad("staging"), "staging"},
		"by the path when clusterRef is misspelt":  {"clusters/prod/machines/deep/bad.yaml", bad("stagign"), "prod"},
		"by the path when clusterRef is missing":   {"clusters/prod/bad.yaml", edited(machineYAML, "    name: prod\n", ""), "prod"},
		"by the path when the kind is misspelt":    {"clusters/prod/bad.yaml", edited(machineOf("nobody", "x"), "TalosMachine", "TalosMachien"), "prod"},
		"by clusterRef when the kind is misspelt":  {"clusters/prod/bad.yaml", edited(machineOf("staging", "x"), "TalosMachine", "TalosMachien"), "staging"},
		"by the path when it isn't YAML":           {"clusters/prod/bad.yaml", "a: [", "prod"},
		"to none where no cluster is up the path":  {"machines/bad.yaml", bad("nobody"), ""},
		"to none when it isn't YAML and near none": {"bad.yaml", "a: [", ""},
		"to a cluster itself":                      {"clusters/third/cluster.yaml", edited(clusterNamed("third"), "count: 3", "count: 4"), "third"},
		"to none when a cluster's name can't be":   {"clusters/third/cluster.yaml", edited(clusterNamed("THIRD"), "count: 3", "count: 4"), ""},
		"to none when a cluster has no name":       {"clusters/third/cluster.yaml", edited(clusterYAML, "  name: prod\n", "  labels: {}\n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{c.file: c.document}
			for file, text := range files {
				all[file] = text
			}
			fleet, problems := loadAll(all)
			require.NotEmpty(t, problems)
			for _, p := range problems {
				require.Equal(t, c.owner, p.Cluster, line(p))
				require.Equal(t, c.file, p.File)
			}
			if strings.Contains(c.document, "kind:") {
				require.Len(t, fleet.Broken, 1, "what can't be read is not gone")
				require.Equal(t, c.owner, fleet.Broken[0].Cluster)
			}
		})
	}
}

func TestTwoClustersInOneFolderShareWhatNamesNeither(t *testing.T) {
	_, problems := loadAll(map[string]string{"a.yaml": clusterNamed("a"), "b.yaml": clusterNamed("b"), "c.yaml": "a: ["})
	require.Len(t, problems, 1)
	require.Empty(t, problems[0].Cluster)
}

func TestAFileThatIsNotYAMLStopsEveryClusterItNames(t *testing.T) {
	// The machine of staging may stand in the part that can't be read: it must not vanish.
	_, problems := loadAll(map[string]string{
		"clusters/prod/cluster.yaml":    clusterNamed("prod"),
		"clusters/staging/cluster.yaml": clusterNamed("staging"),
		"clusters/prod/machines.yaml":   machineOf("prod", "a") + "bad: [\n---\n" + machineOf("staging", "b") + "---\n" + machineOf("nobody", "c"),
	})
	owners := []string{}
	for _, p := range problems {
		owners = append(owners, p.Cluster)
	}
	require.Equal(t, []string{"prod", "staging"}, owners, lines(problems))
}

// However many machines of another cluster stand before it.
func TestTheLastOfManyMachinesInAFileThatIsNotYAMLCountsToo(t *testing.T) {
	many := strings.Builder{}
	for range 1200 {
		many.WriteString("- {clusterRef: {name: prod}}\n")
	}
	_, problems := loadAll(map[string]string{
		"clusters/prod/cluster.yaml":    clusterNamed("prod"),
		"clusters/staging/cluster.yaml": clusterNamed("staging"),
		"clusters/prod/machines.yaml":   "bad: [\n---\n" + many.String() + "- {clusterRef: {name: staging}}\n",
	})
	owners := []string{}
	for _, p := range problems {
		owners = append(owners, p.Cluster)
	}
	require.Equal(t, []string{"prod", "staging"}, owners, lines(problems))
}

func TestWhatStandsBeforeASyntaxErrorIsRead(t *testing.T) {
	fleet, problems := loadAll(map[string]string{"a.yaml": clusterYAML + "---\n" + machineYAML + "---\na: b: c\n"})
	require.Equal(t, []string{"cluster/prod", "machine/cp-1"}, names(fleet))
	require.Equal(t, "a.yaml:26:5: [prod] the file is not YAML: mapping values are not allowed in this context; put a text that holds a colon and a space in quotes\n", lines(problems))
}

func TestSyntaxErrorsAreSaidWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"a:\n\tb: c\n":            "2:1: [] the file is not YAML: found character that cannot start any token, while scanning for the next token; a tab can't indent YAML, use spaces",
		"x: y\n\ta: b\n":          "2:1: [] the file is not YAML: found a tab character that violates indentation, while scanning a plain scalar that begins in line 1; a tab can't indent YAML, use spaces",
		"x: 1\na: [1, 2\nb: c":    "3:2: [] the file is not YAML: did not find expected ',' or ']', while parsing a flow sequence that begins in line 2",
		"x: 1\na: \"b\n":          "3:1: [] the file is not YAML: found unexpected end of stream, while scanning a quoted scalar that begins in line 2",
		"x: 1\na: b: c":           "2:5: [] the file is not YAML: mapping values are not allowed in this context",
		"key: 'it's'\n":           "1:10: [] the file is not YAML: did not find expected key, while parsing a block mapping",
		"x: 1\na: *nowhere\n":     "2:4: [] the file is not YAML: unknown anchor 'nowhere' referenced",
		"a: \xff\n":               "1:4: [] the file is not UTF-8 text; save it as UTF-8",
		"a: b\n# c\rd: e\n":       "2:1: [] the file holds a line break that YAML knows and editors don't",
		"a: b\r\n\"c\u2028d\": e": "2:1: [] the file holds a line break that YAML knows and editors don't",
		"a: b\nc: \x00\n":         "2:4: [] the file holds a NUL byte",
		"a: b\nc: \x01\n":         "2:1: [] the file is not YAML: control characters are not allowed",
		"\xff\xfea\x00":           "1:1: [] the file is UTF-16 text; save it as UTF-8",
		"%YAML 3.0\n---\na: b":    "1:1: [] the file is not YAML: found incompatible YAML document",
	} {
		_, problems := loadAll(map[string]string{"x.yaml": text})
		require.Len(t, problems, 1, text)
		require.Contains(t, lines(problems), "x.yaml:"+want, "%q", text)
	}
}

// What the parser expected tells a person little; what they likely did tells them more.
func TestSyntaxErrorsSayTheLikelySlip(t *testing.T) {
	for text, want := range map[string]string{
		"a: operations: alice\n": "1:14: [] the file is not YAML: mapping values are not allowed in this context; put a text that holds a colon and a space in quotes",
		"a:\n  b: c\n    d: e\n": "3:6: [] the file is not YAML: mapping values are not allowed in this context; indent line 3 as the lines beside it, and write a colon behind the name in the line before it",
		"a:\n  b: c\n d: e\n":    "3:2: [] the file is not YAML: did not find expected key, while parsing a block mapping that begins in line 1; indent line 3 as the lines beside it",
		"a: [fd00::1]:50000\n":   "1:13: [] the file is not YAML: did not find expected key, while parsing a block mapping; put a text that begins with a bracket or a brace in quotes",
		"a: \"b\" c\n":           "1:8: [] the file is not YAML: did not find expected key, while parsing a block mapping; put the whole text in quotes, and double a quote that stands in it",
		"a: b\nc: @alice\n":      "2:4: [] the file is not YAML: found character that cannot start any token, while scanning for the next token; put a text that begins with @ in quotes",
		"a: */15 * * * *\n":      "the file is not YAML: did not find expected alphabetic or numeric character, while scanning an alias; put a text that begins with * in quotes",
		"a: *b\n":                "1:4: [] the file is not YAML: unknown anchor 'b' referenced; put a text that begins with * in quotes",
		"a: b\nc d\ne: f\n":      "3:1: [] the file is not YAML: could not find expected ':', while scanning a simple key that begins in line 2; write a colon and a space behind the name of each field",
		"a: \"b\nc: d\n":         "3:1: [] the file is not YAML: found unexpected end of stream, while scanning a quoted scalar that begins in line 1; close the quote",
		"a: [b\nc: d\n":          "2:2: [] the file is not YAML: did not find expected ',' or ']', while parsing a flow sequence that begins in line 1; close the bracket",
		"a: {b: c\nd\n":          "3:1: [] the file is not YAML: did not find expected ',' or '}', while parsing a flow mapping that begins in line 1; close the brace",
		"a:\n  - b\n  c: d\n":    "did not find expected '-' indicator, while parsing a block collection that begins in line 2; indent all items of a list alike, each with a dash and a space",
		"a: b\n<<<<<<< HEAD\nc: d\n=======\n>>>>>>> x\n": "2:1: [] the file holds the marks of a merge conflict; choose one of the two sides, and take the marks out",
		"a:\n  b: c\n\u00a0\u00a0d: e\n  f: g\n":         "line 3 is indented with no-break spaces, as text from a web page is; use plain ones",
	} {
		_, problems := loadAll(map[string]string{"x.yaml": text})
		require.Len(t, problems, 1, text)
		require.Contains(t, lines(problems), want, "%q", text)
	}
}

func TestPatchesOfAReferenceThatCannotBeReadAreNotBlamed(t *testing.T) {
	for name, patches := range map[string]string{
		"a mapping for a list":     "  patches: {all: {file: patches/all.yaml}}\n",
		"a text for a patch":       "  patches: {all: [patches/all.yaml]}\n",
		"a misspelt field":         "  patchs: {all: [{file: patches/all.yaml}]}\n",
		"a file that isn't there":  "  patches: {all: [{file: clusters/prod/patches/all.yaml}]}\n",
		"an absolute path":         "  patches: {all: [{file: /clusters/prod/patches/all.yaml}]}\n",
		"a path with backslashes":  "  patches: {all: [{file: 'patches\\all.yaml'}]}\n",
		"a folder in place of one": "  patches: {all: [{file: patches}]}\n",
	} {
		_, problems := loadAll(map[string]string{
			"clusters/prod/cluster.yaml":     clusterYAML + patches,
			"clusters/prod/patches/all.yaml": "machine: {}\n",
			"clusters/prod/secrets.age":      "",
		})
		require.NotContains(t, lines(problems), "patches/all.yaml:", name)
	}
}

func TestWindowsLineEndsAreRead(t *testing.T) {
	fleet, problems := loadAll(map[string]string{"a.yaml": strings.ReplaceAll(clusterYAML, "\n", "\r\n")})
	requireClean(t, problems)
	require.Equal(t, 11, fleet.Clusters[0].Source.At("spec.controlPlane.count").Line)
}

func TestPatchesOfAFileThatCannotBeReadAreNotBlamed(t *testing.T) {
	_, problems := loadAll(map[string]string{
		"clusters/prod/cluster.yaml":     clusterYAML + "  patches: {all: [{file: patches/all.yaml}]\n",
		"clusters/prod/patches/all.yaml": "machine: {}\n",
	})
	require.Len(t, problems, 1, lines(problems))
	require.Equal(t, "clusters/prod/cluster.yaml", problems[0].File)
	require.Empty(t, problems[0].Cluster, "nobody knows which cluster it was")

	_, problems = loadAll(map[string]string{"a.yaml": "a: [", "b.yaml": "machine: {}\n"})
	require.Len(t, problems, 2, "a file that holds no kind can't have referred to it: %s", lines(problems))
}

func TestAReferenceToWhatIsNotThereIsAnsweredWithWhatWasMeant(t *testing.T) {
	fleet, _ := loadAll(map[string]string{
		"clusters/prod/patches/time.yaml": "machine: {}\n", "clusters/prod/s3.age": "x", "patches/shared.yaml": "machine: {}\n",
	})
	for ref, want := range map[string]string{
		"clusters/prod/patches/time.yaml": "patches/time.yaml",
		"patches/shared.yaml":             "../../patches/shared.yaml",
		"patches/Time.yaml":               "patches/time.yaml",
		"patches/tme.yaml":                "patches/time.yaml",
		"patches/ntp.yaml":                "",
		"patches/tip.yaml":                "",
		"./s3.agee":                       "s3.age",
		"nowhere/time.yaml":               "",
		"../../../x":                      "",
	} {
		require.Equal(t, want, fleet.MeantRef("clusters/prod/cluster.yaml", ref), ref)
	}
	alone, _ := Decode("a.yaml", []byte(machineYAML))
	require.Empty(t, alone.MeantRef("a.yaml", "b.yaml"))
}

func TestReadRefStaysInTheRepository(t *testing.T) {
	fleet, _ := loadAll(map[string]string{
		"clusters/prod/cluster.yaml": clusterYAML,
		"clusters/prod/secrets.age":  "sealed",
		"shared/patch.yaml":          "machine: {}",
		"shared/large":               strings.Repeat("x", MaxRefSize+1),
		"shared/just":                strings.Repeat("x", MaxRefSize),
		".git/config":                "url = https://token@example.com",
	})
	const from = "clusters/prod/cluster.yaml"
	name, data, err := fleet.ReadRef(from, FileRef{"secrets.age"})
	require.NoError(t, err)
	require.Equal(t, "clusters/prod/secrets.age", name)
	require.Equal(t, "sealed", string(data))
	name, _, err = fleet.ReadRef(from, FileRef{"../../shared/./patch.yaml"})
	require.NoError(t, err)
	require.Equal(t, "shared/patch.yaml", name)
	_, data, err = fleet.ReadRef(from, FileRef{"../../shared/just"})
	require.NoError(t, err)
	require.Len(t, data, MaxRefSize)

	for ref, want := range map[string]string{
		"":                        "the reference is empty",
		"../../../etc/passwd":     `"../../../etc/passwd" leaves the repository`,
		"/etc/passwd":             `"/etc/passwd" is not a relative path`,
		`..\secrets.age`:          "is not a relative path",
		"a\x00b":                  "holds a NUL byte",
		".":                       "can't read clusters/prod, to which clusters/prod/cluster.yaml refers: clusters/prod is a folder, not a file",
		"../..":                   `"../.." is a folder, not a file`,
		"secrets.age/":            "is a folder, not a file",
		"secrets.age/x":           "clusters/prod/secrets.age is not a folder",
		"../../.git/config":       "is Git's own folder",
		"../../.GIT/config":       "is Git's own folder",
		"missing.age":             "can't read clusters/prod/missing.age, to which clusters/prod/cluster.yaml refers: file does not exist",
		"../../shared/large":      "the file has 8388609 bytes or more, and at most 8388608 are read",
		"../../shared/\x1b[2Jbad": "can't read shared/bad, to which",
	} {
		_, _, err := fleet.ReadRef(from, FileRef{ref})
		require.ErrorContains(t, err, want, "%q", ref)
	}
}

func TestAFleetWithoutATreeReadsNoReference(t *testing.T) {
	fleet, _ := Decode("a/cluster.yaml", []byte(clusterYAML))
	_, _, err := fleet.ReadRef("a/cluster.yaml", FileRef{"secrets.age"})
	require.EqualError(t, err, "can't read a/secrets.age, to which a/cluster.yaml refers: this file was read without its repository")
}

func TestClusterForWorksOnAFleetThatWasNotLoaded(t *testing.T) {
	f := &Fleet{Clusters: []*TalosCluster{{Metadata: ObjectMeta{Name: "prod"}, Source: Source{Position: Position{File: "a/b/c.yaml"}}}}}
	require.Equal(t, "prod", f.ClusterFor("a/b/c/d.yaml", ""))
	require.Equal(t, "prod", f.ClusterFor("x.yaml", "prod"))
	require.Empty(t, f.ClusterFor("x.yaml", "nobody"))
}
