package kube

// Fact is yes, no or unknown. The zero value is unknown.
type Fact int

// The three values of a Fact.
const (
	Unknown Fact = iota
	No
	Yes
)

func (f Fact) String() string {
	switch f {
	case Yes:
		return "yes"
	case No:
		return "no"
	}
	return "unknown"
}
