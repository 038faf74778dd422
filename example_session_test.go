package leasehold_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/leasehold-go/leasehold"
)

// A command that serves until it is told to stop. A signal goes to its whole process group.
func ExampleExecutor_Start() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	output, writer := io.Pipe()
	process, err := lease.Executor().Start(ctx, leasehold.Command{
		Script: "trap 'echo stopped; exit 0' TERM; echo ready; while :; do sleep 0.01; done", Stdout: writer,
	})
	if err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	lines.Scan()
	fmt.Println(lines.Text())
	if err := process.Signal(ctx, "TERM"); err != nil {
		log.Fatal(err)
	}
	lines.Scan()
	fmt.Println(lines.Text())
	result, err := process.Wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit", result.ExitCode)
	fmt.Println(errors.Is(process.Signal(ctx, "TERM"), os.ErrProcessDone))
	// Output:
	// ready
	// stopped
	// exit 0
	// true
}

// Kill ends a command that does not want to end. Its exit is recorded as any other.
func ExampleProcess_Kill() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	process, err := lease.Executor().Start(ctx, leasehold.Command{Script: "trap '' TERM; while :; do sleep 0.01; done"})
	if err != nil {
		log.Fatal(err)
	}
	if err := process.Kill(ctx); err != nil {
		log.Fatal(err)
	}
	result, err := process.Wait()
	fmt.Println("exit", result.ExitCode, err)
	// Output: exit 137 <nil>
}

// A person's shell, or what a program draws on a screen. The connection may be lost: the program goes on, and another
// process finds it by the terminal's id.
func ExampleLease_OpenTerminal() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	terminal, err := lease.OpenTerminal(ctx, leasehold.TerminalOptions{
		ID: "login", Args: []string{"sh", "-c", "stty -echo; echo name?; read name; echo hello, $name; stty size"}, Cols: 80, Rows: 24,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer terminal.Close()
	if err := terminal.Resize(ctx, 100, 30); err != nil {
		log.Fatal(err)
	}
	lines := bufio.NewScanner(terminal) // carriage returns are stripped by it
	lines.Scan()
	fmt.Println(terminal.ID(), "asks:", lines.Text())
	if _, err := io.WriteString(terminal, "gopher\n"); err != nil {
		log.Fatal(err)
	}
	for lines.Scan() {
		fmt.Println(lines.Text())
	}
	exit, err := terminal.Wait(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(exit.State, exit.Code)
	_, err = lease.AttachTerminal(ctx, "another")
	fmt.Println(errors.Is(err, leasehold.ErrNotFound), lease.CloseTerminal(ctx, "another"))
	// Output:
	// login asks: name?
	// hello, gopher
	// 30 100
	// exited 0
	// true <nil>
}

// A program's standard input and output as one stream of bytes, of any value, for a protocol of its own.
func ExampleLease_OpenChannel() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	channel, err := lease.OpenChannel(ctx, leasehold.ChannelOptions{
		ID: "server", Args: []string{"sed", "-u", "s/^/answer to /"}, Stderr: os.Stderr,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer channel.Close()
	answers := bufio.NewScanner(channel)
	for _, question := range []string{"one", "two"} {
		if _, err := fmt.Fprintln(channel, question); err != nil {
			log.Fatal(err)
		}
		answers.Scan()
		fmt.Println(answers.Text())
	}
	if err := channel.CloseWrite(); err != nil {
		log.Fatal(err)
	}
	exit, err := channel.Wait(ctx)
	fmt.Println(channel.ID(), exit.State, exit.Code, err)
	fmt.Println(lease.CloseChannel(ctx, "server")) // there is none any more
	// Output:
	// answer to one
	// answer to two
	// server exited 0 <nil>
	// <nil>
}

// A directory comes back as a whole, or not at all.
func ExampleExporter_Dir() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	local, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(local)
	if _, err := lease.Executor().Run(ctx, leasehold.Command{Script: "mkdir -p out/sub; echo a >out/a; echo b >out/sub/b; ln -s /etc/passwd out/link"}); err != nil {
		log.Fatal(err)
	}
	_, err = lease.Exporter().Dir(ctx, "out", filepath.Join(local, "out"), leasehold.ExportOptions{})
	fmt.Println(errors.Is(err, leasehold.ErrUnsafe)) // and nothing is there
	result, err := lease.Exporter().Dir(ctx, "out", filepath.Join(local, "out"), leasehold.ExportOptions{UnsafeLinks: leasehold.LinksOmit})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Bytes, "bytes, left out:", result.Skipped)
	// Output:
	// true
	// 4 bytes, left out: [{link unsafe link}]
}

// Some files go in and out, each to a place of its own.
func ExampleExporter_Files() {
	ctx := context.Background()
	lease, done := exampleLease(ctx)
	defer done()
	local, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(local)
	words := filepath.Join(local, "words")
	if err := os.WriteFile(words, []byte("b\na\n"), 0o644); err != nil {
		log.Fatal(err)
	}
	if _, err := lease.Importer().File(ctx, words, "in/words", leasehold.ImportOptions{Access: leasehold.AccessReadWrite}); err != nil {
		log.Fatal(err)
	}
	if _, err := lease.Executor().Run(ctx, leasehold.Command{Script: "sort words >sorted; wc -l <words >count", Dir: "in"}); err != nil {
		log.Fatal(err)
	}
	result, err := lease.Exporter().Files(ctx, []leasehold.FileMapping{
		{Local: filepath.Join(local, "sorted"), Remote: "in/sorted"},
		{Local: filepath.Join(local, "count"), Remote: "in/count", Mode: 0o600},
	}, leasehold.ExportOptions{})
	if err != nil {
		log.Fatal(err)
	}
	dirs, err := lease.WritableDirs(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Entries, "files;", len(dirs), "directory to write to: the workspace, which has the other in it")
	// Output: 2 files; 1 directory to write to: the workspace, which has the other in it
}
