package leasehold

// ExitState is what is known of the end of a terminal or a channel.
type ExitState string

// The states.
const (
	// ExitExited: the command ended, and [Exit.Code] is its exit code.
	ExitExited ExitState = "exited"
	// ExitDisconnected: the connection ended first. The command of a terminal may go on, that of a channel is killed.
	ExitDisconnected ExitState = "disconnected"
	// ExitUnknown: nothing says how the command ended, or whether.
	ExitUnknown ExitState = "unknown"
)

// Exit is how a terminal or a channel ended.
type Exit struct {
	State ExitState
	// Code is the command's exit code with ExitExited, -1 otherwise: a missing exit code is never 0. A command that died
	// by signal n has 128+n, as shells say it, and so has one that exits with that number.
	Code int
	// Signal is the name of that signal, such as "TERM", or empty.
	Signal string
}

func exited(code int) Exit {
	e := Exit{State: ExitExited, Code: code}
	if code > 128 {
		e.Signal = signalNames[code-128]
	}
	return e
}

// signalNames are those of Linux on the usual machines.
var signalNames = map[int]string{
	1: "HUP", 2: "INT", 3: "QUIT", 4: "ILL", 5: "TRAP", 6: "ABRT", 7: "BUS", 8: "FPE", 9: "KILL", 10: "USR1", 11: "SEGV",
	12: "USR2", 13: "PIPE", 14: "ALRM", 15: "TERM", 24: "XCPU", 25: "XFSZ", 31: "SYS",
}
