package schema

import (
	"fmt"
	"strings"

	"github.com/agnivade/levenshtein"
)

// DidYouMean gives `; did you mean "x"?` when one of the candidates is near the word, else nothing.
func DidYouMean(word string, candidates []string) string { return didYouMean(word, candidates) }

// didYouMean gives `; did you mean "x"?` when one of the candidates is near the word, else nothing.
func didYouMean(word string, candidates []string) string {
	if near := nearest(word, candidates); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// nearest gives the candidate that the word was probably meant to be: one that differs in case or in the marks between
// words only, or by an edit for every three letters. It gives none when two are equally near.
func nearest(word string, candidates []string) string {
	const longest = 64
	if word == "" || len(word) > longest {
		return ""
	}
	best, found, tied := len(plain(word))/3+1, "", false
	for _, candidate := range candidates {
		distance := levenshtein.ComputeDistance(plain(word), plain(candidate))
		switch {
		case distance > max(1, len(plain(candidate))/3):
		case distance < best:
			best, found, tied = distance, candidate, false
		case distance == best && found != "":
			tied = true
		}
	}
	if tied {
		return ""
	}
	return found
}

// plain is the word without case and without marks between its parts.
func plain(word string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "", " ", "").Replace(word))
}
