package talos

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"

	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
)

// AnnotationState is the node annotation by which a machine names the state that it is managed from.
const AnnotationState = "ichor.maesh.dev/state"

// defaultInstaller is installed where spec.install.image is empty.
const defaultInstaller = "ghcr.io/siderolabs/installer"

// RenderOptions are what a rendering may need besides cluster, machine and bundle.
type RenderOptions struct {
	// Read opens a file that a patch names, as (*schema.Fleet).ReadRef does. Needed when a patch names a file.
	Read func(fromFile string, ref schema.FileRef) (path string, data []byte, err error)
	// Identities open sealed patches. Nil: a sealed patch is an error that errors.Is sealed.ErrNoIdentity.
	Identities *sealed.Identities
	// Running are the versions the machine runs (VersionsOf its active config), which the config then keeps: versions are
	// moved by an upgrade only. The zero value renders those of the spec, for a first config.
	Running Versions
	// StateAnnotation is the value of AnnotationState, applied after everything else. Empty: none.
	StateAnnotation string
	// Platform is what the config is validated for: metal (the default), cloud or container.
	Platform string
}

// Rendered is a machine's full config.
type Rendered struct {
	// Config is the config as a machine reads it; it is read-only.
	Config config.Provider
	// Bytes are the text to send: equal inputs give equal bytes.
	Bytes []byte
	// Digest is Digest(Config).
	Digest string
	// Warnings of the machinery's validator.
	Warnings []string
	// Pending lists what the spec wants in another version than the machine runs ("kubelet v1.36.1, wanted v1.36.2").
	Pending []string

	hidden hiddenPaths
	// hostname is what the patches left of it.
	hostname string
}

// RenderError is why a config can't be rendered, and where the cause stands.
type RenderError struct {
	schema.Position
	Machine string
	Message string
	Err     error

	// source and field are of the object's field that the error was found at, if at one.
	source schema.Position
	field  string
}

func (e *RenderError) Error() string {
	where := ""
	if e.File != "" {
		where = e.File + ": "
		if e.Line > 0 {
			where = fmt.Sprintf("%s:%d: ", e.File, e.Line)
			if e.Column > 0 {
				where = fmt.Sprintf("%s:%d:%d: ", e.File, e.Line, e.Column)
			}
		}
	}
	return where + e.Message
}

func (e *RenderError) Unwrap() error { return e.Err }

// Render makes the machine's config from bundle, cluster and role, lays the patches over it (all, role, machine), pins the
// versions and checks the result with the machinery's own validator. Errors are *RenderError.
func Render(cluster *schema.TalosCluster, target *schema.TalosMachine, bundle *Bundle, options RenderOptions) (*Rendered, error) {
	r := &renderer{cluster: cluster, machine: target, bundle: bundle, options: options}
	rendered, err := r.guarded(r.render)
	if err != nil {
		return nil, r.failure(err)
	}
	return rendered, nil
}

// guarded makes an error of a panic: patches are written by many hands, and the machinery does not foresee every shape.
func (r *renderer) guarded(render func() (*Rendered, error)) (rendered *Rendered, err error) {
	defer func() {
		if recover() != nil {
			rendered, err = nil, errors.New("the patches give a config that Talos's own code can't handle; look for null and empty entries in them")
		}
	}()
	return render()
}

type renderer struct {
	cluster *schema.TalosCluster
	machine *schema.TalosMachine
	bundle  *Bundle
	options RenderOptions
	hidden  hiddenPaths
	// shared keeps the cluster's patches for several renderings; nil for one alone.
	shared *Checker
}

func (r *renderer) render() (*Rendered, error) {
	rendered, err := r.settle()
	if err != nil {
		return nil, err
	}
	if err := hostnameProblem(r.machine, rendered.hostname); err != nil {
		return nil, err
	}
	if rendered.Digest, err = Digest(rendered.Config); err != nil {
		return nil, err
	}
	return rendered, nil
}

