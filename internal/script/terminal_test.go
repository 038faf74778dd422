package script

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// A short input survives the shell that reads it as a line and prints it, whatever its bytes are.
func TestInputTextIsWhatPrintfMakesOfIt(t *testing.T) {
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	inputs := [][]byte{all, []byte("-n"), []byte("--"), []byte(" lead and trail \t"), []byte(`\101%s%%\n`), []byte("\n"), []byte("\x00"), []byte(`{"id":1,"method":"it's"}` + "\n")}
	for _, b := range all {
		inputs = append(inputs, []byte{b}, []byte{b, b})
	}
	for _, sh := range [][]string{{"sh"}, {"bash"}, {"dash"}, {"busybox", "sh"}} {
		t.Run(sh[len(sh)-1]+" "+sh[0], func(t *testing.T) {
			if _, err := exec.LookPath(sh[0]); err != nil {
				t.Skipf("%s is missing", sh[0])
			}
			var lines, want bytes.Buffer
			for _, p := range inputs {
				line := InputText(p)
				if !strings.HasSuffix(line, "\n") || strings.Count(line, "\n") != 1 {
					t.Fatalf("InputText(%q) = %q, want one line", p, line)
				}
				lines.WriteString(line)
				want.Write(p)
			}
			cmd := exec.Command(sh[0], append(sh[1:], "-c", `while IFS=' ' read -r _word _arg; do printf "$_arg"; done`)...)
			cmd.Stdin = &lines
			got, err := cmd.Output()
			if err != nil || !bytes.Equal(got, want.Bytes()) {
				t.Errorf("%q, %v, want %q", got, err, want.Bytes())
			}
		})
	}
	if line := InputText(make([]byte, 1025)); line != "" {
		t.Errorf("InputText(1025 bytes) = %d bytes, want none: a process is cheaper", len(line))
	}
}

func TestTerminalEnvironments(t *testing.T) {
	term := Terminal{Mark: "lhabc", Login: Login{Dir: "/w", Args: []string{"printf", "\xff"}}}
	for name, build := range map[string]func() (map[string]string, error){
		"terminal": func() (map[string]string, error) { return term.Env(80, 24) },
		"channel":  func() (map[string]string, error) { return term.Channel(true) },
	} {
		t.Run(name, func(t *testing.T) {
			env, err := build()
			if err != nil {
				t.Fatal(err)
			}
			if got := CarriedMark(env); got != term.Mark {
				t.Errorf("CarriedMark() = %q, want %q", got, term.Mark)
			}
			if strings.ToValidUTF8(env[carrier], "") != env[carrier] {
				t.Error("a request in JSON cannot carry it")
			}
			term.Login.Args = []string{"echo", strings.Repeat("x", MaxWord)}
			if _, err := build(); err == nil {
				t.Error("a command that is too long is accepted")
			}
			term.Login.Args = []string{"printf", "\xff"}
		})
	}
	for name, env := range map[string]map[string]string{"none": nil, "another": {carrier: "echo"}, "cut": {carrier: "_mark=x"}} {
		if got := CarriedMark(env); got != "" {
			t.Errorf("%s: CarriedMark() = %q, want none", name, got)
		}
	}
}
