// Package scaffold writes the files of a new fleet repository as a person would: with comments, in a settled order.
//
// It makes text of values, and decides nothing: what it gives is read back and checked by whoever writes it to disk.
package scaffold
