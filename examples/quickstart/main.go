// Command quickstart takes a lease on a sandbox, syncs a directory in, runs a command in it, exports a result and gives
// the lease back. Without an account it runs on the embedded backend.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold"
)

// giveBackTime bounds the release after an interrupt.
const giveBackTime = 2 * time.Minute

type options struct {
	backend string
	dir     string
	command string
	export  string
	to      string
	image   string
}

func main() {
	var o options
	flag.StringVar(&o.backend, "backend", "auto", "local, daytona, or auto: daytona if DAYTONA_API_KEY is set")
	flag.StringVar(&o.dir, "dir", "", "directory to sync in (default: the module around the working directory)")
	flag.StringVar(&o.command, "command", "go build -v -o bin/quickstart ./examples/quickstart", "shell command to run in it")
	flag.StringVar(&o.export, "export", "bin/quickstart", "file to export afterwards, relative to the directory; empty: none")
	flag.StringVar(&o.to, "to", "", "where to put it (default: a directory under the temporary one)")
	flag.StringVar(&o.image, "image", "golang:1.26", "image of the sandbox, on daytona")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt ends the program at once
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		stop()
		os.Exit(1)
	}
}

// run does what the program is for. Whatever happens to it, the lease is given back.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	if o.dir == "" {
		if o.dir, err = moduleRoot(); err != nil {
			return err
		}
	}
	if o.to == "" && o.export != "" {
		o.to = filepath.Join(os.TempDir(), "leasehold-quickstart", path.Base(o.export))
	}
	provider, env, err := open(ctx, &o)
	if err != nil {
		return err
	}
	steps := &journal{w: stdout, bar: terminal(stdout)}
	defer func() {
		closeCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
		defer cancel()
		err = errors.Join(err, provider.Close(closeCtx))
	}()

	steps.begin("acquire a lease on the " + o.backend + " backend")
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "quickstart", Environment: "example", Run: uuid.NewString()},
	})
	if err != nil {
		return err
	}
	steps.end("sandbox %s", lease.Ref().Sandbox)
	defer func() {
		steps.begin("release the lease")
		releaseCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTime)
		defer cancel()
		receipt, releaseErr := provider.Release(releaseCtx, lease.Ref(), leasehold.ReleaseOptions{})
		if releaseErr == nil {
			steps.end("%s", receipt.State)
			steps.summary()
		}
		err = errors.Join(err, releaseErr)
	}()

	steps.begin("sync in " + o.dir)
	synced, err := lease.Importer().Dir(ctx, o.dir, "src", leasehold.ImportOptions{Exclude: []string{".git"}, Progress: steps.progress})
	if err != nil {
		return err
	}
	steps.end("%d entries, %s", synced.Entries, size(synced.Bytes))

	steps.begin("run " + o.command)
	result, err := lease.Executor().Run(ctx, leasehold.Command{
		Script: o.command, Dir: "src", Env: env, Stdout: stdout, Stderr: stderr,
	})
	if err != nil {
		return err
	}
	steps.end("exit %d, %s of output", result.ExitCode, size(result.StdoutSize+result.StderrSize))
	if result.ExitCode != 0 {
		return fmt.Errorf("the command ended with exit code %d", result.ExitCode)
	}
	if o.export == "" {
		return nil
	}

	steps.begin("export " + o.export)
	exported, err := lease.Exporter().File(ctx, path.Join("src", o.export), o.to, leasehold.ExportOptions{Progress: steps.progress})
	if err != nil {
		return err
	}
	steps.end("%s, %s", o.to, size(exported.Bytes))
	return nil
}

// open returns the provider of the chosen backend, and what the command's environment needs on it.
func open(ctx context.Context, o *options) (leasehold.Provider, map[string]string, error) {
	if o.backend == "auto" {
		o.backend = "local"
		if os.Getenv("DAYTONA_API_KEY") != "" {
			o.backend = "daytona"
		}
	}
	switch o.backend {
	case "local":
		provider, err := leasehold.NewLocal(leasehold.LocalConfig{})
		return provider, hostTools(ctx), err
	case "daytona":
		provider, err := leasehold.New(leasehold.Config{
			Image: o.image,
			TTL:   time.Hour, // whatever becomes of this program
		})
		return provider, nil, err
	}
	return nil, nil, fmt.Errorf("-backend %q is neither auto, local nor daytona", o.backend)
}

// hostTools lends the host's PATH and Go caches to a command on the local backend, whose sandboxes start with an empty
// home directory.
func hostTools(ctx context.Context) map[string]string {
	env := map[string]string{"PATH": os.Getenv("PATH")}
	out, err := exec.CommandContext(ctx, "go", "env", "-json", "GOCACHE", "GOMODCACHE", "GOPROXY", "GOFLAGS", "GOTOOLCHAIN").Output()
	if err != nil {
		return env // no Go here: the command may be about something else
	}
	var goEnv map[string]string
	if json.Unmarshal(out, &goEnv) == nil {
		for key, value := range goEnv {
			if value != "" {
				env[key] = value
			}
		}
	}
	return env
}

// moduleRoot returns the nearest directory upwards that has a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is in no Go module: give -dir", dir)
		}
	}
}

// journal reports each step as it happens, and all of them at the end.
type journal struct {
	w     io.Writer
	bar   bool // w is a terminal
	name  string
	began time.Time
	lines []string
}

func (j *journal) begin(name string) {
	j.name, j.began = name, time.Now()
	fmt.Fprintf(j.w, "==> %s\n", name)
}

func (j *journal) end(format string, args ...any) {
	took := time.Since(j.began).Round(time.Millisecond)
	detail := fmt.Sprintf(format, args...)
	fmt.Fprintf(j.w, "    %s (%s)\n", detail, took)
	j.lines = append(j.lines, fmt.Sprintf("%10s  %s: %s", took, j.name, detail))
}

func (j *journal) summary() {
	fmt.Fprintln(j.w, "\nwhat happened:")
	for _, line := range j.lines {
		fmt.Fprintln(j.w, line)
	}
}

// progress draws a bar on a terminal.
func (j *journal) progress(p leasehold.Progress) {
	if !j.bar {
		return
	}
	const width = 40
	filled := width
	if p.TotalBytes > 0 {
		filled = int(min(p.Bytes, p.TotalBytes) * width / p.TotalBytes)
	}
	fmt.Fprintf(j.w, "\r    [%s%s] %s ", strings.Repeat("#", filled), strings.Repeat(".", width-filled), size(p.Bytes))
	if p.Done {
		fmt.Fprint(j.w, "\r\x1b[K")
	}
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
