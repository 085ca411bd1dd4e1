package validate

import (
	"fmt"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/schema"
)

func TestVersions(t *testing.T) {
	judge(t, []step{
		{"a pair that Talos names", `-`, `cluster prod talos=v1.13.6 kubernetes=v1.36.2`, nil},
		{"the oldest Kubernetes of a Talos", `-`, `cluster prod talos=v1.13.0 kubernetes=v1.31.0`, nil},
		{"one release older than the oldest", `-`, `cluster prod talos=v1.13.0 kubernetes=v1.30.9`, []string{"kubernetes-version prod/prod"}},
		{"the newest patch of the newest Kubernetes", `-`, `cluster prod talos=v1.13.0 kubernetes=v1.36.40`, nil},
		{"one release newer than the newest", `-`, `cluster prod talos=v1.13.0 kubernetes=v1.37.0`, []string{"kubernetes-version prod/prod"}},
		{"a candidate of a Kubernetes that is too new", `-`, `cluster prod talos=v1.13.0 kubernetes=v1.37.0-alpha.1`, []string{"kubernetes-version prod/prod"}},
		{"a candidate of the oldest Kubernetes counts as that release", `-`, `cluster prod talos=v1.13.0 kubernetes=v1.31.0-rc.1`, nil},
		{"a patch that came out after this program", `-`, `cluster prod talos=v1.13.99`, nil},
		{"a candidate of a release that is known", `-`, `cluster prod talos=v1.13.7-rc.0`, nil},
		{"a Talos newer than all that are known", `-`, `cluster prod talos=v1.14.0`, []string{"talos-version prod/prod"}},
		{"a candidate of a Talos newer than all that are known", `-`, `cluster prod talos=v1.14.0-alpha.0`, []string{"talos-version prod/prod"}},
		{"another major version of Talos", `-`, `cluster prod talos=v2.0.0`, []string{"talos-version prod/prod"}},
		{"a Talos older than all that are known", `-`, `cluster prod talos=v1.1.2 contract=v1.1`, []string{"talos-version prod/prod"}},
		{"the contract of the version", `-`, `cluster prod talos=v1.12.4 kubernetes=v1.35.0 contract=v1.12`, nil},
		{"an older contract", `-`, `cluster prod contract=v1.9`, nil},
		{"a newer contract", `-`, `cluster prod talos=v1.12.4 kubernetes=v1.35.0 contract=v1.13`, []string{"contract-version prod/prod"}},
		{"no contract means v1.13, which is too new for an older Talos", `-`, `cluster prod talos=v1.12.4 kubernetes=v1.35.0`,
			[]string{"contract-version prod/prod"}},
		{"contracts are numbers, not texts", `-`, `cluster prod talos=v1.9.5 kubernetes=v1.32.0 contract=v1.10`, []string{"contract-version prod/prod"}},
	})
}

