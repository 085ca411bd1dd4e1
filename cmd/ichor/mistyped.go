package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
)

// unknownCommandError is a name that is none of the commands under another.
type unknownCommandError struct {
	holder *cobra.Command
	name   string
}

func (e *unknownCommandError) Error() string {
	return fmt.Sprintf("%s has no command %q", e.holder.CommandPath(), e.name)
}

// mistyped says what is wrong with a command's arguments in the words of its usage line, and which command may have been meant.
func mistyped(cmd *cobra.Command, given []string, err error) error {
	hint := "see '" + cmd.CommandPath() + " --help'"
	var unknown *unknownCommandError
	if errors.As(err, &unknown) {
		if meant := likelyMeant(unknown.holder, unknown.name); len(meant) > 0 {
			hint = "did you mean '" + strings.Join(meant, "', or '") + "'? " + hint
		}
		return usageError(err, hint)
	}
	_, wants, _ := strings.Cut(cmd.Use, " ")
	wants = strings.TrimSpace(wants)
	switch {
	case wants == "":
		err = fmt.Errorf("%s takes no arguments, and got %s", cmd.CommandPath(), quotedAll(given))
	case len(given) == 0:
		err = fmt.Errorf("%s wants %s, and got nothing", cmd.CommandPath(), wants)
	default:
		err = fmt.Errorf("%s wants %s, and got %s", cmd.CommandPath(), wants, quotedAll(given))
	}
	return usageError(err, hint)
}

func quotedAll(given []string) string {
	var all []string
	for _, argument := range given {
		all = append(all, fmt.Sprintf("%q", argument))
	}
	return strings.Join(all, ", ")
}

// likelyMeant finds the commands that a name may stand for: those that are spelled nearly so, the nearest first, or those of the same name elsewhere (`run-op
// reboot` is `run-op node reboot`).
func likelyMeant(holder *cobra.Command, name string) []string {
	var meant []string
	holder.SuggestionsMinimumDistance = max(1, min(2, len(name)/3)) // of three letters two can't be wrong
	near := holder.SuggestionsFor(name)
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(wrongLetters(name, a), wrongLetters(name, b)) })
	for _, near := range near {
		meant = append(meant, holder.CommandPath()+" "+near)
	}
	for _, top := range []*cobra.Command{holder, holder.Root()} {
		if len(meant) == 0 {
			meant = named(top, name)
		}
	}
	return meant
}

// wrongLetters is how far a name is from a command's. Letters that only stand in another order are the likeliest slip of all.
func wrongLetters(name, command string) int {
	name = strings.ToLower(name)
	if slices.Equal(slices.Sorted(slices.Values([]rune(name))), slices.Sorted(slices.Values([]rune(command)))) {
		return 0
	}
	return levenshtein.ComputeDistance(name, command)
}

// named gives the commands of a name, however deep they stand.
func named(holder *cobra.Command, name string) []string {
	var found []string
	for _, child := range holder.Commands() {
		if child.Name() == name {
			found = append(found, child.CommandPath())
		}
		found = append(found, named(child, name)...)
	}
	return found
}
