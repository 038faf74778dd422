// Package script writes POSIX shell: quoting, the environment, the profiles, the journal of a command, the wrapper that starts
// one at most once in a session's shell, those of terminals and of channels, and the advisory one around a command (bwrap).
// It is pure: no input or output, no clock, no randomness of its own.
package script

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Quote returns s as one word of a POSIX shell, whatever bytes it holds: newlines, quotes, invalid UTF-8. A NUL byte cannot be
// quoted: callers refuse it first, see [Login.Check].
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

// holdsNUL reports whether s holds a NUL byte, which no shell word can.
func holdsNUL(s string) bool { return strings.IndexByte(s, 0) >= 0 }

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

// quoteText is [Quote] for a script that must itself be valid UTF-8, as requests in JSON must: bytes that are not are
// written in octal and made by the shell's printf, at the cost of a fork. Newlines at the end of such a word are lost.
func quoteText(s string) string {
	if utf8.ValidString(s) {
		return Quote(s)
	}
	return `"$(printf ` + Quote(octal(s)) + `)"`
}

// octal returns a format with which printf prints s: bytes that are not UTF-8 are written in octal, and so are NUL bytes,
// and a dash that it begins with, which would make it an option.
func octal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1, r == 0, r == '-' && i == 0:
			fmt.Fprintf(&b, `\%03o`, s[i])
		case r == '\\', r == '%':
			b.WriteString(strings.Repeat(string(r), 2))
		default:
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}
