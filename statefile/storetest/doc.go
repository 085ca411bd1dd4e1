// Package storetest helps to test what uses a statefile.Store: a store in memory, one that fails as real ones do, and the suite of
// tests that every store must pass.
package storetest
