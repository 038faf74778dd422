package script

import (
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// State is what a journal's script found.
type State string

// The states.
const (
	StateRunning    State = "run"        // or ended: the record tells
	StateLost       State = "lost"       // the process is gone, and nobody recorded its exit; without one, nobody begins the command
	StateGone       State = "gone"       // there is no journal any more
	StateFull       State = "full"       // no room for a journal: the command was not started, and no copy of the dispatch will
	StateUnwritable State = "unwritable" // this script did not start it for lack of room, but a copy of it may, or has
	StateNone       State = "none"       // the command will not be started, and was not since the directory was made
	StateNoneNew    State = "none-new"   // likewise; there was not even a directory of journals, as far as the sandbox knows
	StateNoneAgain  State = "none-again" // the command will not be started; there was a directory before, and it is gone
	StateStopped    State = "stopped"    // nothing of the command runs any more
	StateAlive      State = "alive"      // something of it could not be killed
	StateSent       State = "sent"       // the signal was sent
	StateRefused    State = "refused"    // the signal could not be sent to the command, which runs
)

// Frame is what a journal's script printed.
type Frame struct {
	State   State
	Dir     string // of the journals; empty if its name is not text
	Born    string // the journal that brought the directory about; empty: not known
	Claimed bool   // somebody is starting the command
	Process Process
	Started bool // the command took over
	NoDir   bool // its directory could not be entered
	Wrapped bool // its wrapper let it begin
	Stale   bool // it has none because the list of writable directories has changed
	Exit    int
	Exited  bool
	Stdout  Piece
	Stderr  Piece
}

// Piece is what a frame carries of a stream's file, and what the record says of the stream.
type Piece struct {
	Bytes string // exact
	Whole bool   // it is all there was; otherwise the rest is to be read from the file
	Empty bool   // the stream has ended and is empty: there will be no end mark
	Cut   bool   // there was no room for the rest of the stream: there will be no end mark
	Last  bool   // nobody writes to the file any more
	Gone  bool   // there is no such file
}

// ErrFrame reports output that is not a whole frame.
var ErrFrame = errors.New("the reply is not a journal's")

// ReadFrame reads the frame with this mark from the output of a script, as it came through JSON, which replaces what is
// not UTF-8 by U+FFFD. Of such a stream only what comes before that is taken. Inline is that of the script's Wait.
func ReadFrame(mark, output string, inline int) (Frame, error) {
	var f Frame
	_, rest, ok := strings.Cut(output, "\n"+mark+" ")
	head, rest, found := strings.Cut(rest, "\n")
	if !ok || !found {
		return f, ErrFrame
	}
	state, head, _ := strings.Cut(head, " ")
	born, dir, _ := strings.Cut(head, " ")
	f.State, f.Born, f.Dir = State(state), strings.TrimPrefix(born, "-"), dir
	if strings.ContainsRune(dir, utf8.RuneError) || !strings.HasPrefix(dir, "/") {
		f.Dir = ""
	}
	for {
		var line string
		if line, rest, found = strings.Cut(rest, "\n"); !found {
			return f, ErrFrame
		}
		if line == mark+" o" {
			break
		}
		f.record(line)
	}
	if rest, ok = f.Stdout.cut(rest, "\n"+mark+" e ", inline); !ok {
		return f, ErrFrame
	}
	if _, ok = f.Stderr.cut(rest, "\n"+mark+" . ", inline); !ok {
		return f, ErrFrame
	}
	return f, nil
}

// record takes in a line of the record.
func (f *Frame) record(line string) {
	word, rest, _ := strings.Cut(line, " ")
	if word == "pid" { // the script may know it although the record is gone
		pid, birth, _ := strings.Cut(rest, " ")
		f.Process.ID, _ = strconv.Atoi(pid)
		if _, err := strconv.ParseUint(birth, 10, 64); err == nil {
			f.Process.Birth = birth
		}
	}
	if line == "" {
		f.Claimed = true // the first line: a record without it was made by something else, such as the exit after its removal
	}
	if !f.Claimed {
		return
	}
	switch word {
	case "started":
		f.Started = true
	case "wrapped":
		f.Wrapped = true
	case "stale":
		f.Stale = true
	case "nodir":
		f.NoDir = true
	case "exit":
		if code, err := strconv.Atoi(rest); err == nil {
			f.Exit, f.Exited = code, true
		}
	case "empty", "cut", "copied":
		p := &f.Stdout
		if rest == "e" {
			p = &f.Stderr
		}
		p.Empty, p.Cut, p.Last = p.Empty || word == "empty", p.Cut || word == "cut", p.Last || word != "empty"
	}
}

// cut takes the piece before the mark, and the status of its reading after it.
func (p *Piece) cut(s, mark string, inline int) (rest string, ok bool) {
	content, rest, ok := strings.Cut(s, mark)
	status, rest, found := strings.Cut(rest, "\n")
	if !ok || !found {
		return "", false
	}
	p.Bytes, p.Whole, p.Gone = content, status == "0" && len(content) < inline, status == "4"
	if i := strings.IndexRune(content, utf8.RuneError); i >= 0 {
		p.Bytes, p.Whole = content[:i], false
	}
	return rest, true
}
