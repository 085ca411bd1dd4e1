package childprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// The environment of a child: which work it is to do, and the order as JSON.
const (
	workEnv  = "ICHOR_CHILD_WORK"
	orderEnv = "ICHOR_CHILD_ORDER"
)

// Work does what an order asks for. A panic of it counts as an error.
type Work func(order []byte) (answer any, err error)

// said is what a child writes to its standard output.
type said struct {
	Answer  json.RawMessage `json:"answer,omitempty"`
	Problem string          `json:"problem,omitempty"`
	// Machine says that the problem is not the order's fault: a file could not be made, read or written.
	Machine bool `json:"machine,omitempty"`
}

// RunIfChild does the work and ends the process if it was started for it; else it returns at once.
func RunIfChild(name string, work Work) {
	if os.Getenv(workEnv) == name {
		os.Exit(run(work, []byte(os.Getenv(orderEnv)), os.Stdout))
	}
}

func run(work Work, order []byte, out io.Writer) int {
	// The parent holds the other end of stdin: when it dies, however, this ends too.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	limitMemory()
	var answer said
	if err := attempt(work, order, &answer); err != nil {
		var file *fs.PathError
		answer.Problem, answer.Machine = err.Error(), errors.As(err, &file)
	}
	if err := json.NewEncoder(out).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func attempt(work Work, order []byte, into *said) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it broke off: %v", p)
		}
	}()
	answer, err := work(order)
	if err != nil {
		return err
	}
	into.Answer, err = json.Marshal(answer)
	return err
}
