// Package fact has the answers to what is asked of a machine or of Kubernetes: yes, no, and that nobody knows.
package fact

// Fact is yes, no or unknown. The zero value is unknown, and unknown never permits a destructive step.
type Fact int

// The three values of a Fact.
const (
	Unknown Fact = iota
	No
	Yes
)

func (f Fact) String() string { return f.said("yes", "no") }

// Presence says of data what a fact says of it.
func (f Fact) Presence() string { return f.said("present", "absent") }

func (f Fact) said(yes, no string) string {
	switch f {
	case Yes:
		return yes
	case No:
		return no
	}
	return "unknown"
}
