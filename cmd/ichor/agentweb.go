package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/internal/scrub"
	"ichor.maesh.dev/reconcile"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/web"
)

// webFlags say where an agent serves its page, and to whom.
type webFlags struct {
	config web.Config
	listen *pflag.Flag
}

// noPage is what --listen is given where nothing is served.
const noPage = "none"

func (f *webFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.config.Address, "listen", "127.0.0.1:4246", "where the status page, the API, metrics and health are served; none turns them off")
	flags.BoolVar(&f.config.Public, "listen-public", false, "let everybody who can reach the address read all of it")
	flags.StringVar(&f.config.TokenFile, "token-file", "", "file with the tokens that open the page, one a line")
	flags.StringVar(&f.config.CertFile, "tls-cert", "", "certificate for https, in PEM")
	flags.StringVar(&f.config.KeyFile, "tls-key", "", "key of the certificate for https, in PEM")
	flags.StringVar(&f.config.ClientCAFile, "client-ca", "", "authority whose client certificates open the page, in PEM")
	flags.StringSliceVar(&f.config.Hosts, "host", nil, "further name under which the page is asked for (may be repeated)")
	flags.StringVar(&f.config.HookSecretFile, "hook-secret-file", "", "file with the secret of the Git webhook, /hooks/git; without it there is none")
	f.listen = flags.Lookup("listen")
}

// page is what is served beside an agent; its zero value serves nothing.
type page struct {
	server *web.Server
	stop   func()
}

// serve begins to serve. That the usual address is taken keeps no agent from working; that one which was asked for can't be
// had does.
func (f *webFlags) serve(ctx context.Context, clock clock.WithTicker, log *slog.Logger, scrubber *scrub.Scrubber) (*page, error) {
	p := &page{stop: func() {}}
	if f.config.Address == noPage {
		return p, nil
	}
	f.config.Version, f.config.Clock, f.config.Log, f.config.Scrubber = readVersion().Version, clock, log, scrubber
	server, err := web.Listen(f.config)
	if usual := new(net.OpError); errors.As(err, &usual) && !f.listen.Changed {
		log.Warn("no status page and no metrics: the usual address can't be had; give --listen another, or none", "problem", err)
		return p, nil
	}
	if err != nil {
		return nil, cannot(scrubber.Error(err), "")
	}
	log.Info("the status page is served", "url", server.URL())
	f.warn(server, log)
	// The page outlives ctx: while an agent stops, it says so.
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Run(serving); err != nil {
			log.Error("the status page is gone", "problem", err)
		}
	}()
	p.server = server
	p.stop = func() {
		cancel()
		<-ended
	}
	return p, nil
}

// warn says what whoever runs this should know of an address beyond this machine.
func (f *webFlags) warn(server *web.Server, log *slog.Logger) {
	switch {
	case server.Loopback():
	case f.config.TokenFile == "" && f.config.ClientCAFile == "":
		log.Warn("everybody who can reach the status page can read it (--listen-public)")
	case f.config.CertFile == "":
		log.Warn(fmt.Sprintf("the token of the status page travels in the clear to %s; give --tls-cert and --tls-key, or put something that does TLS before it",
			f.config.Address))
	}
}

func (p *page) waiting(why string) {
	if p.server != nil {
		p.server.Waiting(why)
	}
}

func (p *page) attach(agent *reconcile.Agent, store statefile.Store, source *gitsource.Source) {
	if p.server != nil {
		p.server.Attach(agent, store, source.Stats)
	}
}
