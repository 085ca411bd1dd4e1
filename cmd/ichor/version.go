package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/siderolabs/talos/pkg/machinery/gendata"
	"github.com/spf13/cobra"
)

// version is set by the build (make build); a plain go install takes it from the module.
var version = ""

// versionInfo is what `ichor version -o json` prints.
type versionInfo struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	Go        string `json:"go"`
	Platform  string `json:"platform"`
	Machinery string `json:"talosMachinery,omitempty"`
}

func readVersion() versionInfo {
	info := versionInfo{Version: version, Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Machinery: gendata.VersionTag}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	if info.Version == "" {
		info.Version = build.Main.Version
	}
	for _, setting := range build.Settings {
		if setting.Key == "vcs.revision" {
			info.Commit = setting.Value
		}
	}
	return info
}

func (a *app) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of ichor and of the Talos API it speaks",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.printVersion(output)
		},
	}
	addOutput(cmd.Flags(), &output, "text", "json")
	return cmd
}

func (a *app) printVersion(output string) error {
	if err := checkOutput(output, "text", "json"); err != nil {
		return err
	}
	info := readVersion()
	if output == "json" {
		return json.NewEncoder(a.out).Encode(info)
	}
	fmt.Fprintf(a.out, "ichor %s (%s, %s, Talos machinery %s)\n", info.Version, info.Go, info.Platform, info.Machinery)
	return nil
}
