package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
)

// maxBody is the most that a caller may send, in bytes (Kubernetes: staging/src/k8s.io/apiserver/pkg/server/config.go).
const maxBody = 3 << 20

// readyTimeout is how long etcd may take to answer before the server isn't ready
// (Kubernetes: staging/src/k8s.io/apiserver/pkg/storage/storagebackend/config.go).
const readyTimeout = 2 * time.Second

// ServeHTTP answers one call.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, err := s.authenticate(r)
	if err != nil {
		fail(w, err)
		return
	}
	switch path := strings.TrimRight(r.URL.Path, "/"); path {
	case "/livez":
		text(w, http.StatusOK, "ok")
	case "/readyz", "/healthz":
		s.serveReady(w, r)
	case "/version":
		s.serveVersion(w)
	default:
		if s.serveDiscovery(w, path) {
			return
		}
		s.serveResource(w, r, who)
	}
}

func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if _, _, err := s.store.get(ctx, "health"); err != nil {
		text(w, http.StatusInternalServerError, "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n")
		return
	}
	text(w, http.StatusOK, "ok")
}

func (s *Server) serveVersion(w http.ResponseWriter) {
	info := version.Info{GitVersion: s.cfg.Version, GitTreeState: "clean", Platform: "linux/amd64"}
	if parts := strings.SplitN(strings.TrimPrefix(s.cfg.Version, "v"), ".", 3); len(parts) == 3 {
		info.Major, info.Minor = parts[0], parts[1]
	}
	respond(w, http.StatusOK, info)
}

func (s *Server) serveResource(w http.ResponseWriter, r *http.Request, who caller) {
	req := s.parse(r)
	if req == nil {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	if err := who.authorize(req); err != nil {
		fail(w, err)
		return
	}
	if req.verb == "watch" {
		s.serveWatch(w, r, req)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer cancel()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		fail(w, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", maxBody)))
		return
	}
	answer, code, err := s.do(ctx, r, req, body)
	if err != nil {
		s.cfg.Log.Debug("the Kubernetes API refuses", "call", req.String(), "caller", who.name, "err", err)
		fail(w, err)
		return
	}
	respond(w, code, answer)
}

// do carries out a call that isn't a watch.
func (s *Server) do(ctx context.Context, r *http.Request, req *request, body []byte) (any, int, error) {
	switch {
	case req.part == "eviction" && req.verb == "create":
		answer, err := s.evict(ctx, req, body)
		return answer, http.StatusCreated, err
	case req.part == "eviction" || req.part != "" && (req.verb == "create" || req.verb == "delete"), req.name != "" && req.verb == "create":
		return nil, 0, apierrors.NewMethodNotSupported(req.resource.groupResource(), req.verb)
	}
	dry := r.URL.Query().Get("dryRun") == metav1.DryRunAll
	switch req.verb {
	case "get":
		o, err := s.get(ctx, req)
		return o, http.StatusOK, err
	case "list":
		list, err := s.list(ctx, r, req)
		return list, http.StatusOK, err
	case "create":
		o, err := s.create(ctx, req, body, dry)
		return o, http.StatusCreated, err
	case "update":
		o, err := s.update(ctx, req, body, dry)
		return o, http.StatusOK, err
	case "patch":
		o, err := s.patch(ctx, req, r.Header.Get("Content-Type"), body, dry)
		return o, http.StatusOK, err
	case "delete":
		opts, err := s.deleteOptions(r, body)
		if err != nil {
			return nil, 0, err
		}
		answer, err := s.remove(ctx, req, opts)
		return answer, http.StatusOK, err
	}
	return nil, 0, apierrors.NewMethodNotSupported(req.resource.groupResource(), req.verb)
}

func text(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // nobody is there any more
}

func respond(w http.ResponseWriter, code int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(data, '\n')) // nobody is there any more
}

// statusOf is what the API says about an error.
func statusOf(err error) metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
	}
	return status
}

func fail(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	respond(w, int(status.Code), status)
}
