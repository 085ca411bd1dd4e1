package addresses_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/addresses"
)

func TestExpand(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"addresses and names stay as they are":                 {[]string{"10.0.0.11", "node-1.example.com", "10.0.0.1:50001", "fd00::1", "[fd00::1]:50000"}, []string{"10.0.0.11", "node-1.example.com", "10.0.0.1:50001", "fd00::1", "[fd00::1]:50000"}},
		"a network is listed without its outermost addresses":  {[]string{"10.0.0.0/30"}, []string{"10.0.0.1", "10.0.0.2"}},
		"a network may be written by any of its addresses":     {[]string{"10.0.0.2/30"}, []string{"10.0.0.1", "10.0.0.2"}},
		"a network of two addresses has two":                   {[]string{"10.0.0.4/31"}, []string{"10.0.0.4", "10.0.0.5"}},
		"a network of one address is that address":             {[]string{"10.0.0.4/32"}, []string{"10.0.0.4"}},
		"of an IPv6 network every address counts":              {[]string{"fd00::/127"}, []string{"fd00::", "fd00::1"}},
		"the last network of all ends":                         {[]string{"255.255.255.252/30"}, []string{"255.255.255.253", "255.255.255.254"}},
		"each address stands once, where it was written first": {[]string{"10.0.0.2", "10.0.0.0/30"}, []string{"10.0.0.2", "10.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := addresses.Expand(c.args)
			require.NoError(t, err)
			var got []string
			for _, address := range list {
				got = append(got, address.Text)
			}
			require.Equal(t, c.want, got)
		})
	}
	t.Run("what was named by itself is told from what a network holds", func(t *testing.T) {
		list, err := addresses.Expand([]string{"10.0.0.2", "10.0.0.0/30"})
		require.NoError(t, err)
		require.Equal(t, []addresses.Address{{Text: "10.0.0.2", Named: true}, {Text: "10.0.0.1"}}, list)
	})
	t.Run("a /16 is the most", func(t *testing.T) {
		list, err := addresses.Expand([]string{"10.1.0.0/16"})
		require.NoError(t, err)
		require.Len(t, list, 1<<16-2)
	})
	for name, arg := range map[string]string{
		"a network that is too large":       "10.0.0.0/15",
		"an IPv6 network that is too large": "fd00::/64",
		"no network":                        "10.0.0.0/33",
		"a URL":                             "https://10.0.0.1",
		"nothing":                           "",
		"a space":                           "10.0.0.1 10.0.0.2",
		"an escape":                         "\x1b[2J",
	} {
		t.Run(name+" is refused", func(t *testing.T) {
			_, err := addresses.Expand([]string{arg})
			require.Error(t, err)
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
	t.Run("several networks that together are too large are refused", func(t *testing.T) {
		_, err := addresses.Expand([]string{"10.1.0.0/16", "10.2.0.0/16"})
		require.ErrorContains(t, err, "at most 65536")
	})
}
