package script

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Profiles says which start-up files a command's environment comes from.
type Profiles int

// The profile policies.
const (
	// LoginProfiles reads what a login shell would: /etc/profile, ~/.profile, ~/.bash_profile or else ~/.bashrc,
	// ~/.zprofile. The daemon's shells are not login shells, and images put their tools on PATH in these files.
	LoginProfiles Profiles = iota
	// NoProfiles starts from the daemon's environment alone.
	NoProfiles
)

// MaxWord is the longest single argument or environment string that Linux lets a process be started with
// (MAX_ARG_STRLEN: 32 pages, its final NUL included). A longer script travels as a file.
const MaxWord = 128<<10 - 1

// Login is one command in the environment of a login shell.
type Login struct {
	Profiles Profiles
	Dir      string            // absolute; the command does not run if it cannot be entered
	Env      map[string]string // wins over profiles and over the defaults of git; nothing is unset
	Args     []string          // program and arguments, or
	Script   string            // a script for /bin/sh, when Args is empty
	// Mark is printed, followed by a letter and a newline, just before the command takes over: see [Mark]. Empty: nothing is.
	Mark Mark
	// record says that descriptor 9 is a journal's record, which takes the lines that Mark prints otherwise. All of them are
	// written before the command, or what wraps it, takes over, which gets neither the descriptor nor the path.
	record bool
	// Bwrap is the wrapper that a [Journal] or a [Session] runs the command in. Nil: none.
	Bwrap *Bwrap
	file  string // a word: the path of a file that holds Script, which is too long for an argument
}

// sourced is the script of a shell whose text is in a file. Bash that reads its script from a file runs the EXIT trap, when a
// profile exits, without the descriptors that the profile was kept from.
const sourced = `'. "$1.c"'`

// carried is the script of a shell whose text is in the variable [carrier] of its environment. As an argument it would be in
// every list of processes for as long as profiles are read, and with it the caller's variables.
const carried = `'_leasehold_text=$` + carrier + `; unset ` + carrier + `; eval "$_leasehold_text"'`

// carry exports the value of a variable as that text.
func carry(name string) string { return carrier + "=$" + name + "; export " + carrier + "; " }

// maxText is the longest text that travels so. A longer one is sourced.
const maxText = MaxWord - len(carrier) - 1

// recorded returns the command with a record. Its script takes the record's path as its only argument.
func (l Login) recorded() Login {
	l.record = true
	return l
}

// gitDefaults keep git from waiting for a terminal that is not there.
var gitDefaults = map[string]string{
	"GIT_TERMINAL_PROMPT": "0",
	"GCM_INTERACTIVE":     "Never",
	"GIT_ASKPASS":         "echo",
	"SSH_ASKPASS":         "echo",
	"SSH_ASKPASS_REQUIRE": "force",
}

// shell returns shell text that chooses the shell for [Login.Text] into the variable name, without a fork: bash for
// profiles if there is one, since profiles are often written for it, else /bin/sh.
func (l Login) shell(name string) string {
	if l.Profiles == NoProfiles {
		return name + "=/bin/sh"
	}
	return "if command -v bash >/dev/null; then " + name + "=bash; else " + name + "=/bin/sh; fi"
}

