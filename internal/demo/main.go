package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Exit codes: 0 every part was seen to work, 1 a part failed (and is named), 2 the demo could not be started.
func main() {
	var opts options
	flag.StringVar(&opts.binaries, "bin", "bin", "folder that holds ichor and talossim")
	flag.StringVar(&opts.state, "state", "file", "where the agent keeps its state: file, or s3 (a real S3 server over a folder)")
	flag.BoolVar(&opts.keep, "keep", false, "stay up at the end, and print the paths and addresses")
	flag.StringVar(&opts.first, "first", "127.0.10.1", "address of the first simulated node")
	flag.IntVar(&opts.timeScale, "time-scale", 10, "how many times faster than Talos the nodes wait")
	flag.Parse()
	// What is set for another fleet, a demo of before among them, is not meant for this one.
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "ICHOR_") {
			_ = os.Unsetenv(name)
		}
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, opts); err != nil {
		if errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "\ndemo: stopped")
			os.Exit(1)
		}
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		os.Exit(1)
	}
}

type options struct {
	binaries  string
	state     string
	keep      bool
	first     string
	timeScale int
}
