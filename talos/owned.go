package talos

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	siderox509 "github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// owned are the fields that come from the bundle or from the declared machine alone.
var owned = map[string]string{
	"machine.ca":                                 "the secrets bundle",
	"machine.acceptedCAs":                        "the secrets bundle",
	"machine.token":                              "the secrets bundle",
	"machine.type":                               "spec.role",
	"cluster.id":                                 "the secrets bundle",
	"cluster.secret":                             "the secrets bundle",
	"cluster.token":                              "the secrets bundle",
	"cluster.aescbcEncryptionSecret":             "the secrets bundle",
	"cluster.secretboxEncryptionSecret":          "the secrets bundle",
	"cluster.ca":                                 "the secrets bundle",
	"cluster.acceptedCAs":                        "the secrets bundle",
	"cluster.aggregatorCA":                       "the secrets bundle",
	"cluster.serviceAccount":                     "the secrets bundle",
	"cluster.etcd.ca":                            "the secrets bundle",
	"machine.nodeAnnotations." + AnnotationState: "the agent, as a mark of who manages the machine",
}

// ownedProblem refuses a patch that sets or deletes what it may not.
func ownedProblem(patch *loadedPatch, document *yaml.Node) error {
	root := content(document)
	if kindOf(root) != "" {
		return nil
	}
	for _, field := range slices.Sorted(keysOf(owned)) {
		if key, _ := locate(root, strings.SplitN(field, ".", 3)); key != nil {
			return patch.problem(spotOf(key), fmt.Errorf("%s comes from %s; a patch may not set or delete it", field, owned[field]))
		}
	}
	// Deleting what holds an owned field deletes it as well.
	for _, above := range []string{"machine", "cluster", "cluster.etcd"} {
		if key, _ := locate(root, append(strings.Split(above, "."), "$patch")); key != nil {
			return patch.problem(spotOf(key), fmt.Errorf("%s holds what comes from the secrets bundle; a patch may not delete it", above))
		}
	}
	if key, _ := locate(root, []string{"$patch"}); key != nil {
		return patch.problem(spotOf(key), errors.New("a patch may not delete the machine config itself"))
	}
	return nil
}

func keysOf(fields map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for field := range fields {
			if !yield(field) {
				return
			}
		}
	}
}

// checkOwned is the second lock on the same door: whatever way a patch took, what the bundle owns is as generated.
func (r *renderer) checkOwned(base, patched config.Provider) error {
	want, got := base.RawV1Alpha1(), patched.RawV1Alpha1()
	if got == nil || got.MachineConfig == nil || got.ClusterConfig == nil {
		return errors.New("the patches took the machine config itself away")
	}
	if !reflect.DeepEqual(ownedValues(want), ownedValues(got)) {
		return errors.New("a patch changes what comes from the secrets bundle or from spec.role (authorities, tokens, encryption secrets, cluster ID and secret, machine type); take that out of the patches")
	}
	return nil
}

func ownedValues(c *v1alpha1.Config) []any {
	machine, cluster := c.MachineConfig, c.ClusterConfig
	var etcd *siderox509.PEMEncodedCertificateAndKey // nil without an etcd section, as a worker is generated, and without an authority in it
	if cluster.EtcdConfig != nil {
		etcd = cluster.EtcdConfig.RootCA
	}
	return []any{
		machine.MachineType, machine.MachineToken, machine.MachineCA, machine.MachineAcceptedCAs,
		cluster.ClusterID, cluster.ClusterSecret, cluster.BootstrapToken, cluster.ClusterAESCBCEncryptionSecret,
		cluster.ClusterSecretboxEncryptionSecret, cluster.ClusterCA, cluster.ClusterAcceptedCAs, cluster.ClusterAggregatorCA,
		cluster.ClusterServiceAccount, etcd,
	}
}
