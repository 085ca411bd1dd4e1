package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// socketName is the unix socket in DIR through which `talossim ctl` speaks to `talossim up`.
const socketName = "ctl.sock"

// switchboard is what can be done to a machine from outside, as with its power button and its cable.
type switchboard interface {
	// Do does an action to a machine; delay is that of "slow".
	Do(ctx context.Context, machine, action string, delay time.Duration) error
}

// control serves a switchboard on the socket in dir until the context ends. Only this user may reach it.
func control(ctx context.Context, dir string, board switchboard) (stop func(), err error) {
	path := filepath.Join(dir, socketName)

	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close() //nolint:errcheck,gosec // it was only to see

		return nil, fmt.Errorf("another talossim runs on %s", dir)
	}

	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("removing the socket of a talossim that is gone: %w", err)
	}

	old := syscall.Umask(0o077)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)

	syscall.Umask(old)

	if err != nil {
		return nil, fmt.Errorf("listening on %s (a socket's path may be about 100 characters long): %w", path, err)
	}

	mux := http.NewServeMux()
	mux.HandleFunc("POST /machines/{machine}/{action}", func(w http.ResponseWriter, r *http.Request) {
		delay, err := time.ParseDuration(r.URL.Query().Get("delay"))
		if err != nil {
			delay = 0
		}

		if err := board.Do(r.Context(), r.PathValue("machine"), r.PathValue("action"), delay); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)

			return
		}

		w.WriteHeader(http.StatusNoContent)
	})

	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}

	go server.Serve(listener) //nolint:errcheck // ends with Close

	return func() { server.Close() }, nil //nolint:errcheck // the process ends
}

// ask asks the talossim that runs on dir to do something to a machine.
func ask(ctx context.Context, dir, machine, action string, delay time.Duration) error {
	path := filepath.Join(dir, socketName)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}

	target := "http://talossim/machines/" + url.PathEscape(machine) + "/" + url.PathEscape(action) + "?delay=" + url.QueryEscape(delay.String())

	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return fmt.Errorf("asking for %s of %s: %w", action, machine, err)
	}

	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("no talossim answers on %s; start one with talossim up --dir %s: %w", path, dir, err)
	}

	defer resp.Body.Close() //nolint:errcheck // only read from

	if resp.StatusCode == http.StatusNoContent {
		return nil
	}

	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return fmt.Errorf("reading the answer about %s: %w", machine, err)
	}

	return errors.New(string(text[:max(0, len(text)-1)]))
}
