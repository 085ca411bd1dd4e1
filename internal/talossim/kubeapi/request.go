package kubeapi

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// request is what a call asks for.
type request struct {
	resource              *resource
	namespace, name, part string // part is the subresource
	verb                  string
}

// selectors say which objects of a kind a list or a watch is about.
type selectors struct {
	labels labels.Selector
	fields fields.Selector
}

func labelSet(o object) labels.Set { return labels.Set(o.GetLabels()) }

// parse reads a call's path and method; a path that nothing is served at is nil.
func (s *Server) parse(r *http.Request) *request {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var group, version string
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		group, version, parts = parts[1], parts[2], parts[3:]
	default:
		return nil
	}
	req := &request{}
	if parts[0] == "namespaces" && len(parts) > 2 {
		req.namespace, parts = parts[1], parts[2:]
	}
	for _, res := range s.resources {
		if res.group == group && res.version == version && res.plural == parts[0] {
			req.resource = res
		}
	}
	if req.resource == nil || len(parts) > 3 {
		return nil
	}
	if len(parts) > 1 {
		req.name = parts[1]
	}
	if len(parts) > 2 {
		req.part = parts[2]
	}
	if !req.valid() {
		return nil
	}
	req.verb = verb(r, req.name)
	return req
}

// valid says whether there is such a path: objects in a namespace are written there only, and there are two subresources.
func (r *request) valid() bool {
	if !r.resource.namespaced && r.namespace != "" || r.resource.namespaced && r.name != "" && r.namespace == "" {
		return false
	}
	switch r.part {
	case "":
		return true
	case "status":
		return r.resource.status
	case "eviction":
		return r.resource.plural == "pods"
	}
	return false
}

func verb(r *http.Request, name string) string {
	switch r.Method {
	case http.MethodGet:
		if watching := r.URL.Query().Get("watch"); watching == "true" || watching == "1" {
			return "watch"
		}
		if name == "" {
			return "list"
		}
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if name == "" {
			return "deletecollection"
		}
		return "delete"
	}
	return strings.ToLower(r.Method)
}

func (r *request) String() string {
	text := fmt.Sprintf("%s %s", r.verb, r.resource.plural)
	if r.part != "" {
		text += "/" + r.part
	}
	return strings.TrimSpace(text + " " + r.name)
}

// listOptions reads the query of a list or a watch.
func listOptions(r *http.Request, res *resource, name string) (metav1.ListOptions, selectors, error) {
	var opts metav1.ListOptions
	query := r.URL.Query()
	if err := metav1.Convert_url_Values_To_v1_ListOptions(&query, &opts, nil); err != nil {
		return opts, selectors{}, apierrors.NewBadRequest(err.Error())
	}
	var sel selectors
	var err error
	if sel.labels, err = labels.Parse(opts.LabelSelector); err != nil {
		return opts, sel, apierrors.NewBadRequest(fmt.Sprintf("unable to parse requirement: %s", err))
	}
	if sel.fields, err = fields.ParseSelector(opts.FieldSelector); err != nil {
		return opts, sel, apierrors.NewBadRequest(err.Error())
	}
	for _, requirement := range sel.fields.Requirements() {
		if !res.knowsField(requirement.Field) {
			return opts, sel, apierrors.NewBadRequest(fmt.Sprintf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", requirement.Field))
		}
	}
	if name != "" { // a watch of one object
		sel.fields = fields.AndSelectors(sel.fields, fields.OneTermEqualSelector("metadata.name", name))
	}
	return opts, sel, nil
}
