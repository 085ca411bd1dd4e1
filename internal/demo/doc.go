// Command demo is what `make demo` runs: it starts simulated Talos nodes in maintenance mode, makes a Git repository with
// the commands a person would use, starts the agent, and watches a cluster come up, change, and mend itself. Each part is
// checked on the nodes, not in the agent's own words. It ends by itself with exit 0, or non-zero saying which part failed.
package main
