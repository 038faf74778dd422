package docs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// licences are those that a dependency may have, by what their texts say, and no other licence's among those that come first.
var licences = []struct {
	name string
	says []string
}{
	{"MPL-2.0", []string{"Mozilla Public License", "Version 2.0"}},
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MIT", []string{"Permission is hereby granted, free of charge"}},
	{"ISC", []string{"Permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "may be used to endorse or promote products derived from"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
}

// shipped are the licences of what is linked into a host.
var shipped = []string{"Apache-2.0", "MIT", "ISC", "BSD-3-Clause", "BSD-2-Clause"}

// licence reads what a module in the module cache says of itself.
func licence(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "LICEN[SC]E*"))
	if err != nil || len(names) == 0 {
		t.Errorf("%s has no licence: %v", dir, err)
		return "none"
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(data)), " ")
	for _, l := range licences {
		if !slices.ContainsFunc(l.says, func(words string) bool { return !strings.Contains(text, words) }) {
			return l.name
		}
	}
	t.Errorf("the licence of %s is not among those that are known", dir)
	return "unknown"
}

// TestLicences makes the table of docs/dependencies.md: every module of which something is compiled into a host that imports
// the library, on any system, and what its tests need besides. It refuses a licence that binds the host's own code.
func TestLicences(t *testing.T) {
	packages, err := list()
	if err != nil {
		t.Fatal(err)
	}
	all, hosts := make(map[string]pkg), make(map[string]bool)
	for _, p := range packages {
		if p.Module != nil && !p.Module.Main {
			all[p.Module.Path] = p
		}
	}
	linked := make(map[string]bool)
	var link func(path string)
	link = func(path string) {
		p := packages[path]
		if linked[path] || p.Module == nil {
			return // seen, or of the standard library
		}
		linked[path], hosts[p.Module.Path] = true, !p.Module.Main
		if len(p.CgoFiles) > 0 {
			t.Errorf("%s needs cgo: %q", path, p.CgoFiles)
		}
		for _, imported := range p.Imports {
			link(imported)
		}
	}
	link(module)
	table := "| module | version | licence | in |\n|---|---|---|---|\n"
	for _, path := range slices.Sorted(maps.Keys(all)) {
		m, in := all[path].Module, "hosts"
		name := licence(t, m.Dir)
		if !hosts[path] {
			in = "tests only"
		} else if !slices.Contains(shipped, name) {
			t.Errorf("%s is %s, which is not for what is linked into hosts", path, name)
		}
		table += fmt.Sprintf("| `%s` | %s | %s | %s |\n", path, m.Version, name, in)
	}
	madePart(t, "docs/dependencies.md", "modules", table)
	if len(hosts) < 20 {
		t.Errorf("%d modules: the test proves little", len(hosts))
	}
}
