package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"ichor.maesh.dev/backup/drill"
	"ichor.maesh.dev/backup/revision"
)

func main() {
	drill.RunIfChild()
	revision.RunIfChild()
	// client-go writes to standard error what its callers are told as an error anyway, and what it writes passes no scrubber.
	klog.SetLogger(logr.Discard())
	os.Exit(run())
}

// run is main with a return value, so that tests can call the program as a function.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // what doesn't hear the first Ctrl-C is ended by the second
	app := &app{
		terminal: newTerminal(os.Stdin, os.Stdout, os.Stderr),
		clock:    clock.RealClock{},
		getenv:   os.Getenv,

		releaseSignals: stop,
	}
	return app.execute(ctx, os.Args[1:])
}
