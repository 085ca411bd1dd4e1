package kubeapi

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Kubernetes' own names of those who may do something here.
const (
	mastersGroup = "system:masters"
	nodesGroup   = "system:nodes"
	nodePrefix   = "system:node:"
)

// caller is who makes a call.
type caller struct {
	name   string
	groups []string
}

// authenticate reads the caller from its certificate.
func (s *Server) authenticate(r *http.Request) (caller, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return caller{}, apierrors.NewUnauthorized("Unauthorized")
	}
	leaf := r.TLS.PeerCertificates[0]
	between := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: s.cfg.ClientCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		return caller{}, apierrors.NewUnauthorized("Unauthorized")
	}
	return caller{name: leaf.Subject.CommonName, groups: leaf.Subject.Organization}, nil
}

// authorize says why a caller may not do something.
func (c caller) authorize(r *request) error {
	if slices.Contains(c.groups, mastersGroup) || slices.Contains(c.groups, nodesGroup) && c.kubeletMay(r) {
		return nil
	}
	scope := "at the cluster scope"
	if r.namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", r.namespace)
	}
	what := r.resource.plural
	if r.part != "" {
		what += "/" + r.part
	}
	return apierrors.NewForbidden(r.resource.groupResource(), r.name, refusal(fmt.Sprintf("User %q cannot %s resource %q in API group %q %s",
		c.name, r.verb, what, r.resource.group, scope)))
}

// refusal is a sentence in Kubernetes' own words.
type refusal string

func (r refusal) Error() string { return string(r) }

// kubeletMay says whether a kubelet does such a thing: it reads, writes its own node and lease, and reports on and ends pods.
func (c caller) kubeletMay(r *request) bool {
	if r.verb == "get" || r.verb == "list" || r.verb == "watch" {
		return true
	}
	own, _ := strings.CutPrefix(c.name, nodePrefix)
	switch r.resource.plural {
	case "nodes":
		return r.verb != "delete" && (r.name == own || r.verb == "create")
	case "leases":
		return r.name == own || r.verb == "create"
	case "pods":
		return true
	}
	return false
}
