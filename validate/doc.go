// Package validate says what is wrong with a fleet, and with the step from one fleet to the next.
//
// Every check is a rule written in CEL. The built-in rules stand in rules.yaml, in the form of the kind Policy, so that a
// user can read what refuses a change; Engine.Explain prints one. New compiles and type-checks them once. Check evaluates
// them over two fleets, what was and what is proposed, and gives findings: each with the rule, the place, the cluster it
// belongs to and a sentence that names the way out. It does no I/O but for reading the files that the fleet refers to.
//
// Objects are found by kind, cluster and name, never by their file: a moved file changes nothing. Without an older fleet
// only the rules that one revision can answer are evaluated. A rule that fails while it is evaluated, or costs more than its
// limit, is a finding of its own and never a pass.
//
// Stops sorts findings by the clusters they stop, so that one cluster's mistake leaves the others alone. Propose makes the
// fleet that a merge would give. docs/rules.md lists the rules and their environment.
package validate
