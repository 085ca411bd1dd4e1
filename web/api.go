package web

import (
	"bytes"
	"io"
	"net/http"

	"ichor.maesh.dev/reconcile"
)

// apiStatus is /api/v1/status: what `ichor status -o json` prints.
func (s *Server) apiStatus(w http.ResponseWriter, r *http.Request) {
	_, _, status := s.read(r.Context())
	s.answer(w, r, status)
}

func (s *Server) apiAgent(w http.ResponseWriter, r *http.Request) {
	from, report := s.reported()
	s.answer(w, r, s.agentStatus(from, report))
}

func (s *Server) apiCluster(w http.ResponseWriter, r *http.Request) {
	if cluster := s.named(w, r); cluster != nil {
		s.answer(w, r, cluster)
	}
}

func (s *Server) apiMachine(w http.ResponseWriter, r *http.Request) {
	cluster := s.named(w, r)
	if cluster == nil {
		return
	}
	name := r.PathValue("machine")
	for _, machine := range cluster.Machines {
		if machine.Name == name {
			s.answer(w, r, machine)
			return
		}
	}
	refuse(w, r, http.StatusNotFound, "no machine "+brief(name)+" is known in "+cluster.Name)
}

// named is the cluster that a path names; where there is none, that is answered.
func (s *Server) named(w http.ResponseWriter, r *http.Request) *reconcile.ClusterStatus {
	_, _, status := s.read(r.Context())
	cluster := find(status, r.PathValue("cluster"))
	if cluster == nil {
		refuse(w, r, http.StatusNotFound, "no cluster "+brief(r.PathValue("cluster"))+" is known")
	}
	return cluster
}

// reported is the agent's report, or nil while there is no agent.
func (s *Server) reported() (*sources, *reconcile.Report) {
	from := s.sources.Load()
	if from == nil {
		return nil, nil
	}
	report := from.agent.Report()
	return from, &report
}

// answer writes JSON, without any secret.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, part any) {
	var text bytes.Buffer
	if err := reconcile.WriteJSON(&text, part); err != nil {
		s.config.Log.Error("a status can't be written as JSON", "error", err)
		refuse(w, r, http.StatusInternalServerError, "the agent failed to answer; its log says more")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, s.config.Scrubber.String(text.String()))
}
