package kube

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"ichor.maesh.dev/internal/keptport"
)

// authority is a certificate authority for tests, and what it issued.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{certificate: certificate, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, usage x509.ExtKeyUsage) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "one", Organization: []string{"system:masters"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, a.certificate, key.Public(), a.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// fakeCluster is what several fake API servers show: a few kinds of objects, and how evictions are answered.
type fakeCluster struct {
	t *testing.T

	mu          sync.Mutex
	version     int
	nodes       map[string]*corev1.Node
	leases      []coordinationv1.Lease
	pods        []corev1.Pod
	budgets     []policyv1.PodDisruptionBudget
	daemonSets  []string
	attachments []storagev1.VolumeAttachment
	claims      map[string]string // namespace/name: volume
	// revision is the resource version of a list.
	revision string
	// eviction answers for a pod that is there with the UID asked for; nil lets it go.
	eviction func(pod *corev1.Pod) *apierrors.StatusError
	// asked counts requests by method and path.
	asked []string
}

func newFakeCluster(t *testing.T) *fakeCluster {
	return &fakeCluster{t: t, nodes: map[string]*corev1.Node{}, claims: map[string]string{}}
}

func (c *fakeCluster) addNode(name, uid string, change ...func(*corev1.Node)) Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: c.next()}}
	for _, one := range change {
		one(node)
	}
	c.nodes[name] = node
	return nodeOf(node, time.Time{})
}

// node gives a copy of a node's object.
func (c *fakeCluster) node(name string) *corev1.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[name].DeepCopy()
}

// sent counts the requests of one method whose path has this ending.
func (c *fakeCluster) sent(method, ending string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, asked := range c.asked {
		if strings.HasPrefix(asked, method+" ") && strings.HasSuffix(asked, ending) {
			n++
		}
	}
	return n
}

func (c *fakeCluster) next() string {
	c.version++
	return strconv.Itoa(c.version)
}

// status answers with an error, as the API server does.
func status(w http.ResponseWriter, err *apierrors.StatusError) {
	if err.ErrStatus.Details != nil && err.ErrStatus.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(err.ErrStatus.Details.RetryAfterSeconds)))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(err.ErrStatus.Code))
	answer := err.ErrStatus
	answer.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	_ = json.NewEncoder(w).Encode(answer)
}

func answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

func notFound(w http.ResponseWriter, what, name string) {
	status(w, apierrors.NewNotFound(schema.GroupResource{Resource: what}, name))
}

func conflict(w http.ResponseWriter, what, name, why string) {
	status(w, apierrors.NewConflict(schema.GroupResource{Resource: what}, name, &textError{why}))
}

type textError struct{ text string }

func (e *textError) Error() string { return e.text }

