package schema

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Duration is a time.Duration written as Go writes it ("10m", "4h").
type Duration time.Duration

// UnmarshalJSON reads a duration string; a bare number is refused because its unit would be a guess.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("a duration is a string with a unit, as in \"10m\"")
	}
	parsed, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration; write it as in \"10m\" or \"4h\"", text)
	}
	*d = Duration(parsed)
	return nil
}

// MarshalJSON writes the duration as a string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// IntOrPercent is a count ("2", 2) or a share ("25%").
type IntOrPercent string

// UnmarshalJSON reads a number or a string.
func (v *IntOrPercent) UnmarshalJSON(data []byte) error {
	var number int
	if err := json.Unmarshal(data, &number); err == nil {
		*v = IntOrPercent(strconv.Itoa(number))
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return fmt.Errorf("want a number or a percentage, as in 1 or \"25%%\"")
	}
	*v = IntOrPercent(text)
	return nil
}

// Of gives the count that v means out of total: shares are rounded down and are at least 1.
func (v IntOrPercent) Of(total int) (int, error) {
	text := strings.TrimSpace(string(v))
	if text == "" {
		return 1, nil
	}
	share, isShare := strings.CutSuffix(text, "%")
	number, err := strconv.Atoi(share)
	if err != nil || number < 1 {
		return 0, fmt.Errorf("%q is not a positive number or percentage", text)
	}
	if !isShare {
		return number, nil
	}
	return max(1, total*min(number, 100)/100), nil
}

// parseTime reads a time with its zone. What stands in Git is read by people in other zones.
func parseTime(text string) (time.Time, error) {
	read, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("it must be a time with its zone, as in 2026-11-29T10:00:00Z")
	}
	return read, nil
}

// longest is the longest duration that a field may hold: what is meant for longer is meant for ever.
const longest = 366 * 24 * time.Hour

func parseDuration(n *yaml.Node) (Duration, error) {
	read, err := time.ParseDuration(n.Value)
	switch {
	case err != nil || n.ShortTag() != "!!str":
		return 0, fmt.Errorf("it must be a duration with its unit, as in 10m or 4h")
	case read <= 0:
		return 0, fmt.Errorf("it must be more than zero")
	case read > longest:
		return 0, fmt.Errorf("it must be at most a year")
	}
	return Duration(read), nil
}

func parseIntOrPercent(n *yaml.Node) (IntOrPercent, error) {
	if tag := n.ShortTag(); tag != "!!int" && tag != "!!str" {
		return "", fmt.Errorf("it must be a number or a percentage, as in 1 or \"25%%\"")
	}
	share, isShare := strings.CutSuffix(n.Value, "%")
	number, err := strconv.Atoi(share)
	if err != nil || strconv.Itoa(number) != share || number < 1 || isShare && number > 100 {
		return "", fmt.Errorf("it must be 1 or more, or between 1%% and 100%%")
	}
	return IntOrPercent(n.Value), nil
}
