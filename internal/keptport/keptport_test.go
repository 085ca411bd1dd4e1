package keptport

import (
	"errors"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

func TestAKeptPortRefusesUntilSomeoneListensAndAgainAfterwards(t *testing.T) {
	port, err := Keep()
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(port)
	for range 3 {
		if conn, err := net.Dial("tcp", port.Address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("dial: %v, %v", conn, err)
		}
		listener, err := net.Listen("tcp", port.Address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", port.Address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Close(), listener.Close() // in either order they leave the port to the next listener
	}
}

func TestNobodyElseGetsAKeptPort(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux keeps a port that can be listened on")
	}
	port, err := Keep()
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.KeepAlive(port)
	for range 500 { // taken in turn, they would come around to it
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		if strings.HasSuffix(listener.Addr().String(), port.Address) {
			t.Fatal("it was given away")
		}
	}
}
