package validate

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

// told says what a fleet holds, as "prod/cp-1:hostname".
func told(f *schema.Fleet) []string {
	var parts []string
	for _, c := range f.Clusters {
		parts = append(parts, c.Metadata.Name)
	}
	for _, m := range f.Machines {
		parts = append(parts, strings.TrimSuffix(m.Spec.ClusterRef.Name+"/"+m.Metadata.Name+":"+m.Spec.Hostname, ":"))
	}
	for _, b := range f.Backups {
		parts = append(parts, b.Spec.ClusterRef.Name+"/"+b.Metadata.Name+"@"+b.Spec.Destination.S3.Prefix)
	}
	for _, o := range f.Operations {
		parts = append(parts, o.Spec.ClusterRef.Name+"/"+o.Metadata.Name)
	}
	slices.Sort(parts)
	return parts
}

func TestPropose(t *testing.T) {
	for _, c := range []struct {
		name               string
		fork, base, branch string
		want               []string
		conflicts          []string
	}{
		{"what the branch adds is added", `cluster a`, `cluster a`, "cluster a\nmachine a/m", []string{"a", "a/m"}, nil},
		{"what the base added since stays", `cluster a`, "cluster a\nmachine a/m", `cluster a`, []string{"a", "a/m"}, nil},
		{"what both added is there", `cluster a`, "cluster a\nmachine a/m", "cluster a\nmachine a/n", []string{"a", "a/m", "a/n"}, nil},
		{"what the branch removes goes", "cluster a\nmachine a/m", "cluster a\nmachine a/m", `cluster a`, []string{"a"}, nil},
		{"what the base removed since is not brought back", "cluster a\nmachine a/m", `cluster a`, "cluster a\nmachine a/m", []string{"a"}, nil},
		{"what the branch changes is changed", "machine a/m", "machine a/m", "machine a/m hostname=x", []string{"a/m:x"}, nil},
		{"what the base changed since is not changed back", "machine a/m", "machine a/m hostname=x", "machine a/m", []string{"a/m:x"}, nil},
		{"the same change on both sides is one", "machine a/m", "machine a/m hostname=x", "machine a/m hostname=x", []string{"a/m:x"}, nil},
		{"the same addition on both sides is one", "", "machine a/m", "machine a/m", []string{"a/m"}, nil},
		{"the same removal on both sides is one", "machine a/m", "", "", nil, nil},
		{"two changes of one object are a finding", "machine a/m", "machine a/m hostname=x", "machine a/m hostname=y",
			[]string{"a/m:y"}, []string{"a/m"}},
		{"two different additions of one object are a finding", "", "machine a/m hostname=x", "machine a/m hostname=y",
			[]string{"a/m:y"}, []string{"a/m"}},
		{"removed here and changed there is a finding", "machine a/m", "machine a/m hostname=x", "", []string{"a/m:x"}, []string{"a/m"}},
		{"changed here and removed there is a finding", "machine a/m", "", "machine a/m hostname=x", []string{"a/m:x"}, []string{"a/m"}},
		{"changes of two objects of one file are none", "machine a/m file=f\nmachine a/n file=f",
			"machine a/m file=f hostname=x\nmachine a/n file=f", "machine a/m file=f\nmachine a/n file=f hostname=y",
			[]string{"a/m:x", "a/n:y"}, nil},
		{"a moved file is no change", "machine a/m", "machine a/m hostname=x", "machine a/m file=elsewhere", []string{"a/m:x"}, nil},
		{"a second one of a name that both keep stays", "machine a/m\nmachine a/m file=copy", "machine a/m\nmachine a/m file=copy",
			"machine a/m\nmachine a/m file=copy", []string{"a/m", "a/m"}, nil},
		{"a second one of a name that the base has taken out is not brought back", "machine a/m\nmachine a/m file=copy hostname=x",
			"machine a/m", "machine a/m\nmachine a/m file=copy hostname=x", []string{"a/m"}, nil},
		{"a second one of a name that the branch takes out goes", "machine a/m\nmachine a/m file=copy hostname=x",
			"machine a/m\nmachine a/m file=copy hostname=x", "machine a/m", []string{"a/m"}, nil},
		{"every kind is merged", "cluster a", "cluster a\nbackup a/b prefix=x\nremove a/m", "cluster a count=5\nremove a/n",
			[]string{"a", "a/b@x", "a/remove-m", "a/remove-n"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Propose(fleetOf(t, c.fork), fleetOf(t, c.base), fleetOf(t, c.branch), nil)
			require.Equal(t, c.want, told(p.Fleet))
			var conflicts []string
			for _, f := range p.Findings {
				require.Equal(t, RuleBothSides, f.Rule)
				require.Equal(t, Error, f.Severity)
				require.NotEmpty(t, f.File)
				conflicts = append(conflicts, f.Cluster+"/"+f.Name)
			}
			require.Equal(t, c.conflicts, conflicts)
		})
	}
}

