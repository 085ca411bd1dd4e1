package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: crosscheck PACKAGE GOOS/GOARCH...")
		os.Exit(2)
	}
	failed := false
	for _, system := range os.Args[2:] {
		problems, err := check(".", os.Args[1], system)
		if err != nil {
			problems = []string{err.Error()}
		}
		for _, problem := range problems {
			failed = true
			fmt.Fprintf(os.Stderr, "%s: %s\n", system, problem)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check gives what keeps a package of the module in a folder from compiling for a system.
func check(folder, pattern, system string) ([]string, error) {
	goos, goarch, ok := strings.Cut(system, "/")
	if !ok {
		return nil, fmt.Errorf("%q is no GOOS/GOARCH", system)
	}
	own, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	found, err := packages.Load(&packages.Config{
		Dir: folder,
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedModule |
			packages.NeedTypes | packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo,
		Env: append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		ParseFile: func(files *token.FileSet, name string, content []byte) (*ast.File, error) {
			file, err := parser.ParseFile(files, name, content, parser.SkipObjectResolution)
			if file != nil && !strings.HasPrefix(name, own+string(filepath.Separator)) {
				withoutBodies(file)
			}
			return file, err
		},
	}, pattern)
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", pattern, err)
	}
	var problems []string
	packages.Visit(found, nil, func(p *packages.Package) {
		ours := p.Module != nil && p.Module.Main
		for _, problem := range p.Errors {
			// What other modules import for their functions' bodies alone seems unused without those.
			if ours || problem.Kind == packages.ListError || problem.Kind == packages.ParseError {
				problems = append(problems, problem.Error())
			}
		}
	})
	return problems, nil
}

// withoutBodies takes the functions' bodies out of a file of another module: what they do isn't asked, only what can be called.
func withoutBodies(file *ast.File) {
	for _, declaration := range file.Decls {
		if function, is := declaration.(*ast.FuncDecl); is {
			function.Body = nil
		}
	}
}
