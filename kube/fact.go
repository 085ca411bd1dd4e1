package kube

import "ichor.maesh.dev/internal/fact"

// Fact is yes, no or unknown. The zero value is unknown.
type Fact = fact.Fact

// The three values of a Fact.
const (
	Unknown = fact.Unknown
	No      = fact.No
	Yes     = fact.Yes
)
