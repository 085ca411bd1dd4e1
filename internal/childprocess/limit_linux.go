package childprocess

import "golang.org/x/sys/unix"

// dataLimit is how much memory of its own a child may take, in bytes, mapped files aside. It takes some 40 MiB; a file that lies about a
// length must not take the machine's.
const dataLimit = 512 << 20

func limitMemory() {
	// Where it can't be set the child is as safe as the machine's memory is large.
	_ = unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: dataLimit, Max: dataLimit})
}