func TestABranchThatIsBehindItsBaseDeletesNothing(t *testing.T) {
	engine, err := New()
	require.NoError(t, err)
	fork := `cluster prod count=1
		machine prod/cp-1 controlplane approved`
	base := fleetOf(t, fork+`
		machine prod/cp-2 controlplane approved`)
	branch := fleetOf(t, fork+`
		machine prod/cp-3 controlplane approved`)
	require.Empty(t, Propose(fleetOf(t, fork), base, branch, nil).Findings)
	findings := engine.Check(base, Propose(fleetOf(t, fork), base, branch, nil).Fleet)
	require.Len(t, findings, 1, "each of the two changes passes by itself, and together they exceed the cap")
	require.Equal(t, "approval-cap", findings[0].Rule)
	require.Equal(t, "cp-3", findings[0].Name)
}

func TestWhatTheBranchCannotReadIsLeftAsOnTheBase(t *testing.T) {
	old := fleetOf(t, "machine a/m\nmachine a/n")
	branch := fleetOf(t, "machine a/n")
	branch.Broken = []schema.Broken{{Position: schema.Position{File: "new-name.yaml"}, Kind: schema.KindMachine, Cluster: "a", Name: "m"}}
	problem := schema.Problem{Position: schema.Position{File: "new-name.yaml"}, Message: "bad"}
	p := Propose(old, old, branch, []schema.Problem{problem})
	require.Equal(t, []string{"a/m", "a/n"}, told(p.Fleet))

	branch.Broken = nil
	problem.File = old.Machines[0].Source.File
	require.Equal(t, []string{"a/m", "a/n"}, told(Propose(old, old, branch, []schema.Problem{problem}).Fleet), "a file that doesn't parse")
	require.Equal(t, []string{"a/n"}, told(Propose(old, old, branch, nil).Fleet), "a removal")
}

func TestFilesAreThoseOfTheMerge(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	fork := fstest.MapFS{"same": file("1"), "mine": file("1"), "theirs": file("1"), "gone-here": file("1"), "gone-there": file("1"), "d/x": file("1")}
	base := fstest.MapFS{"same": file("1"), "mine": file("1"), "theirs": file("3"), "gone-here": file("1"), "new-there": file("3"), "d/y": file("3")}
	branch := fstest.MapFS{"same": file("1"), "mine": file("2"), "theirs": file("1"), "gone-there": file("1"), "new-here": file("2"), "e/x": file("1")}
	f := schema.Fleet{Tree: newOverlay(fork, base, branch)}
	for name, want := range map[string]string{
		"same": "1", "mine": "2", "theirs": "3", "gone-here": "", "gone-there": "", "new-here": "2", "new-there": "3",
		"d/x": "", "d/y": "3", "e/x": "1", "nowhere": "",
	} {
		_, data, err := f.ReadRef("cluster.yaml", schema.FileRef{File: name})
		require.Equal(t, want, string(data), name)
		require.Equal(t, want == "", err != nil, name)
	}
}

func TestAProblemThatTheBaseHasMendedIsNotTheBranchs(t *testing.T) {
	tree := func(text string) fstest.MapFS { return fstest.MapFS{"a.yaml": {Data: []byte(text)}} }
	problems := []schema.Problem{{Position: schema.Position{File: "a.yaml"}, Message: "bad"}}
	empty := func(text string) *schema.Fleet { return &schema.Fleet{Tree: tree(text)} }
	require.Empty(t, Propose(empty("bad"), empty("good"), empty("bad"), problems).Problems)
	require.Len(t, Propose(empty("bad"), empty("bad"), empty("bad"), problems).Problems, 1, "it stands on both")
	require.Len(t, Propose(empty("bad"), empty("good"), empty("worse"), problems).Problems, 1, "the branch changed it too")
	require.Len(t, Propose(empty("good"), empty("good"), empty("bad"), problems).Problems, 1, "the branch broke it")
}

func TestWhatTheBaseHasMendedIsNotBrokenAnyMore(t *testing.T) {
	tree := func(text string) fstest.MapFS { return fstest.MapFS{"a.yaml": {Data: []byte(text)}} }
	fleet := func(text string) *schema.Fleet {
		f := &schema.Fleet{Tree: tree(text)}
		if text == "bad" {
			f.Broken = []schema.Broken{{Position: schema.Position{File: "a.yaml"}, Kind: schema.KindCluster, Name: "prod", Cluster: "prod"}}
		}
		return f
	}
	require.Empty(t, Propose(fleet("bad"), fleet("good"), fleet("bad"), nil).Fleet.Broken)
	require.Len(t, Propose(fleet("bad"), fleet("bad"), fleet("bad"), nil).Fleet.Broken, 1, "it stands on both")
	require.Len(t, Propose(fleet("good"), fleet("good"), fleet("bad"), nil).Fleet.Broken, 1, "the branch broke it")
}