func (c *fakeCluster) handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, serve http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.asked = append(c.asked, r.Method+" "+r.URL.Path)
			serve(w, r)
		})
	}
	handle("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	handle("GET /api/v1/namespaces", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, corev1.NamespaceList{TypeMeta: metav1.TypeMeta{Kind: "NamespaceList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: c.revision}})
	})
	handle("GET /api/v1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		for _, node := range c.nodes {
			list.Items = append(list.Items, *node)
		}
		answer(w, list)
	})
	handle("GET /api/v1/nodes/{name}", func(w http.ResponseWriter, r *http.Request) {
		if node := c.nodes[r.PathValue("name")]; node != nil {
			answer(w, node)
			return
		}
		notFound(w, "nodes", r.PathValue("name"))
	})
	handle("PATCH /api/v1/nodes/{name}", c.patchNode)
	handle("DELETE /api/v1/nodes/{name}", c.deleteNode)
	handle("GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"}, Items: c.leases})
	})
	handle("GET /api/v1/pods", c.listPods)
	handle("GET /api/v1/namespaces/{namespace}/pods", c.listPods)
	handle("GET /api/v1/namespaces/{namespace}/pods/{name}", func(w http.ResponseWriter, r *http.Request) {
		for i := range c.pods {
			if c.pods[i].Namespace == r.PathValue("namespace") && c.pods[i].Name == r.PathValue("name") {
				answer(w, c.pods[i])
				return
			}
		}
		notFound(w, "pods", r.PathValue("name"))
	})
	handle("DELETE /api/v1/namespaces/{namespace}/pods/{name}", c.deletePod)
	handle("POST /api/v1/namespaces/{namespace}/pods/{name}/eviction", c.evictPod)
	handle("GET /apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", func(w http.ResponseWriter, r *http.Request) {
		for _, name := range c.daemonSets {
			if name == r.PathValue("name") {
				answer(w, appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{Kind: "DaemonSet", APIVersion: "apps/v1"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
				return
			}
		}
		notFound(w, "daemonsets", r.PathValue("name"))
	})
	handle("GET /apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, policyv1.PodDisruptionBudgetList{TypeMeta: metav1.TypeMeta{Kind: "PodDisruptionBudgetList", APIVersion: "policy/v1"}, Items: c.budgets})
	})
	handle("GET /apis/storage.k8s.io/v1/volumeattachments", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, storagev1.VolumeAttachmentList{TypeMeta: metav1.TypeMeta{Kind: "VolumeAttachmentList", APIVersion: "storage.k8s.io/v1"}, Items: c.attachments})
	})
	handle("GET /api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}", func(w http.ResponseWriter, r *http.Request) {
		volume, known := c.claims[r.PathValue("namespace")+"/"+r.PathValue("name")]
		if !known {
			notFound(w, "persistentvolumeclaims", r.PathValue("name"))
			return
		}
		answer(w, corev1.PersistentVolumeClaim{TypeMeta: metav1.TypeMeta{Kind: "PersistentVolumeClaim", APIVersion: "v1"},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}})
	})
	mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { c.t.Errorf("%s %s is not served", r.Method, r.URL) })
	return mux
}

func (c *fakeCluster) patchNode(w http.ResponseWriter, r *http.Request) {
	var patch struct {
		Metadata struct {
			UID             string
			ResourceVersion string
			Annotations     map[string]*string
		}
		Spec struct{ Unschedulable *bool }
	}
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		c.t.Errorf("a patch can't be read: %v", err)
	}
	node := c.nodes[r.PathValue("name")]
	switch {
	case node == nil:
		notFound(w, "nodes", r.PathValue("name"))
		return
	case patch.Metadata.UID != string(node.UID), patch.Metadata.ResourceVersion != node.ResourceVersion:
		conflict(w, "nodes", node.Name, "the object has been modified")
		return
	}
	node.Spec.Unschedulable = patch.Spec.Unschedulable != nil && *patch.Spec.Unschedulable
	for key, value := range patch.Metadata.Annotations {
		if value == nil {
			delete(node.Annotations, key)
			continue
		}
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, *value)
	}
	node.ResourceVersion = c.next()
	answer(w, node)
}

