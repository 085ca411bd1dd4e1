//go:build !linux

package childprocess

func limitMemory() {}
