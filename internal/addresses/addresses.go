// Package addresses makes a list of addresses of what a person writes on a command line: addresses, names and networks.
package addresses

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Most is how many addresses Expand gives at most: an IPv4 /16.
const Most = 1 << 16

// Address is one address to be asked.
type Address struct {
	// Text is a host or host:port, as TalosMachine.spec.endpoint takes it.
	Text string
	// Named says that it was written by itself, not as one of a network: then silence there is worth a word.
	Named bool
}

// Expand gives every address that args mean, in their order, each once. Of an IPv4 network the first and the last address,
// which no machine has, are left out.
func Expand(args []string) ([]Address, error) {
	var list []Address
	seen := map[string]bool{}
	add := func(a Address) {
		if !seen[a.Text] {
			seen[a.Text] = true
			list = append(list, a)
		}
	}
	for _, arg := range args {
		if !strings.Contains(arg, "/") {
			if err := check(arg); err != nil {
				return nil, err
			}
			add(Address{Text: arg, Named: true})
			continue
		}
		network, err := netip.ParsePrefix(arg)
		if err != nil {
			return nil, fmt.Errorf("%q is no network; write it as in 10.0.0.0/24", arg)
		}
		network = network.Masked()
		bits := network.Addr().BitLen() - network.Bits()
		if bits > 16 || len(list)+1<<bits > Most {
			return nil, fmt.Errorf("%s is too large: at most %d addresses are asked at once; name smaller networks", network, Most)
		}
		for address := network.Addr(); network.Contains(address); address = address.Next() {
			if !outermost(network, address) {
				add(Address{Text: address.String()})
			}
		}
	}
	return list, nil
}

// outermost tells the network's own address and its broadcast address. Networks of one or two addresses have none.
func outermost(network netip.Prefix, address netip.Addr) bool {
	if !address.Is4() || network.Bits() >= 31 {
		return false
	}
	return address == network.Addr() || !network.Contains(address.Next())
}

func check(arg string) error {
	host := arg
	if _, err := netip.ParseAddr(arg); err == nil {
		return nil
	}
	if split, _, err := net.SplitHostPort(arg); err == nil {
		host = split
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || len(host) > 253 || strings.ContainsFunc(host, func(r rune) bool {
		return r != '.' && r != '-' && r != ':' && r != '%' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		return fmt.Errorf("%q is no address; write it as in 10.0.0.11, node-1.example.com or 10.0.0.0/24", arg)
	}
	return nil
}