// settle makes the config and has it checked, but for the hostname that patches may have changed.
func (r *renderer) settle() (*Rendered, error) {
	mode, err := platformMode(r.options.Platform)
	if err != nil {
		return nil, err
	}
	base, err := r.generate()
	if err != nil {
		return nil, err
	}
	patches, err := r.patches()
	if err != nil {
		return nil, err
	}
	if r.shared != nil {
		r.shared.count()
	}
	patched, err := r.lay(base, patches)
	if err != nil {
		return nil, err
	}
	if err := r.checkOwned(base, patched); err != nil {
		return nil, err
	}
	var pending []string
	finished, err := patched.PatchV1Alpha1(func(c *v1alpha1.Config) error {
		r.finish(c)
		pending = r.options.Running.pin(c)
		return nil
	})
	if err != nil {
		return nil, errors.New("the patches took the machine config itself away")
	}
	text, err := finished.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, fmt.Errorf("encoding the config: %w", err)
	}
	// What a machine makes of the text is what counts, so the text is read back.
	loaded, err := configloader.NewFromBytes(text)
	if err != nil {
		return nil, fmt.Errorf("the rendered config can't be read back: %s", r.hidden.words(err.Error()))
	}
	warnings, err := loaded.Validate(mode)
	if err != nil {
		return nil, r.blame(err, base, patches, mode)
	}
	for n, warning := range warnings {
		warnings[n] = r.hidden.words(warning)
	}
	return &Rendered{Config: loaded, Bytes: text, Warnings: warnings, Pending: pending, hidden: r.hidden, hostname: hostnameOf(patched)}, nil
}

// blame finds the patch that makes the config invalid: the first with which what the validator says comes up.
func (r *renderer) blame(invalid error, base config.Provider, patches []*loadedPatch, mode validation.RuntimeMode) error {
	said := sentences(invalid)
	message := fmt.Errorf("the rendered config is not valid: %s", r.hidden.words(strings.Join(said, "; ")))
	if slices.ContainsFunc(said, func(s string) bool { return strings.Contains(s, "hostname is already set") }) {
		message = fmt.Errorf("%w; a patch names the machine in another place than its config does: take that out, and set spec.hostname of the TalosMachine", message)
	}
	if len(said) == 0 {
		return message
	}
	for n := range len(patches) + 1 {
		patched, err := r.lay(base, patches[:n])
		if err != nil {
			return message
		}
		if _, err := patched.Validate(mode); err == nil || !slices.Contains(sentences(err), said[0]) {
			continue
		}
		if n == 0 {
			return message
		}
		culprit := patches[n-1]
		return culprit.problem(culprit.spotOfValue(said[0]), message)
	}
	return message
}

func hostnameOf(provider config.Provider) string {
	if declared := provider.NetworkHostnameConfig(); declared != nil {
		return declared.Hostname()
	}
	return ""
}

// hostnameProblem refuses two hostnames for one machine: state, etcd and Kubernetes would disagree about its name.
func hostnameProblem(m *schema.TalosMachine, patched string) error {
	declared := m.Spec.Hostname
	if declared == "" || patched == declared {
		return nil
	}
	return at(m.Source, "spec.hostname", fmt.Errorf("it says %q and a patch sets another hostname; keep one", declared))
}

// sentences takes the bullets and line breaks out of the validator's list.
func sentences(err error) []string {
	var parts []string
	above := ""
	for _, line := range strings.Split(err.Error(), "\n") {
		line = strings.TrimPrefix(strings.TrimSpace(line), "* ")
		if strings.HasSuffix(line, "errors occurred:") || strings.HasSuffix(line, "error occurred:") {
			if cut := strings.LastIndex(line, ": "); cut >= 0 {
				above = line[:cut+2] // what the list below it is about
			}
			continue
		}
		if line == "" {
			continue
		}
		parts = append(parts, above+line)
	}
	return parts
}

// oneSentence makes one line of the validator's list.
func oneSentence(err error) string { return strings.Join(sentences(err), "; ") }

