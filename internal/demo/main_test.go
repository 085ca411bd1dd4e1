package main

import "testing"

func TestFlagsThatMakeNoSenseAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		options options
		good    bool
	}{
		"a folder":                 {options{state: "file", timeScale: 10}, true},
		"an S3 server":             {options{state: "s3", timeScale: 1}, true},
		"a store that there isn't": {options{state: "S3", timeScale: 10}, false},
		"time that stands still":   {options{state: "file"}, false},
	} {
		if err := test.options.check(nil); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}