func TestUpgrades(t *testing.T) {
	const rest = " kubernetes=v1.34.1 contract=v1.10"
	talos := func(version string) string { return "cluster prod talos=" + version + rest }
	kubernetes := func(version string) string { return "cluster prod kubernetes=" + version }
	refused := func(rule string) []string { return []string{rule + " prod/prod"} }
	judge(t, []step{
		{"Talos stays", talos("v1.12.4"), talos("v1.12.4"), nil},
		{"Talos goes one patch up", talos("v1.12.4"), talos("v1.12.5"), nil},
		{"Talos goes many patches up", talos("v1.12.0"), talos("v1.12.9"), nil},
		{"Talos goes one patch down", talos("v1.12.5"), talos("v1.12.4"), refused("talos-upgrade")},
		{"Talos goes one release up", talos("v1.12.4"), talos("v1.13.0"), nil},
		{"Talos goes two releases up, which Talos itself would take", talos("v1.11.5"), talos("v1.13.6"), refused("talos-upgrade")},
		{"Talos goes three releases up", talos("v1.10.5") + " ", talos("v1.13.6"), refused("talos-upgrade")},
		{"Talos goes one release down", talos("v1.13.6"), talos("v1.12.9"), refused("talos-upgrade")},
		{"Talos goes up to a release that isn't known", talos("v1.13.6"), talos("v1.14.0"), refused("talos-version")},
		{"Talos goes from a candidate to its release", talos("v1.13.0-rc.1"), talos("v1.13.0"), nil},
		{"Talos goes from a release to its candidate", talos("v1.13.0"), talos("v1.13.0-rc.1"), refused("talos-upgrade")},
		{"Talos goes from one candidate to the next, as a number", talos("v1.13.0-beta.9"), talos("v1.13.0-beta.10"), nil},
		{"Talos goes from a candidate to an alpha", talos("v1.13.0-rc.0"), talos("v1.13.0-alpha.2"), refused("talos-upgrade")},
		{"Talos goes to the next patch's candidate", talos("v1.13.0"), talos("v1.13.1-alpha.0"), nil},
		{"Talos goes to the next release's candidate", talos("v1.12.4"), talos("v1.13.0-alpha.1"), nil},
		{"Talos goes from v1.9 to v1.10", "cluster prod talos=v1.9.5 kubernetes=v1.32.0 contract=v1.9",
			"cluster prod talos=v1.10.0 kubernetes=v1.32.0 contract=v1.9", nil},
		{"a cluster begins with any version", ``, talos("v1.11.0"), nil},
		{"Kubernetes goes one patch up", kubernetes("v1.35.1"), kubernetes("v1.35.2"), nil},
		{"Kubernetes goes one patch down", kubernetes("v1.35.2"), kubernetes("v1.35.1"), refused("kubernetes-upgrade")},
		{"Kubernetes goes one release up", kubernetes("v1.35.2"), kubernetes("v1.36.0"), nil},
		{"Kubernetes goes two releases up", kubernetes("v1.34.2"), kubernetes("v1.36.0"), refused("kubernetes-upgrade")},
		{"Kubernetes goes one release down", kubernetes("v1.36.0"), kubernetes("v1.35.9"), refused("kubernetes-upgrade")},
		{"Kubernetes goes from a candidate to its release", kubernetes("v1.36.0-rc.0"), kubernetes("v1.36.0"), nil},
		{"Kubernetes goes from a release to its candidate", kubernetes("v1.36.0"), kubernetes("v1.36.0-rc.0"), refused("kubernetes-upgrade")},
		{"both go one release up", "cluster prod talos=v1.12.4 kubernetes=v1.35.0 contract=v1.12",
			"cluster prod talos=v1.13.6 kubernetes=v1.36.0 contract=v1.12", nil},
		{"both jump", "cluster prod talos=v1.11.4 kubernetes=v1.34.0 contract=v1.11",
			"cluster prod talos=v1.13.6 kubernetes=v1.36.0 contract=v1.11",
			[]string{"talos-upgrade prod/prod", "kubernetes-upgrade prod/prod"}},
		{"another cluster's version is no base", "cluster test talos=v1.10.0 kubernetes=v1.33.0 contract=v1.10",
			"cluster prod\ncluster test talos=v1.10.0 kubernetes=v1.33.0 contract=v1.10", nil},
	})
}

