package architecture

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var ownAddress = regexp.MustCompile(`127\.0\.(\d+)\.\d+`)

// TestNoTwoPackagesTakeOneAddressForTheirMachines holds since packages are tested side by side: simulated machines of two of them can't listen at one
// address. 127.0.0 is for what takes any free port.
func TestNoTwoPackagesTakeOneAddressForTheirMachines(t *testing.T) {
	const root = "../.."
	users := map[string]map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !(strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".txtar")) {
			return err
		}
		content, err := os.ReadFile(path)
		for _, found := range ownAddress.FindAllStringSubmatch(string(content), -1) {
			if found[1] == "0" {
				continue
			}
			if users[found[0]] == nil {
				users[found[0]] = map[string]bool{}
			}
			users[found[0]][filepath.Dir(path)] = true
		}
		return err
	}))
	require.Greater(t, len(users), 100)
	for address, packages := range users {
		require.Len(t, packages, 1, address)
	}
}
