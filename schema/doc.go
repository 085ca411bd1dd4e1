// Package schema holds the kinds of a fleet repository and reads them.
//
// [Load] reads every YAML file under a repository's roots into a [Fleet]. Decoding is strict: a field that isn't known,
// is given twice, is missing, has the wrong type or a value that can't be, is a [Problem] with file, line and column, and
// with a suggestion where a name is near. An object with a problem is not in the fleet, and [Fleet.Broken] names it, so
// that it isn't taken for deleted. What Load can't judge from one document alone (names that must be unique, references
// that must exist, changes that must not be) is for package validate.
//
// A repository is written by others, so all reading is bounded (limits.go): files that expand, nest or grow without end
// are problems too. References ([Fleet.ReadRef]) never leave the repository and never follow a symlink.
//
// Each problem says to which cluster it belongs, because one cluster's trouble must not stop another's: by clusterRef,
// else by the nearest TalosCluster up the path. One that belongs to none stops all.
//
// [JSONSchema] gives the same rules to editors. Both read the struct tags in types.go: a field without omitempty is
// required, "is" names the format of a value and "keys" that of a mapping's keys (formats.go).
//
// docs/kinds describes each kind for its users.
package schema