// Check reports everything that keeps the command from being written as a script: a NUL byte, an environment key that is not
// an identifier, a program name that env or exec would take for something else, a string beyond [MaxWord]. A field begins
// with a dot, and is empty for the whole command. A problem holds no value: of a key, only what comes before an "=".
func (l Login) Check(report func(field, problem string)) {
	if holdsNUL(l.Dir) {
		report(".Dir", "holds a NUL byte")
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(l.Env)) {
		value := l.Env[key]
		size += len(key) + len(value) + 2
		switch {
		case !ValidKey(key):
			name, _, _ := strings.Cut(key, "=")
			report(".Env", fmt.Sprintf("has the key %.100q, and a key must match [A-Za-z_][A-Za-z0-9_]*", name))
		case holdsNUL(value):
			report(".Env", fmt.Sprintf("holds a NUL byte in the value of %.100s", key))
		case len(key)+1+len(value) > MaxWord:
			report(".Env", fmt.Sprintf("has a value of %.100s that is longer than the %d bytes that one string may have", key, MaxWord))
		}
	}
	for i, arg := range l.Args {
		size += len(arg) + 1
		switch {
		case holdsNUL(arg):
			report(".Args", fmt.Sprintf("holds a NUL byte in argument %d", i))
		case len(arg) > MaxWord:
			report(".Args", fmt.Sprintf("has an argument %d that is longer than the %d bytes that one may have", i, MaxWord))
		case i == 0 && (arg == "" || arg[0] == '-'):
			report(".Args", "has an argument 0, a program's name, that is empty or starts with a dash")
		}
	}
	if holdsNUL(l.Script) {
		report(".Script", "holds a NUL byte")
	}
	if size > MaxArguments {
		report("", fmt.Sprintf("has arguments and an environment of %d bytes, and may have %d", size, MaxArguments))
	}
}

// longScript reports that the script is too long for an argument. Then the record's neighbour ".s" holds it.
func (l Login) longScript() bool {
	return len(l.Args) == 0 && len(l.Script) > MaxWord/2 // quotes may double it
}

// Text returns the script for `sh -c`. It replaces itself by the command, so that the command's own exit or signal is what
// its parent sees. Profiles are sourced at top level (inside a function their `declare -x` would be local), with no
// positional parameters, no input and no output, and whatever they do (fail, exit, set -e, not parse) the command still runs:
// the EXIT trap leads to it too. Only a profile that replaces the shell keeps it from running, or a signal that ends the
// shell meanwhile, see [endings], and then the mark is missing. Variables go through env, since shells hold some of them
// read-only.
func (l Login) Text() string {
	var b strings.Builder
	command := l.enter() + l.exec("exec ")
	closed := " 6<&- 7>&- 8>&-" // what a profile leaves in the background must not hold the command's output, nor the record
	if l.record {
		b.WriteString("_leasehold_record=$1\n" + recordProcess)
		closed += " 9>&-"
	}
	if l.Profiles == NoProfiles {
		b.WriteString(command)
		return b.String()
	}
	b.WriteString("exec 6<&0 7>&1 8>&2 </dev/null >/dev/null 2>&1\n_leasehold_path=${PATH-}\n")
	b.WriteString("_leasehold_main() {\nset +eux\ntrap - EXIT" + endings + "\nexec <&6 >&7 2>&8 6<&- 7>&- 8>&-\n" + keepPath)
	b.WriteString(command)
	b.WriteString("}\n_leasehold_arm() { for _leasehold_n in" + endings + "; do trap \"trap - EXIT; exit $((128+_leasehold_n))\" \"$_leasehold_n\"; done; }\n")
	b.WriteString("_leasehold_arm\ntrap _leasehold_main EXIT\n")
	source := func(file string) string {
		return "if [ -r " + file + " ]; then . " + file + closed + "; _leasehold_arm"
	}
	b.WriteString(source("/etc/profile") + "; fi\n")
	b.WriteString(source(`"${HOME:-}/.profile"`) + "; fi\n")
	b.WriteString(source(`"${HOME:-}/.bash_profile"`) + "\nel" + source(`"${HOME:-}/.bashrc"`) + "; fi\n")
	b.WriteString(source(`"${HOME:-}/.zprofile"`) + "; fi\n")
	b.WriteString("_leasehold_main\n")
	return b.String()
}

// endings are signals by which others end a command: HUP, INT, QUIT, ABRT, ALRM and TERM, and on Linux USR1 and USR2. Bash
// runs the EXIT trap when one of them ends it, and so a stop while profiles are read would begin the command. They are
// trapped before the EXIT trap is there, and anew after each profile, which may have traps of its own. Numbers, because exit statuses are made of them.
const endings = " 1 2 3 6 10 12 14 15"

