package main

import (
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// ready is a command for scripts: `ready LIMIT COMMAND...` runs a command until it ends with 0.
func ready(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: ready LIMIT COMMAND...")
	}
	limit, err := time.ParseDuration(args[0])
	ts.Check(err)
	look := time.NewTicker(300 * time.Millisecond)
	defer look.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for {
		if err := ts.Exec(args[1], args[2:]...); err == nil {
			return
		}
		select {
		case <-look.C:
		case <-end.C:
			ts.Fatalf("%v did not end with 0 within %s", args[1:], limit)
		}
	}
}
