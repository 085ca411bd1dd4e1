package web

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"reflect"
	"strconv"

	"ichor.maesh.dev/reconcile"
)

//go:embed page.html style.css icon.svg
var files embed.FS

// refreshSeconds is how often the page is loaded anew by the browser. `?refresh=off` turns that off, for who reads it with a
// screen reader or wants to select text.
const refreshSeconds = 15

var templates = template.Must(template.New("page.html").ParseFS(files, "page.html"))

// asset serves one of the files.
func asset(name, kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		data, err := files.ReadFile(name)
		if err != nil {
			panic(err) // it is embedded
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(data)
	}
}

// overview is the page of everything.
func (s *Server) overview(w http.ResponseWriter, r *http.Request) {
	from, report, status := s.read(r.Context())
	s.render(w, r, "", s.agentStatus(from, report), status)
}

// clusterPage is the page of one cluster.
func (s *Server) clusterPage(w http.ResponseWriter, r *http.Request) {
	from, report, status := s.read(r.Context())
	one := find(status, r.PathValue("cluster"))
	if one == nil {
		refuse(w, r, http.StatusNotFound, "no cluster "+brief(r.PathValue("cluster"))+" is known")
		return
	}
	s.render(w, r, one.Name, s.agentStatus(from, report), &reconcile.Status{Clusters: []reconcile.ClusterStatus{*one}})
}

// render makes the page: of everything, or of only one cluster.
func (s *Server) render(w http.ResponseWriter, r *http.Request, only string, agent AgentStatus, status *reconcile.Status) {
	shownAgent, shownStatus, err := s.shown(agent, status)
	if err != nil {
		panic(err)
	}
	refresh := refreshSeconds
	if r.URL.Query().Get("refresh") == "off" {
		refresh = 0
	}
	var text bytes.Buffer
	if err := templates.Execute(&text, newPage(s.config.Clock.Now(), only, refresh, shownAgent, shownStatus)); err != nil {
		panic(fmt.Errorf("making the page: %w", err))
	}
	if refresh > 0 {
		w.Header().Set("Refresh", strconv.Itoa(refresh))
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes())
}

// shown copies what is to be shown, without secrets and control characters in any text.
func (s *Server) shown(agent AgentStatus, status *reconcile.Status) (AgentStatus, *reconcile.Status, error) {
	var both struct {
		Agent  AgentStatus
		Status reconcile.Status
	}
	both.Agent, both.Status = agent, *status
	text, err := json.Marshal(both)
	if err != nil {
		return agent, nil, fmt.Errorf("copying the status: %w", err)
	}
	both.Agent, both.Status = AgentStatus{}, reconcile.Status{}
	if err := json.Unmarshal(text, &both); err != nil {
		return agent, nil, fmt.Errorf("copying the status: %w", err)
	}
	eachText(reflect.ValueOf(&both).Elem(), s.config.Scrubber.Text)
	return both.Agent, &both.Status, nil
}

// eachText changes every string that a value holds.
func eachText(v reflect.Value, change func(string) string) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(change(v.String()))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			eachText(v.Elem(), change)
		}
	case reflect.Struct:
		for n := range v.NumField() {
			eachText(v.Field(n), change)
		}
	case reflect.Slice:
		for n := range v.Len() {
			eachText(v.Index(n), change)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := v.MapIndex(key)
			v.SetMapIndex(key, reflect.Value{})
			v.SetMapIndex(changed(key, change), changed(value, change))
		}
	}
}

// changed is a copy, since what a map holds can't be changed where it stands.
func changed(v reflect.Value, change func(string) string) reflect.Value {
	held := reflect.New(v.Type()).Elem()
	held.Set(v)
	eachText(held, change)
	return held
}
