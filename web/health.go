package web

import (
	"fmt"
	"net/http"
	"strings"
)

// live answers as long as the process does.
func (s *Server) live(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintln(w, "ok")
}

// ready says whether the agent can do its work: Git and the state answer, and who holds each lease is known. An agent that
// stands by is ready. The sentences name servers, so they are for who may read the rest; all others learn which part it is.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	_, report := s.reported()
	var wrong []string
	for _, c := range s.checks(report) {
		switch {
		case c.problem == "":
		case s.access.authorised(r):
			wrong = append(wrong, c.name+": "+s.config.Scrubber.Text(c.problem))
		default:
			wrong = append(wrong, c.name+": not ready")
		}
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if len(wrong) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, strings.Join(wrong, "\n"))
		return
	}
	fmt.Fprintln(w, "ok")
}
