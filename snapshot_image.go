package leasehold

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ImageSpec describes an image in steps that most images consist of. Each step is taken in the order of the fields. For
// anything else, write a Dockerfile.
type ImageSpec struct {
	Base       string            // image to start from, required; without a tag or a digest it is the latest of its name
	Env        map[string]string // variables of the steps and of the sandboxes; not for secrets, which an image shows
	Apt        []string          // Debian packages to install
	Pip        []string          // Python packages to install
	Dir        string            // directory of the following steps, and of commands
	Run        []string          // shell commands, each one line
	Labels     map[string]string // keys are as those of AcquireRequest.Labels; values of one line
	User       string            // of the sandboxes' processes
	Entrypoint []string          // argv
	Cmd        []string          // argv
}

var (
	variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	packageForm  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9+._:=<>!~,*\[\]-]*$`)
	userForm     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.:-]*$`)
)

// Dockerfile returns the Dockerfile. It fails with [ErrInvalid], naming every field that a Dockerfile could not hold as it
// is, or that would end up in a shell as something else.
func (i ImageSpec) Dockerfile() (string, error) {
	var (
		p    problems
		file strings.Builder
	)
	line := func(format string, args ...any) { fmt.Fprintf(&file, format+"\n", args...) }
	oneLine := func(field, value string) {
		if strings.ContainsAny(value, "\r\n\x00") {
			p.add("ImageSpec."+field, "has more than one line")
		}
	}
	if i.Base == "" {
		p.add("ImageSpec.Base", "is missing")
	} else if !imageForm.MatchString(i.Base) {
		p.add("ImageSpec.Base", "is no name of an image")
	}
	line("FROM %s", i.Base)
	for _, name := range slices.Sorted(maps.Keys(i.Env)) {
		if !variableForm.MatchString(name) {
			p.add("ImageSpec.Env", "has a name that is none: letters, digits and _")
		}
		oneLine("Env."+name, i.Env[name])
		line("ENV %s=%s", name, quoteDocker(i.Env[name]))
	}
	for _, packages := range []struct {
		field   string
		names   []string
		command string
	}{
		{"Apt", i.Apt, "apt-get update && apt-get install -y %s && rm -rf /var/lib/apt/lists/*"},
		{"Pip", i.Pip, "pip install %s"},
	} {
		quoted := make([]string, len(packages.names))
		for n, name := range packages.names {
			if !packageForm.MatchString(name) {
				p.add("ImageSpec."+packages.field, "has a name that is no package's")
			}
			quoted[n] = "'" + name + "'"
		}
		if len(quoted) > 0 {
			line("RUN "+packages.command, strings.Join(quoted, " "))
		}
	}
	if i.Dir != "" {
		oneLine("Dir", i.Dir)
		line("WORKDIR %s", quoteDocker(i.Dir))
	}
	for _, command := range i.Run {
		oneLine("Run", command)
		if strings.HasSuffix(strings.TrimSpace(command), `\`) || strings.TrimSpace(command) == "" {
			p.add("ImageSpec.Run", "has a command that is blank or does not end on its line")
		}
		line("RUN %s", command)
	}
	for _, key := range slices.Sorted(maps.Keys(i.Labels)) {
		oneLine("Labels."+key, i.Labels[key])
		if !labelKeyForm.MatchString(key) {
			p.add("ImageSpec.Labels", labelKeyProblem)
		}
		line("LABEL %s=%s", key, quoteDocker(i.Labels[key]))
	}
	if i.User != "" {
		if !userForm.MatchString(i.User) {
			p.add("ImageSpec.User", "is no name or number")
		}
		line("USER %s", i.User)
	}
	for _, exec := range []struct {
		instruction string
		argv        []string
	}{{"ENTRYPOINT", i.Entrypoint}, {"CMD", i.Cmd}} {
		if len(exec.argv) > 0 {
			argv, err := json.Marshal(exec.argv)
			if err != nil {
				panic("leasehold: strings are always JSON: " + err.Error())
			}
			line("%s %s", exec.instruction, argv)
		}
	}
	return file.String(), p.err("image")
}

// quoteDocker quotes a value of a Dockerfile, which expands variables in double quotes.
func quoteDocker(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(value) + `"`
}
