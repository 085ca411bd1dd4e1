// Package kubetest tests package kube against Kubernetes's own API server, controllers and scheduler: what a precondition
// does, when an eviction is refused, what a drain leaves, whose certificates are taken are Kubernetes's decisions, and are
// seen here as it makes them. Without the built servers (see test/kube/harness) these tests are skipped; `make test-kube` builds
// them and runs the tests.
package kubetest