// What a finding about versions says is enough to go on.
func TestVersionsAreNamedWithTheNextOne(t *testing.T) {
	for _, c := range []struct{ old, proposed, want string }{
		{"-", "cluster prod talos=v1.14.0",
			"prod can't run Talos v1.14.0: this ichor knows the releases v1.2 to v1.13 and nothing newer; use a newer ichor, or a v1.13 version until then"},
		{"-", "cluster prod talos=v1.1.0 contract=v1.1",
			"prod can't run Talos v1.1.0: this ichor knows the releases v1.2 to v1.13 and nothing older; use a version of one of them"},
		{"-", "cluster prod kubernetes=v1.37.1",
			"prod can't run Kubernetes v1.37.1 on Talos v1.13.6, which takes the releases v1.31 to v1.36; set spec.kubernetesVersion to a version of one of them, or upgrade Talos first"},
		{"-", "cluster prod kubernetes=v1.30.1",
			"prod can't run Kubernetes v1.30.1 on Talos v1.13.6, which takes the releases v1.31 to v1.36; set spec.kubernetesVersion to a version of one of them"},
		{"cluster prod talos=v1.10.5 kubernetes=v1.33.0 contract=v1.10", "cluster prod talos=v1.13.6 kubernetes=v1.33.0 contract=v1.10",
			"prod can't go from Talos v1.10.5 to v1.13.6 in one step: releases are taken one at a time; the next is v1.11, so set spec.talosVersion to its newest version first, and to v1.13.6 in a later change"},
		{"cluster prod talos=v1.13.6", "cluster prod talos=v1.13.5",
			"prod can't go back from Talos v1.13.6 to v1.13.5: an older version may not read what a newer one wrote; keep v1.13.6, or go on to a newer version"},
		{"cluster prod kubernetes=v1.34.6", "cluster prod kubernetes=v1.36.2",
			"prod can't go from Kubernetes v1.34.6 to v1.36.2 in one step: releases are taken one at a time; the next is v1.35, so set spec.kubernetesVersion to its newest version first, and to v1.36.2 in a later change"},
		{"-", "cluster prod talos=v1.12.1 kubernetes=v1.35.0",
			"prod can't have configs generated for Talos v1.13 and run Talos v1.12.1, which is older; set spec.contract: v1.12"},
	} {
		require.Equal(t, []string{c.want}, messages(t, c.old, c.proposed), c.proposed)
	}
}

// messages gives what is found about a change.
func messages(t *testing.T, old, proposed string) []string {
	t.Helper()
	engine, err := New()
	require.NoError(t, err)
	var before *schema.Fleet
	if old != "-" {
		before = fleetOf(t, old)
	}
	var found []string
	for _, f := range engine.Check(before, fleetOf(t, proposed), Without(RuleNotYet)) {
		found = append(found, f.Message)
	}
	return found
}

// The tables that were read out of the machinery answer as the machinery does, for every version of every release.
func TestReleasesAreThoseOfTheMachinery(t *testing.T) {
	known, err := knownReleases()
	require.NoError(t, err)
	require.Equal(t, "v1.2", known.talos[0])
	require.Equal(t, "v1.13", known.talos[len(known.talos)-1])
	require.Len(t, known.talos, 12)
	for minor := range 20 {
		talos := fmt.Sprintf("v1.%d", minor)
		target, err := talosVersion(talos + ".3")
		require.NoError(t, err)
		for kubernetes := range 60 {
			release := fmt.Sprintf("v1.%d", kubernetes)
			for _, patch := range []string{".0", ".7", ".42", ".0-rc.0"} {
				version, err := compatibility.ParseKubernetesVersion(release + patch)
				require.NoError(t, err)
				if version.SupportedWith(target) == nil {
					require.Contains(t, known.kubernetes[talos], release, release+patch)
				} else {
					require.NotContains(t, known.kubernetes[talos], release, release+patch)
				}
			}
		}
	}
}

func TestWhatTalosHasAgainstAnUpgrade(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"v1.12.4", "v1.13.6", ""},
		{"v1.10.4", "v1.13.6", "host version 1.10.4 is too old to upgrade to Talos 1.13.6"},
		{"v1.15.0", "v1.13.6", "host version 1.15.0 is too new to downgrade to Talos 1.13.6"},
		{"v1.13.0", "v1.14.0", "upgrades to version 1.14.0 are not supported"},
	} {
		got, err := upgradeProblem(c.from, c.to)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := upgradeProblem("latest", "v1.13.0")
	require.Error(t, err)
	_, err = upgradeProblem("v1.13.0", "latest")
	require.Error(t, err)
	_, err = releaseOf("v1.13")
	require.Error(t, err)
}
