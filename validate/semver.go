package validate

import (
	"strings"

	"github.com/blang/semver/v4"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// version is a semantic version as a CEL value. The names of its functions are those that Kubernetes uses in CEL.
type version struct {
	opaque
	semver.Version
}

func semverType() *types.Type { return types.NewOpaqueType("Semver") }

// Equal implements ref.Val.
func (v version) Equal(other ref.Val) ref.Val {
	that, ok := other.(version)
	return types.Bool(ok && v.EQ(that.Version))
}

// Value implements ref.Val.
func (v version) Value() any { return v.Version }

// parseSemver reads "1.13.6" or "v1.13.6".
func parseSemver(text string) (version, error) {
	parsed, err := semver.Parse(strings.TrimPrefix(text, "v"))
	return version{opaque{semverType()}, parsed}, err
}

func semverFunctions() []cel.EnvOption {
	one, two := []*cel.Type{semverType()}, []*cel.Type{semverType(), semverType()}
	part := func(name string, of func(semver.Version) uint64) cel.EnvOption {
		return cel.Function(name, cel.MemberOverload("semver_"+name, one, types.IntType, cel.UnaryBinding(func(v ref.Val) ref.Val {
			known, ok := v.(version)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			return types.Int(of(known.Version))
		})))
	}
	compare := func(name string, result *types.Type, answer func(int) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.MemberOverload("semver_"+name, two, result, cel.BinaryBinding(func(a, b ref.Val) ref.Val {
			left, ok := a.(version)
			right, isVersion := b.(version)
			if !ok || !isVersion {
				return types.MaybeNoSuchOverloadErr(a)
			}
			return answer(left.Compare(right.Version))
		})))
	}
	text := []*cel.Type{types.StringType}
	return []cel.EnvOption{
		cel.Function("isSemver", cel.Overload("is_semver_string", text, types.BoolType, cel.UnaryBinding(func(v ref.Val) ref.Val {
			s, ok := v.(types.String)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			_, err := parseSemver(string(s))
			return types.Bool(err == nil)
		}))),
		cel.Function("semver", cel.Overload("semver_string", text, semverType(), cel.UnaryBinding(func(v ref.Val) ref.Val {
			s, ok := v.(types.String)
			if !ok {
				return types.MaybeNoSuchOverloadErr(v)
			}
			parsed, err := parseSemver(string(s))
			if err != nil {
				return types.NewErr("%q is not a version, as in v1.13.6: %v", string(s), err)
			}
			return parsed
		}))),
		part("major", func(v semver.Version) uint64 { return v.Major }),
		part("minor", func(v semver.Version) uint64 { return v.Minor }),
		part("patch", func(v semver.Version) uint64 { return v.Patch }),
		compare("compareTo", types.IntType, func(c int) ref.Val { return types.Int(c) }),
		compare("isLessThan", types.BoolType, func(c int) ref.Val { return types.Bool(c < 0) }),
		compare("isGreaterThan", types.BoolType, func(c int) ref.Val { return types.Bool(c > 0) }),
	}
}
