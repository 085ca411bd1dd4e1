package childprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// deed is what a child of these tests does.
type deed struct{ What string }

func TestMain(m *testing.M) {
	RunIfChild("deed", func(order []byte) (any, error) {
		var d deed
		if err := json.Unmarshal(order, &d); err != nil {
			return nil, err
		}
		return d.do()
	})
	os.Exit(m.Run())
}

func (d deed) do() (any, error) {
	switch d.What {
	case "environment":
		return os.Environ(), nil
	case "fail":
		return nil, errors.New("it is no good")
	case "panic":
		panic("a page lies")
	case "crash":
		done := make(chan struct{})
		go func() { panic("a page lies beside") }()
		<-done
	case "missing":
		_, err := os.ReadFile("/nowhere/at/all")
		return nil, err
	case "full":
		return nil, fmt.Errorf("writing: %w", syscall.ENOSPC)
	case "wait":
		fmt.Fprintln(os.Stderr, "waits")
		select {}
	case "greedy":
		var all [][]byte
		for {
			all = append(all, make([]byte, 16<<20))
			for n := 0; n < len(all[len(all)-1]); n += 4096 {
				all[len(all)-1][n] = 1
			}
		}
	case "chatty":
		_, _ = io.Copy(os.Stderr, io.LimitReader(endless{}, 3*outputLimit))
		return "said", nil
	}
	return strings.ToUpper(d.What), nil
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestAChildAnswers(t *testing.T) {
	var answer string
	require.NoError(t, Run(t.Context(), "deed", deed{"work"}, &answer))
	require.Equal(t, "WORK", answer)
	require.NoError(t, Run(t.Context(), "deed", deed{"chatty"}, &answer))
	require.Equal(t, "said", answer)
}

func TestAChildIsGivenNoCredentials(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary")
	var environment []string
	require.NoError(t, Run(t.Context(), "deed", deed{"environment"}, &environment))
	require.NotContains(t, strings.Join(environment, "\n"), "canary")
}

func TestABadEndIsTheOrdersFaultOrTheMachines(t *testing.T) {
	for what, test := range map[string]struct {
		says   string
		failed bool
	}{
		"fail":    {"it is no good", true},
		"panic":   {"it broke off: a page lies", true},
		"crash":   {"the process that opened it broke down (panic: a page lies beside", true},
		"missing": {"could not be done", false},
		"full":    {"make room in the spool folder", false},
	} {
		t.Run(what, func(t *testing.T) {
			err := Run(t.Context(), "deed", deed{what}, new(string))
			require.ErrorContains(t, err, test.says)
			var failed *FailedError
			require.Equal(t, test.failed, errors.As(err, &failed))
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Run(ctx, "deed", deed{"wait"}, new(string)), context.Canceled)
}
