// Package diskspace says how much room a folder's file system has.
package diskspace
