package validate

import (
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
)

// releases are the releases of Talos that this program knows, oldest first, and the releases of Kubernetes that each takes.
type releases struct {
	talos      []string
	kubernetes map[string][]string
}

// mostMinors bounds the search for releases; it is far beyond any that there is.
const mostMinors = 100

// knownReleases reads them out of the machinery's tables, which answer questions and can't be listed.
func knownReleases() (releases, error) {
	known := releases{kubernetes: map[string][]string{}}
	minors := make([]*compatibility.KubernetesVersion, mostMinors)
	for minor := range minors {
		parsed, err := compatibility.ParseKubernetesVersion(fmt.Sprintf("v1.%d.0", minor))
		if err != nil {
			return releases{}, fmt.Errorf("read the releases of Kubernetes: %w", err)
		}
		minors[minor] = parsed
	}
	for minor := range mostMinors {
		name := fmt.Sprintf("v1.%d", minor)
		target, err := talosVersion(name + ".0")
		if err != nil {
			return releases{}, fmt.Errorf("read the releases of Talos: %w", err)
		}
		taken := kubernetesTakenBy(target, minors)
		switch {
		case len(taken) > 0:
			known.talos = append(known.talos, name)
			known.kubernetes[name] = taken
		case len(known.talos) > 0:
			return known, nil // the releases have no gaps
		}
	}
	return known, nil
}

// kubernetesTakenBy gives the releases of Kubernetes that a release of Talos takes, by their minors.
func kubernetesTakenBy(target *compatibility.TalosVersion, minors []*compatibility.KubernetesVersion) []string {
	var taken []string
	for minor, version := range minors {
		if version.SupportedWith(target) == nil {
			taken = append(taken, fmt.Sprintf("v1.%d", minor))
		} else if len(taken) > 0 {
			break
		}
	}
	return taken
}

func talosVersion(version string) (*compatibility.TalosVersion, error) {
	return compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: version})
}

// releaseOf gives the release that a version belongs to: v1.13 of v1.13.6.
func releaseOf(version string) (string, error) {
	parsed, err := parseSemver(version)
	if err != nil {
		return "", fmt.Errorf("%q is not a version, as in v1.13.6: %w", version, err)
	}
	return fmt.Sprintf("v%d.%d", parsed.Major, parsed.Minor), nil
}

// upgradeProblem says what Talos itself has against an upgrade; empty when nothing.
func upgradeProblem(from, to string) (string, error) {
	host, err := talosVersion(from)
	if err != nil {
		return "", fmt.Errorf("%q is not a version of Talos: %w", from, err)
	}
	target, err := talosVersion(to)
	if err != nil {
		return "", fmt.Errorf("%q is not a version of Talos: %w", to, err)
	}
	if err := target.UpgradeableFrom(host); err != nil {
		return err.Error(), nil
	}
	return "", nil
}

// releaseFunctions declares what is asked about releases.
func releaseFunctions(known releases) []cel.EnvOption {
	text, texts := types.StringType, types.NewListType(types.StringType)
	list := func(names []string) ref.Val { return types.NewStringList(types.DefaultTypeAdapter, names) }
	talos := list(known.talos)
	return []cel.EnvOption{
		cel.Function("release", cel.Overload("release_string", []*cel.Type{text}, text,
			cel.UnaryBinding(func(version ref.Val) ref.Val {
				s, ok := version.(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(version)
				}
				return textOr(releaseOf(string(s)))
			}))),
		cel.Function("talosReleases", cel.Overload("talos_releases", []*cel.Type{}, texts,
			cel.FunctionBinding(func(...ref.Val) ref.Val { return talos }))),
		cel.Function("kubernetesReleases", cel.Overload("kubernetes_releases_string", []*cel.Type{text}, texts,
			cel.UnaryBinding(func(version ref.Val) ref.Val {
				s, ok := version.(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(version)
				}
				release, err := releaseOf(string(s))
				if err != nil {
					return types.WrapErr(err)
				}
				return list(known.kubernetes[release])
			}))),
		cel.Function("upgradeProblem", cel.Overload("upgrade_problem_string_string", []*cel.Type{text, text}, text,
			cel.BinaryBinding(func(from, to ref.Val) ref.Val {
				old, ok := from.(types.String)
				proposed, isText := to.(types.String)
				if !ok || !isText {
					return types.MaybeNoSuchOverloadErr(from)
				}
				return textOr(upgradeProblem(string(old), string(proposed)))
			}))),
	}
}

// textOr gives a text, or the error in its place.
func textOr(text string, err error) ref.Val {
	if err != nil {
		return types.WrapErr(err)
	}
	return types.String(text)
}
