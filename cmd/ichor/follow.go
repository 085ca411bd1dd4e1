package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/operation"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/reconcile/runop"
	"ichor.maesh.dev/statefile"
)

const (
	// askAgent bounds one question to an agent.
	askAgent = 15 * time.Second
	// maxAnswer bounds an agent's answer, in bytes.
	maxAnswer = 32 << 20
)

// followFlags say how an operation is followed.
type followFlags struct {
	follow           bool
	agent, tokenFile string
}

func (f *followFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false, "show each step until the operation is over or paused; ends with 1 where it didn't complete")
	flags.StringVar(&f.agent, "agent", "", "follow over a running agent instead of the state, as in http://127.0.0.1:4246")
	flags.StringVar(&f.tokenFile, "agent-token-file", "", "file with the token that opens the agent's page")
}

// look says how a cluster stands: by an agent where one is named, else by the state.
func (r *runOpRun) look() runop.Look {
	cluster := r.target.Cluster
	if r.f.follow.agent != "" {
		return r.f.follow.askAgent(cluster.Name())
	}
	return lookInto(r.store, cluster.Name(), func(string) (*statefile.Sealer, error) { return r.f.state.sealerFor(r.desk.fleet, cluster.Object) }, r.scrubber.Error)
}

// lookInto reads how a cluster stands from a state.
func lookInto(store statefile.Store, cluster string, sealer func(string) (*statefile.Sealer, error), scrubbed func(error) error) runop.Look {
	reader := reconcile.StatusReader{Store: store, Sealer: sealer}
	return func(ctx context.Context) (*reconcile.ClusterStatus, error) {
		status, err := reader.Read(ctx, []string{cluster})
		if errors.Is(err, statefile.ErrNotFound) {
			return &reconcile.ClusterStatus{Name: cluster}, nil
		}
		if err != nil {
			return nil, scrubbed(err)
		}
		return &status.Clusters[0], nil
	}
}

// askAgent reads how a cluster stands from a running agent.
func (f *followFlags) askAgent(cluster string) runop.Look {
	client := &http.Client{Timeout: askAgent, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return func(ctx context.Context) (*reconcile.ClusterStatus, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(f.agent, "/")+"/api/v1/clusters/"+url.PathEscape(cluster), nil)
		if err != nil || request.URL.Host == "" {
			return nil, fmt.Errorf("--agent is no URL; give it as in http://127.0.0.1:4246")
		}
		if f.tokenFile != "" {
			token, err := os.ReadFile(f.tokenFile)
			if err != nil {
				return nil, fmt.Errorf("--agent-token-file: %w", err)
			}
			first, _, _ := strings.Cut(strings.TrimSpace(string(token)), "\n")
			request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(first))
		}
		answer, err := client.Do(request)
		if err != nil {
			return nil, fmt.Errorf("the agent at %s doesn't answer: %w", request.URL.Host, errors.Unwrap(err))
		}
		defer answer.Body.Close()
		if answer.StatusCode == http.StatusNotFound {
			return &reconcile.ClusterStatus{Name: cluster}, nil
		}
		if answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("the agent at %s answers %s", request.URL.Host, answer.Status)
		}
		var status reconcile.ClusterStatus
		if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&status); err != nil {
			return nil, fmt.Errorf("the agent at %s gives no status: %w", request.URL.Host, err)
		}
		return &status, nil
	}
}

// followOperation shows how an operation goes on. It ends with 0 where it completed (or rests, its machine being off), with 1 where
// it didn't, and with 2 where nobody waited for the end.
func (a *app) followOperation(ctx context.Context, f *followFlags, look runop.Look, cluster, name, digest string) error {
	follower := runop.Follower{Look: look, Clock: a.clock, Say: func(at time.Time, text string) {
		fmt.Fprintf(a.out, "%s  %s\n", at.UTC().Format(time.RFC3339), a.clean(text))
	}}
	op, err := follower.Follow(ctx, digest)
	if err != nil {
		return cannot(fmt.Errorf("following %s was stopped; the operation goes on", name), "'ichor op show "+name+" --follow' follows it again")
	}
	switch statefile.OperationPhase(op.Phase) {
	case statefile.OperationCompleted, statefile.OperationShutDown:
		return nil
	case statefile.OperationPaused:
		fmt.Fprintln(a.err, "to go on with it, or to end it:")
		for _, command := range runop.Next(cluster, *op) {
			fmt.Fprintf(a.err, "  %s\n", a.clean(command))
		}
	case statefile.OperationRefused:
		if way := wayOut(operation.Reason(op.FailureReason)); way != "" {
			fmt.Fprintf(a.err, "  → %s\n", way)
		}
	}
	return errNo
}
