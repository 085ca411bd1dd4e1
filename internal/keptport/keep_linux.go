package keptport

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// Keep takes a free port of 127.0.0.1.
func Keep() (*Port, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("keeping a port: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "kept port")
	// Listeners have the same option: with it a bound socket that doesn't listen is no obstacle to them.
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return nil, fmt.Errorf("keeping a port: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, fmt.Errorf("keeping a port: %w", err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		return nil, fmt.Errorf("keeping a port: %w", err)
	}
	bound, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		return nil, fmt.Errorf("keeping a port: it is bound to %T", name)
	}
	return &Port{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.Port)), socket: socket}, nil
}
