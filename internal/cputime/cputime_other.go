//go:build !unix

// Package cputime measures what benchmarks take of the processors' time, where the system says it.
package cputime

import "testing"

// Unit is that of the figure which Of reports.
const Unit = "cpu-ms/op"

// Of measures nothing here.
func Of(*testing.B) (report func()) { return func() {} }
