package harness

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// TestMain lets this program play one of the servers, which are started by name.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		playServer(os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// playServer says what it was started as, and serves until its standard input ends, but for one that is "brief".
func playServer(args []string) {
	fmt.Println("started as", strings.Join(args, " "))
	switch args[0] {
	case "brief":
	case "wordy":
		for n := range 3 * tailLines {
			fmt.Fprintln(os.Stderr, n, strings.Repeat("x", 2*tailWidth))
		}
	default:
		_, _ = io.Copy(io.Discard, os.Stdin)
		fmt.Println("ended")
	}
}
