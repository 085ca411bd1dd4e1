package validate

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// networkFunctions declares what is asked about hosts and networks, beside CEL's own functions for them.
func networkFunctions() []cel.EnvOption {
	text, texts := types.StringType, types.NewListType(types.StringType)
	return []cel.EnvOption{
		cel.Function("host", cel.Overload("host_string", []*cel.Type{text}, text,
			cel.UnaryBinding(func(of ref.Val) ref.Val {
				s, ok := of.(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return types.String(hostOf(string(s)))
			}))),
		cel.Function("networkOf", cel.Overload("network_of_string_list", []*cel.Type{text, texts}, text,
			cel.BinaryBinding(func(address, of ref.Val) ref.Val {
				s, ok := address.(types.String)
				networks, isList := textsOf(of)
				if !ok || !isList {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return types.String(networkOf(string(s), networks))
			}))),
		cel.Function("overlapping", cel.Overload("overlapping_list", []*cel.Type{texts}, texts,
			cel.UnaryBinding(func(of ref.Val) ref.Val {
				networks, ok := textsOf(of)
				if !ok {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return types.NewStringList(types.DefaultTypeAdapter, overlapping(networks))
			}))),
	}
}

// textsOf gives the Go strings of a CEL list.
func textsOf(value ref.Val) ([]string, bool) {
	lister, ok := value.(traits.Lister)
	if !ok {
		return nil, false
	}
	var list []string
	for it := lister.Iterator(); it.HasNext() == types.True; {
		s, ok := it.Next().(types.String)
		if !ok {
			return nil, false
		}
		list = append(list, string(s))
	}
	return list, true
}

// hostOf gives the host of a URL, or of an endpoint with a port or without, in one form: names in lower case and without the
// final dot, IP addresses as Go writes them.
func hostOf(endpoint string) string {
	host := endpoint
	if strings.Contains(endpoint, "://") {
		u, err := url.Parse(endpoint)
		if err != nil {
			return ""
		}
		host = u.Hostname()
	} else if name, _, err := net.SplitHostPort(endpoint); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if address, err := netip.ParseAddr(host); err == nil {
		return address.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// networkOf gives the first of the networks that an address lies in; empty when in none, or when it is no address.
func networkOf(host string, networks []string) string {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return ""
	}
	for _, network := range networks {
		if prefix, err := netip.ParsePrefix(network); err == nil && prefix.Contains(address) {
			return network
		}
	}
	return ""
}

// overlapping gives the first two networks that have addresses in common; nothing when none have.
func overlapping(networks []string) []string {
	for i, one := range networks {
		a, err := netip.ParsePrefix(one)
		if err != nil {
			continue
		}
		for _, other := range networks[i+1:] {
			if b, err := netip.ParsePrefix(other); err == nil && a.Overlaps(b) {
				return []string{one, other}
			}
		}
	}
	return nil
}
