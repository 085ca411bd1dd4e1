package kubeapi

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serveDiscovery answers what a client asks to learn which kinds there are, and says whether the path is such a question.
func (s *Server) serveDiscovery(w http.ResponseWriter, path string) bool {
	switch path {
	case "/api":
		respond(w, http.StatusOK, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
		return true
	case "/apis":
		respond(w, http.StatusOK, s.groups())
		return true
	}
	for _, group := range s.groups().Groups {
		if path == "/apis/"+group.Name {
			group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			respond(w, http.StatusOK, group)
			return true
		}
	}
	for _, res := range s.resources {
		version := res.groupVersion().String()
		if res.group == "" && path == "/api/"+version || res.group != "" && path == "/apis/"+version {
			respond(w, http.StatusOK, s.kinds(version))
			return true
		}
	}
	return false
}

func (s *Server) groups() metav1.APIGroupList {
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	seen := map[string]bool{"": true}
	for _, res := range s.resources {
		if seen[res.group] {
			continue
		}
		seen[res.group] = true
		version := metav1.GroupVersionForDiscovery{GroupVersion: res.groupVersion().String(), Version: res.version}
		list.Groups = append(list.Groups, metav1.APIGroup{Name: res.group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version})
	}
	return list
}

func (s *Server) kinds(groupVersion string) metav1.APIResourceList {
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: groupVersion}
	for _, res := range s.resources {
		if res.groupVersion().String() != groupVersion {
			continue
		}
		kind := metav1.APIResource{
			Name: res.plural, SingularName: res.singular(), Namespaced: res.namespaced, Kind: res.kind, ShortNames: res.short,
			Verbs: metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"},
		}
		list.APIResources = append(list.APIResources, kind)
		if res.status {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: res.plural + "/status", Namespaced: res.namespaced, Kind: res.kind, Verbs: metav1.Verbs{"get", "patch", "update"},
			})
		}
		if res.plural == "pods" {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: "pods/eviction", Namespaced: true, Group: "policy", Version: "v1", Kind: "Eviction", Verbs: metav1.Verbs{"create"},
			})
		}
	}
	return list
}
