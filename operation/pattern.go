package operation

import "strings"

// matchesList says whether a value is matched by a list of patterns divided by commas, as OpenSSH does it: one that begins with
// "!" and matches decides against it, whatever else matches.
func matchesList(value, patterns string) bool {
	matched := false
	for _, pattern := range strings.Split(patterns, ",") {
		if against, ok := strings.CutPrefix(pattern, "!"); ok {
			if matches(value, against) {
				return false
			}
			continue
		}
		matched = matched || matches(value, pattern)
	}
	return matched
}

// matches says whether a pattern matches the whole of a value: "*" stands for anything, "?" for one byte. Its time grows with
// the product of the two lengths at most.
func matches(value, pattern string) bool {
	v, p := 0, 0
	star, resume := -1, 0 // the last "*" and where in value it gave up
	for v < len(value) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, resume = p, v
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == value[v]):
			p++
			v++
		case star >= 0:
			resume++
			p, v = star+1, resume
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
