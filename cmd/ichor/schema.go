package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/schema"
)

func (a *app) schemaCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "schema [KIND]",
		Short: "Print the JSON Schema of the kinds, for editors",
		Long: `Prints the JSON Schema (draft 2020-12) of a kind, or of all kinds in one. With --dir one file a kind is written there.

The first line of a YAML file tells an editor where to look:

  # yaml-language-server: $schema=schemas/TalosCluster.json`,
		Example:           "  ichor schema TalosMachine\n  ichor schema --dir schemas",
		Args:              cobra.MaximumNArgs(1),
		ValidArgs:         schema.Kinds(),
		ValidArgsFunction: cobra.FixedCompletions(schema.Kinds(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(_ *cobra.Command, args []string) error {
			kinds := schema.Kinds()
			if len(args) == 1 {
				kinds = args
			}
			if dir != "" {
				return writeSchemas(dir, kinds)
			}
			text, err := combinedSchema(kinds)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%s\n", text)
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "folder to write one file a kind to")
	return cmd
}

func kindSchema(kind string) ([]byte, error) {
	text, err := schema.JSONSchema(kind)
	if err != nil {
		return nil, usageError(err, "")
	}
	return text, nil
}

// writeSchemas writes KIND.json for each kind. A file is there whole, or as it was.
func writeSchemas(dir string, kinds []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cannot(fmt.Errorf("make the folder for the schemas: %w", err), "")
	}
	for _, kind := range kinds {
		text, err := kindSchema(kind)
		if err != nil {
			return err
		}
		name := filepath.Join(dir, kind+".json")
		if err := writeWhole(name, append(text, '\n'), 0o644, true); err != nil {
			return cannot(fmt.Errorf("write the schema of %s: %w", kind, err), "")
		}
	}
	return nil
}

// combinedSchema gives one schema that asks of each document what its kind asks.
func combinedSchema(kinds []string) ([]byte, error) {
	if len(kinds) == 1 {
		return kindSchema(kinds[0])
	}
	var choices []any
	for _, kind := range kinds {
		text, err := kindSchema(kind)
		if err != nil {
			return nil, err
		}
		isKind := map[string]any{"properties": map[string]any{"kind": map[string]any{"const": kind}}, "required": []string{"kind"}}
		choices = append(choices, map[string]any{"if": isKind, "then": json.RawMessage(text)})
	}
	text, err := json.MarshalIndent(map[string]any{
		"$schema":    "https://json-schema.org/draft/2020-12/schema",
		"title":      "A document of a fleet repository",
		"type":       "object",
		"required":   []string{"apiVersion", "kind"},
		"properties": map[string]any{"kind": map[string]any{"enum": kinds}},
		"allOf":      choices,
	}, "", "  ")
	if err != nil {
		return nil, cannot(fmt.Errorf("write the schema: %w", err), "")
	}
	return text, nil
}
