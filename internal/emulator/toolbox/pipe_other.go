//go:build !unix

package toolbox

import (
	"errors"
	"os"
)

// Without processes there are no pipes to them.

func makePipe(string) error { return errors.ErrUnsupported }

func openPipe(string, int) (*os.File, error) { return nil, errors.ErrUnsupported }
