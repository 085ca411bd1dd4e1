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

// Exit codes: 0 every part was seen to work, 1 a part failed (and is named), 2 its flags make no sense.
func main() {
	var opts options
	flag.StringVar(&opts.binaries, "bin", "bin", "folder that holds ichor and talossim")
	flag.StringVar(&opts.state, "state", "file", "where the agent keeps its state: file, or s3 (a real S3 server over a folder)")
	flag.BoolVar(&opts.keep, "keep", false, "stay up at the end, and print the paths and addresses")
	flag.StringVar(&opts.first, "first", "127.0.10.1", "address of the first simulated node")
	flag.IntVar(&opts.timeScale, "time-scale", 10, "how many times faster than Talos the nodes wait")
	flag.Parse()
	if err := opts.check(flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(2)
	}
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

// check refuses what would be another demo than the one that was asked for.
func (o options) check(rest []string) error {
	switch {
	case o.state != "file" && o.state != "s3":
		return fmt.Errorf("-state %s is not known; give file or s3", o.state)
	case o.timeScale < 1:
		return fmt.Errorf("-time-scale %d is not possible; give 1 or more", o.timeScale)
	case len(rest) > 0:
		return fmt.Errorf("%s is no flag", rest[0])
	}
	return nil
}
