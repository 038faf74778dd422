// Package script writes POSIX shell: quoting, the environment, the profiles, and the wrapper that starts a command at
// most once in a session shell. It is pure: no input or output, no clock, no randomness of its own.
package script

import (
	"errors"
	"strings"
)

// ErrNUL reports a NUL byte in something that a shell must carry. No shell word can hold one.
var ErrNUL = errors.New("a shell word cannot hold a NUL byte")

// Quote returns s as one word of a POSIX shell, whatever bytes it holds: newlines, quotes, invalid UTF-8. A NUL byte cannot be
// quoted: callers refuse it first, see [CheckWord].
func Quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// QuoteAll quotes each word and joins them by spaces: a command line that runs exactly these arguments.
func QuoteAll(words []string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(Quote(w))
	}
	return b.String()
}

// CheckWord returns [ErrNUL] if s holds a NUL byte.
func CheckWord(s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return ErrNUL
	}
	return nil
}

// ValidKey reports whether key can name an environment variable in every shell and in the daemon: [A-Za-z_][A-Za-z0-9_]*.
func ValidKey(key string) bool {
	if key == "" {
		return false
	}
	for i := range len(key) {
		switch c := key[i]; {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return true
}
