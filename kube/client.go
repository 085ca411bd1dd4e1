package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"ichor.maesh.dev/internal/printable"
)

// Options say how a cluster's API is reached.
type Options struct {
	// Servers are the API servers in the order in which they are tried: host, host:port (6443 unless given) or the https URL
	// of one. Put the control planes first and the cluster's endpoint last: a virtual address goes away with the node that
	// holds it.
	Servers []string
	// CA is the certificate of the cluster's Kubernetes authority, as PEM.
	CA []byte
	// Certificate gives the client certificate for one connection. It is asked for each, so that a certificate may live for
	// minutes only. Several calls may ask at once.
	Certificate func() (tls.Certificate, error)
	// Timeout bounds each call to the API; 0 means defaultTimeout. A method of Client may make several.
	Timeout time.Duration
}

// defaultTimeout bounds a call where Options say nothing. Kubernetes itself gives up on most after a minute.
const defaultTimeout = 15 * time.Second

// defaultPort is where Talos's control planes serve the Kubernetes API.
const defaultPort = "6443"

// Client calls the Kubernetes API of one cluster. It may be used by several goroutines.
type Client struct {
	api     kubernetes.Interface
	timeout time.Duration
}

// New makes a client. It calls nobody.
func New(options Options) (*Client, error) {
	if len(options.Servers) == 0 {
		return nil, errors.New("no address of a Kubernetes API server is known")
	}
	if options.Certificate == nil {
		return nil, errors.New("a client of the Kubernetes API needs a certificate")
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(options.CA) {
		return nil, errors.New("the certificate of the Kubernetes authority can't be read")
	}
	timeout := options.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	var servers []string
	for _, given := range options.Servers {
		address, err := hostPort(given)
		if err != nil {
			return nil, err
		}
		servers = append(servers, address)
	}
	web := &http.Client{
		Transport: newFailover(servers, authorities, options.Certificate, timeout),
		// Nothing in the Kubernetes API redirects; whoever does would be sent the next request.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	api, err := kubernetes.NewForConfigAndClient(&rest.Config{
		Host:           "https://" + servers[0],
		QPS:            -1, // Calls are few and one after another; a limit would only make them late without a word.
		WarningHandler: rest.NoWarnings{},
		ContentConfig:  rest.ContentConfig{AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json", ContentType: "application/json"},
		UserAgent:      "ichor",
	}, web)
	if err != nil {
		return nil, fmt.Errorf("making a client of the Kubernetes API: %w", err)
	}
	return &Client{api: api, timeout: timeout}, nil
}

// hostPort gives the address of an API server from one of the forms of Options.Servers.
func hostPort(given string) (string, error) {
	address := given
	if strings.Contains(given, "://") {
		parsed, err := url.Parse(given)
		if err != nil || parsed.Scheme != "https" || parsed.Host == "" || strings.Trim(parsed.Path, "/") != "" {
			return "", fmt.Errorf("%q is no address of a Kubernetes API server; want https://HOST:PORT", printable.Text(given))
		}
		address = parsed.Host
		if parsed.Port() == "" {
			return net.JoinHostPort(parsed.Hostname(), "443"), nil
		}
	}
	if host, port, err := net.SplitHostPort(address); err == nil && host != "" && port != "" {
		return address, nil
	}
	address = strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	if address == "" || strings.ContainsAny(address, "/ ") {
		return "", fmt.Errorf("%q is no address of a Kubernetes API server; want HOST or HOST:PORT", printable.Text(given))
	}
	return net.JoinHostPort(address, defaultPort), nil
}

// call gives the context of one call: bounded, and without the library's own log, which would go to standard error.
func (c *Client) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(klog.NewContext(ctx, logr.Discard()), c.timeout)
}

// Ready asks an API server whether it is ready to serve. One that answers and isn't ready is ErrUnavailable with the
// checks that fail.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := c.call(ctx)
	defer cancel()
	answer := c.api.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx)
	body, err := answer.Raw()
	if err == nil {
		return nil
	}
	if failing := failingChecks(string(body)); failing != "" {
		return fmt.Errorf("asking the Kubernetes API whether it is ready: %w: it isn't ready (%s)", ErrUnavailable, failing)
	}
	return failure("asking the Kubernetes API whether it is ready", err)
}

// failingChecks gives the names of the checks that fail in the text of /readyz: lines like "[-]etcd failed: reason withheld".
func failingChecks(text string) string {
	var names []string
	for line := range strings.Lines(text) {
		if check, failing := strings.CutPrefix(line, "[-]"); failing {
			name, _, _ := strings.Cut(check, " ")
			names = append(names, clean(strings.TrimSpace(name)))
		}
	}
	return strings.Join(names, ", ")
}

// Revision gives the revision that etcd has reached, as the API server sees it. What is restored must begin above it: clients
// have seen that much.
func (c *Client) Revision(ctx context.Context) (int64, error) {
	const doing = "asking the Kubernetes API for etcd's revision"
	ctx, cancel := c.call(ctx)
	defer cancel()
	list, err := c.api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, failure(doing, err)
	}
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil || revision <= 0 {
		return 0, fmt.Errorf("%s: it says %q", doing, clean(list.ResourceVersion))
	}
	return revision, nil
}
