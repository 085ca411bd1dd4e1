package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"ichor.maesh.dev/talos"
)

// kubeconfigFlags are the command line of kubeconfig.
type kubeconfigFlags struct {
	fleet, user, out string
	identities       []string
	groups           []string
	life             time.Duration
}

func (a *app) kubeconfigCommand() *cobra.Command {
	f := &kubeconfigFlags{}
	cmd := &cobra.Command{
		Use:   "kubeconfig CLUSTER",
		Short: "Make a short-lived kubeconfig from a cluster's secrets bundle",
		Long: `Mints a client certificate of the cluster's Kubernetes authority and writes a kubeconfig with it, to a file (mode 0600) or to
standard output where that is no terminal. The server is the cluster's spec.endpoint; no node is asked.

The certificate names a person, so that the API server's audit log does. Its group is system:masters unless others are
given: it may do everything, and no RBAC rule takes that away. It ends by itself; it can't be taken back before.`,
		Example: `  ichor kubeconfig prod --age-identity key.txt --user alice@example.com --out ~/prod.kubeconfig
  kubectl --kubeconfig ~/prod.kubeconfig get nodes`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return a.kubeconfig(f, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.fleet, "fleet", ".", "a checkout of the fleet repository")
	flags.StringSliceVar(&f.identities, "age-identity", nil, "file with an age identity or SSH key (may be repeated)")
	flags.StringVar(&f.user, "user", "", "the person whom the certificate names (default: the name of your account on this machine)")
	flags.StringSliceVar(&f.groups, "group", []string{talos.GroupMasters}, "group that the certificate names (may be repeated)")
	flags.DurationVar(&f.life, "ttl", time.Hour, "how long the certificate serves; at most 24h")
	flags.StringVar(&f.out, "out", "", "the file to write (default: standard output, unless it is a terminal)")
	return cmd
}

func (a *app) kubeconfig(f *kubeconfigFlags, name string) error {
	if err := a.keyNeedsFile(f.out, "kubeconfig"); err != nil {
		return err
	}
	if f.user == "" {
		f.user = whoIsHere()
	}
	_, cluster, bundle, err := a.openCluster(f.fleet, name, f.identities)
	if err != nil {
		return err
	}
	minted, err := bundle.MintKubernetes(f.user, f.groups, f.life, a.clock.Now())
	if err != nil {
		return cannot(err, "")
	}
	text, err := kubeconfigText(name, cluster.Spec.Endpoint, f.user, bundle.KubernetesCA(), minted)
	if err != nil {
		return cannot(err, "")
	}
	return a.writeCredential(credential{out: f.out, what: "kubeconfig", cluster: name, life: f.life, text: text, replaces: onlyKubernetes,
		merge: "name both in KUBECONFIG, divided by a colon"})
}

// kubeconfigText gives a kubeconfig with one context, called USER@CLUSTER as Talos's own are.
func kubeconfigText(cluster, server, user string, authority []byte, minted tls.Certificate) ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(minted.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("encoding the key of the kubeconfig: %w", err)
	}
	context := user + "@" + cluster
	made := clientcmdapi.NewConfig()
	made.Clusters[cluster] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: authority}
	made.AuthInfos[context] = &clientcmdapi.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: minted.Leaf.Raw}),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}
	made.Contexts[context] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: context, Namespace: "default"}
	made.CurrentContext = context
	text, err := clientcmd.Write(*made)
	if err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return text, nil
}

// onlyKubernetes says whether a text is a kubeconfig of one cluster and one user, as written here.
func onlyKubernetes(text []byte, cluster string) bool {
	parsed, err := clientcmd.Load(bytes.Clone(text))
	if err != nil || len(parsed.Clusters) != 1 || len(parsed.AuthInfos) != 1 || len(parsed.Contexts) != 1 {
		return false
	}
	return parsed.Clusters[cluster] != nil
}
