package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/term"
)

// askPassphrase asks on the terminal itself, whatever standard input and output are, and shows nothing of the answer.
func (a *app) askPassphrase(ctx context.Context, prompt string) ([]byte, error) {
	in, out, err := openTerminal()
	if err != nil {
		return nil, errors.New("there is no terminal to ask on; add the key to the SSH agent with ssh-add, and give its public key with --key")
	}
	defer in.Close()
	defer out.Close()
	before, err := term.GetState(int(in.Fd()))
	if err != nil {
		return nil, fmt.Errorf("the terminal: %w", err)
	}
	fmt.Fprint(out, prompt)
	type answer struct {
		text []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := term.ReadPassword(int(in.Fd()))
		answers <- answer{text, err}
	}()
	select {
	case <-ctx.Done():
		_ = term.Restore(int(in.Fd()), before)
		fmt.Fprintln(out)
		return nil, ctx.Err()
	case got := <-answers:
		fmt.Fprintln(out)
		return got.text, got.err
	}
}

// openTerminal opens the terminal that the program was started from, for reading and for writing.
func openTerminal() (in, out *os.File, err error) {
	read, write := "/dev/tty", "/dev/tty"
	if runtime.GOOS == "windows" {
		read, write = "CONIN$", "CONOUT$"
	}
	if in, err = os.OpenFile(read, os.O_RDWR, 0); err != nil {
		return nil, nil, err
	}
	if out, err = os.OpenFile(write, os.O_RDWR, 0); err != nil {
		in.Close()
		return nil, nil, err
	}
	return in, out, nil
}