// keepPath appends to PATH what the profiles dropped from it. Debian's /etc/profile sets PATH anew, and with it goes what
// an image put there with ENV: the tools that the image is for.
const keepPath = `_leasehold_rest=$_leasehold_path:
while case $_leasehold_rest in "") false ;; esac; do
_leasehold_dir=${_leasehold_rest%%:*}
_leasehold_rest=${_leasehold_rest#*:}
case ${_leasehold_dir:+:${PATH-}:} in ""|*:"$_leasehold_dir":*) ;; *) PATH=${PATH:+$PATH:}$_leasehold_dir ;; esac
done
export PATH
`

// inline returns the lines by which a subshell of a journal becomes the command, on systems with /proc.
func (l Login) inline() string {
	return recordProcess + l.enter() + l.exec("exec $_setsid ")
}

// recordProcess adds the shell's process to the record, and drops the parameters. Its start time tells it from another
// one that gets its number later, as after a restart of the sandbox. A shell that comes too late for somebody ends.
const recordProcess = `{ if read -r _leasehold_stat </proc/self/stat; then
_leasehold_process=${_leasehold_stat%% *}
set -- ${_leasehold_stat##*) }
printf 'pid %s %s\n' $_leasehold_process ${20}
else
printf 'pid %s\n' $$
fi >&9; } 2>/dev/null || exit
[ ! -e "$_leasehold_record.z" ] || exit
set --
`

// say returns a command that tells what became of the command.
func (l Login) say(letter, line string) string {
	switch {
	case l.record:
		return "printf '" + line + "\\n' >&9"
	case l.Mark != "":
		return l.Mark.print(letter)
	}
	return ":"
}

// enter returns the lines that enter the directory.
func (l Login) enter() string {
	var b strings.Builder
	if l.Dir != "" {
		fmt.Fprintf(&b, "command cd -- %s || { %s; exit %d; }\n", Quote(l.Dir), l.say(markNoDir, "nodir"), RefusedStatus)
	}
	b.WriteString(l.say(markStarted, "started"))
	if l.record {
		b.WriteString(" || exit") // what is not recorded does not run
	}
	b.WriteString("\n")
	return b.String()
}

// exec returns the line that becomes the command, with a prefix. The caller's variables go through env, since shells hold
// some of them read-only, warn of others, and give some a meaning; the defaults need no process for that.
func (l Login) exec(prefix string) string {
	var b strings.Builder
	b.WriteString("command export")
	for _, key := range slices.Sorted(maps.Keys(gitDefaults)) {
		b.WriteString(" " + key + "=" + gitDefaults[key])
	}
	b.WriteString("\n" + l.become(prefix))
	if l.record {
		b.WriteString(" 9>&-")
	}
	b.WriteString("\n")
	return b.String()
}

// become returns the command line that becomes the command, with a prefix.
func (l Login) become(prefix string) string { return l.within(prefix) + l.program() }

// within returns the words before a program that put the caller's variables into its environment.
func (l Login) within(prefix string) string {
	if len(l.Env) == 0 {
		return prefix
	}
	var b strings.Builder
	b.WriteString(prefix + "env")
	for _, key := range slices.Sorted(maps.Keys(l.Env)) {
		b.WriteString(" " + Quote(key+"="+l.Env[key]))
	}
	b.WriteString(" ")
	return b.String()
}

// program returns the words of the program and its arguments.
func (l Login) program() string {
	switch {
	case l.file != "":
		return "/bin/sh " + l.file
	case len(l.Args) == 0:
		return "/bin/sh -c " + Quote(l.Script) + " sh"
	case strings.Contains(l.Args[0], "="): // exec and env would take the name for a variable
		return `/bin/sh -c 'exec "$0" "$@"' ` + QuoteAll(l.Args)
	}
	return QuoteAll(l.Args)
}
