// Package filelock keeps two processes out of one folder: a lock on an open file that ends with the process, however it ends.
package filelock
