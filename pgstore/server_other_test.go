//go:build !unix

package pgstore

import "fmt"

// server is a PostgreSQL of the tests' own, which takes signals and credentials of Unix.
type server struct{}

func startServer() (*server, error) {
	return nil, fmt.Errorf("%w: the tests start one on Unix only", errNoServer)
}

func (*server) start(string) error { return errNoServer }
func (*server) crash() error       { return errNoServer }
func (*server) dsn() string        { return "" }
func (*server) log() string        { return "" }
func (*server) stop() error        { return nil }

func killProcess(int) error { return errNoServer }