// generate makes the config before patches.
func (r *renderer) generate() (config.Provider, error) {
	spec := r.cluster.Spec
	contract, err := parseContract(spec.ContractVersion())
	if err != nil {
		return nil, at(r.cluster.Source, "spec.contract", err)
	}
	if endpoint, err := url.Parse(spec.Endpoint); err != nil || endpoint.Host == "" {
		return nil, at(r.cluster.Source, "spec.endpoint", fmt.Errorf("%q is no URL of a Kubernetes API; write it as in https://10.0.0.10:6443", spec.Endpoint))
	}
	kind, err := machineType(r.machine.Spec.Role)
	if err != nil {
		return nil, at(r.machine.Source, "spec.role", err)
	}
	options := []generate.Option{
		generate.WithSecretsBundle(r.bundle.secrets),
		generate.WithVersionContract(contract),
		generate.WithInstallImage(r.installImage()),
		generate.WithAllowSchedulingOnControlPlanes(kind == machine.TypeControlPlane && spec.ControlPlanesSchedulable()),
	}
	if spec.Network.DNSDomain != "" {
		options = append(options, generate.WithDNSDomain(spec.Network.DNSDomain))
	}
	switch spec.Network.CNI {
	case "", "flannel":
	case "none":
		options = append(options, generate.WithClusterCNIConfig(&v1alpha1.CNIConfig{CNIName: "none"}))
	default:
		return nil, at(r.cluster.Source, "spec.network.cni", fmt.Errorf("cni %q is not known; want flannel or none, and bring another one as manifests by a patch", spec.Network.CNI))
	}
	input, err := generate.NewInput(r.cluster.Metadata.Name, spec.Endpoint, strings.TrimPrefix(spec.KubernetesVersion, "v"), options...)
	if err != nil {
		return nil, fmt.Errorf("generating the config: %w", err)
	}
	input.AdditionalMachineCertSANs = []string{r.machine.Spec.Host()}
	if len(spec.Network.PodSubnets) > 0 {
		input.PodNet = spec.Network.PodSubnets
	}
	if len(spec.Network.ServiceSubnets) > 0 {
		input.ServiceNet = spec.Network.ServiceSubnets
	}
	generated, err := input.Config(kind)
	if err != nil {
		return nil, fmt.Errorf("generating the config: %w", err)
	}
	return r.declare(generated)
}

// declare puts what the TalosMachine says into the generated config.
func (r *renderer) declare(generated config.Provider) (config.Provider, error) {
	var problem error
	declared, err := generated.PatchV1Alpha1(func(c *v1alpha1.Config) error {
		problem = errors.Join(r.declareInstall(c), r.declareNode(c))
		return problem
	})
	if err != nil {
		return nil, err
	}
	return r.declareHostname(declared)
}

func (r *renderer) declareInstall(c *v1alpha1.Config) error {
	install := c.MachineConfig.MachineInstall
	if install == nil {
		install = &v1alpha1.InstallConfig{}
		c.MachineConfig.MachineInstall = install
	}
	install.InstallDisk = r.cluster.Spec.Install.Disk
	own := r.machine.Spec.Install
	if own == nil {
		return nil
	}
	if own.Disk != "" && len(own.DiskSelector) > 0 {
		return at(r.machine.Source, "spec.install", errors.New("disk and diskSelector exclude each other; keep one"))
	}
	if own.Disk != "" {
		install.InstallDisk = own.Disk
	}
	if len(own.DiskSelector) > 0 {
		selector, err := diskSelector(own.DiskSelector)
		if err != nil {
			return at(r.machine.Source, "spec.install.diskSelector", err)
		}
		install.InstallDisk, install.InstallDiskSelector = "", selector
	}
	wipe := own.Wipe
	install.InstallWipe = &wipe
	return nil
}

func (r *renderer) declareNode(c *v1alpha1.Config) error {
	for key, value := range r.machine.Spec.Labels {
		if c.MachineConfig.MachineNodeLabels == nil {
			c.MachineConfig.MachineNodeLabels = map[string]string{}
		}
		c.MachineConfig.MachineNodeLabels[key] = value
	}
	for n, taint := range r.machine.Spec.Taints {
		key, value, err := splitTaint(taint)
		if err != nil {
			return at(r.machine.Source, fmt.Sprintf("spec.taints[%d]", n), err)
		}
		if c.MachineConfig.MachineNodeTaints == nil {
			c.MachineConfig.MachineNodeTaints = map[string]string{}
		}
		if _, twice := c.MachineConfig.MachineNodeTaints[key]; twice {
			return at(r.machine.Source, fmt.Sprintf("spec.taints[%d]", n), fmt.Errorf("taint %q stands here twice, and Talos holds one a key", key))
		}
		c.MachineConfig.MachineNodeTaints[key] = value
	}
	return nil
}

