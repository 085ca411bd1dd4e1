package talos

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
)

// The contracts that configs can be generated for, newest first.
const (
	newestContract = 13
	oldestContract = 0
)

// ContractOf guesses for which Talos version a machine's config was generated: the one whose generated config shares most
// lines with it, the newest of several. That is what TalosCluster.spec.contract should be for a cluster that exists, or its
// machines would differ from what is rendered for them. Empty when data is no config of a control plane.
func ContractOf(data []byte) string {
	imported, err := ImportBundle(data)
	if err != nil {
		return ""
	}
	active, err := configloader.NewFromBytes(data)
	if err != nil || active.RawV1Alpha1() == nil {
		return ""
	}
	text, err := canonical(active)
	if err != nil {
		return ""
	}
	best, fewest := "", math.MaxInt
	for minor := newestContract; minor >= oldestContract; minor-- {
		generated, err := generatedLike(active, imported, &config.VersionContract{Major: 1, Minor: minor})
		if err != nil {
			continue
		}
		if differing := differingLines(text, generated); differing < fewest {
			best, fewest = fmt.Sprintf("v1.%d", minor), differing
		}
	}
	return best
}

// generatedLike generates what the machinery would for the same cluster under a contract.
func generatedLike(active config.Provider, bundle *Bundle, contract *config.VersionContract) ([]byte, error) {
	endpoint := ""
	if url := active.Cluster().Endpoint(); url != nil {
		endpoint = url.String()
	}
	input, err := generate.NewInput(active.Cluster().Name(), endpoint, strings.TrimPrefix(VersionsOf(active).Kubelet, "v"),
		generate.WithSecretsBundle(bundle.secrets), generate.WithVersionContract(contract))
	if err != nil {
		return nil, err
	}
	generated, err := input.Config(active.Machine().Type())
	if err != nil {
		return nil, err
	}
	return generated.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
}

// differingLines counts the lines that stand in one text and not in the other.
func differingLines(a, b []byte) int {
	count := map[string]int{}
	for _, line := range bytes.Split(a, []byte("\n")) {
		count[string(line)]++
	}
	for _, line := range bytes.Split(b, []byte("\n")) {
		count[string(line)]--
	}
	differing := 0
	for _, n := range count {
		differing += max(n, -n)
	}
	return differing
}