func (c *fakeCluster) deleteNode(w http.ResponseWriter, r *http.Request) {
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil {
		c.t.Errorf("delete options can't be read: %v", err)
	}
	node := c.nodes[r.PathValue("name")]
	switch {
	case node == nil:
		notFound(w, "nodes", r.PathValue("name"))
	case options.Preconditions == nil || *options.Preconditions.UID != node.UID:
		conflict(w, "nodes", node.Name, "the UID in the precondition does not match")
	default:
		delete(c.nodes, node.Name)
		answer(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
	}
}

func (c *fakeCluster) deletePod(w http.ResponseWriter, r *http.Request) {
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil {
		c.t.Errorf("delete options can't be read: %v", err)
	}
	for i := range c.pods {
		pod := &c.pods[i]
		if pod.Namespace != r.PathValue("namespace") || pod.Name != r.PathValue("name") {
			continue
		}
		if options.Preconditions == nil || *options.Preconditions.UID != pod.UID {
			conflict(w, "pods", pod.Name, "the UID in the precondition does not match")
			return
		}
		now := metav1.Now()
		pod.DeletionTimestamp = &now
		answer(w, pod)
		return
	}
	notFound(w, "pods", r.PathValue("name"))
}

// listPods gives the pods of a node, or of a namespace, in pages of the size asked for, as the API server does.
func (c *fakeCluster) listPods(w http.ResponseWriter, r *http.Request) {
	node, namespace := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "spec.nodeName="), r.PathValue("namespace")
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
	for _, pod := range c.pods {
		if namespace != "" && pod.Namespace == namespace || namespace == "" && pod.Spec.NodeName == node {
			list.Items = append(list.Items, pod)
		}
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	list.Items = list.Items[from:]
	if limit > 0 && len(list.Items) > limit {
		list.Items, list.Continue = list.Items[:limit], strconv.Itoa(from+limit)
	}
	answer(w, list)
}

func (c *fakeCluster) evictPod(w http.ResponseWriter, r *http.Request) {
	var eviction policyv1.Eviction
	if err := json.NewDecoder(r.Body).Decode(&eviction); err != nil {
		c.t.Errorf("an eviction can't be read: %v", err)
	}
	for i := range c.pods {
		pod := &c.pods[i]
		if pod.Namespace != r.PathValue("namespace") || pod.Name != r.PathValue("name") {
			continue
		}
		if options := eviction.DeleteOptions; options == nil || options.Preconditions == nil || *options.Preconditions.UID != pod.UID {
			conflict(w, "pods", pod.Name, "the UID in the precondition does not match")
			return
		}
		if c.eviction != nil {
			if refused := c.eviction(pod); refused != nil {
				status(w, refused)
				return
			}
		}
		now := metav1.Now()
		pod.DeletionTimestamp = &now
		w.WriteHeader(http.StatusCreated)
		answer(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
		return
	}
	notFound(w, "pods", r.PathValue("name"))
}

// fakeServers are API servers of one cluster, in front of which a test may put a fault.
type fakeServers struct {
	authority *authority
	addresses []string
}

// fault sees a request before the API server does, and says whether it has dealt with it. next serves it.
type fault func(w http.ResponseWriter, r *http.Request, next http.Handler) bool

// serve starts one API server for each fault; nil is one that works.
func serve(t *testing.T, cluster *fakeCluster, faults ...fault) *fakeServers {
	t.Helper()
	servers := &fakeServers{authority: newAuthority(t)}
	clients := x509.NewCertPool()
	clients.AddCert(servers.authority.certificate)
	for _, fault := range faults {
		next := cluster.handler()
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if fault == nil || !fault(w, r, next) {
				next.ServeHTTP(w, r)
			}
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.TLS = &tls.Config{
			Certificates: []tls.Certificate{servers.authority.issue(t, x509.ExtKeyUsageServerAuth)},
			ClientCAs:    clients, ClientAuth: tls.RequireAndVerifyClientCert,
		}
		server.StartTLS()
		t.Cleanup(server.Close)
		servers.addresses = append(servers.addresses, server.Listener.Addr().String())
	}
	return servers
}

// client makes a client of these servers, which waits a minute for each call unless said otherwise.
func (s *fakeServers) client(t *testing.T, change ...func(*Options)) *Client {
	t.Helper()
	certificate := s.authority.issue(t, x509.ExtKeyUsageClientAuth)
	options := Options{Servers: s.addresses, CA: s.authority.pem, Timeout: time.Minute,
		Certificate: func() (tls.Certificate, error) { return certificate, nil }}
	for _, one := range change {
		one(&options)
	}
	client, err := New(options)
	require.NoError(t, err)
	return client
}

// one starts one API server that works and gives a client of it.
func one(t *testing.T, cluster *fakeCluster) *Client {
	t.Helper()
	return serve(t, cluster, nil).client(t)
}

// closedAddress is an address at which nothing listens, not the servers of another test either.
func closedAddress(t *testing.T) string {
	t.Helper()
	port, err := keptport.Keep()
	require.NoError(t, err)
	t.Cleanup(func() { runtime.KeepAlive(port) })
	return port.Address
}

// hangUp ends the connection of a request without an answer.
func hangUp() { panic(http.ErrAbortHandler) }

// lost serves the request and loses the answer.
func lost(r *http.Request, next http.Handler) {
	next.ServeHTTP(httptest.NewRecorder(), r)
	hangUp()
}