// declareHostname sets the static hostname where the machine has one, in the form that the contract uses.
func (r *renderer) declareHostname(provider config.Provider) (config.Provider, error) {
	if r.machine.Spec.Hostname == "" {
		return provider, nil
	}
	documents := slices.Clone(provider.Documents())
	for n, document := range documents {
		if generated, ok := document.(*network.HostnameConfigV1Alpha1); ok {
			static := generated.Clone().(*network.HostnameConfigV1Alpha1)
			static.ConfigAuto, static.ConfigHostname = nil, r.machine.Spec.Hostname
			documents[n] = static
			return container.New(documents...)
		}
	}
	return legacyHostname(provider, r.machine.Spec.Hostname)
}

// finish is applied after the patches, because no patch may take it away.
func (r *renderer) finish(c *v1alpha1.Config) {
	if host := r.machine.Spec.Host(); !slices.Contains(c.MachineConfig.MachineCertSANs, host) {
		c.MachineConfig.MachineCertSANs = append(c.MachineConfig.MachineCertSANs, host)
	}
	if r.options.StateAnnotation != "" {
		if c.MachineConfig.MachineNodeAnnotations == nil {
			c.MachineConfig.MachineNodeAnnotations = map[string]string{}
		}
		c.MachineConfig.MachineNodeAnnotations[AnnotationState] = r.options.StateAnnotation
	}
}

func (r *renderer) installImage() string {
	image := r.cluster.Spec.Install.Image
	if image == "" {
		image = defaultInstaller
	}
	return image + ":" + r.cluster.Spec.TalosVersion
}

func machineType(role schema.Role) (machine.Type, error) {
	switch role {
	case schema.RoleControlPlane:
		return machine.TypeControlPlane, nil
	case schema.RoleWorker:
		return machine.TypeWorker, nil
	}
	return machine.TypeUnknown, fmt.Errorf("role %q is not known; want controlplane or worker", role)
}

// splitTaint takes key=value:Effect or key:Effect apart into the form of machine.nodeTaints.
func splitTaint(taint string) (key, value string, err error) {
	head, effect, ok := strings.Cut(taint, ":")
	if !ok || head == "" || effect == "" {
		return "", "", fmt.Errorf("%q is no taint; write it as in key=value:NoSchedule", taint)
	}
	key, value, _ = strings.Cut(head, "=")
	return key, value + ":" + effect, nil
}

// Digest identifies a config by what it says: the SHA-256, in hex, of its canonical text. Comments, order of documents and
// the way it was written don't count.
func Digest(provider config.Provider) (string, error) {
	text, err := canonical(provider)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// canonical gives a config's text without comments, its documents sorted by kind and name after the machine config itself.
func canonical(provider config.Provider) ([]byte, error) {
	text, err := ordered(provider)
	if err != nil {
		return nil, err
	}
	encoded, err := text.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, errors.New("the config can't be encoded")
	}
	return encoded, nil
}

func ordered(provider config.Provider) (config.Provider, error) {
	documents := slices.Clone(provider.Documents())
	slices.SortStableFunc(documents, func(a, b coreconfig.Document) int { return strings.Compare(documentID(a), documentID(b)) })
	sorted, err := container.New(documents...)
	if err != nil {
		return nil, errors.New("the config holds a document twice")
	}
	return sorted, nil
}

// documentID names a document; the machine config itself has no name and comes first.
func documentID(document coreconfig.Document) string {
	if _, ok := document.(*v1alpha1.Config); ok {
		return ""
	}
	id := document.Kind()
	if named, ok := document.(coreconfig.NamedDocument); ok {
		id += "/" + named.Name()
	}
	return id
}
