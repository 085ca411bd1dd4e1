//go:build !linux

package keptport

import (
	"fmt"
	"net"
)

// Keep finds a free port of 127.0.0.1. Elsewhere than on Linux a port that is kept can't be listened on.
func Keep() (*Port, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("finding a free port: %w", err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return nil, fmt.Errorf("finding a free port: %w", err)
	}
	return &Port{Address: address}, nil
}
