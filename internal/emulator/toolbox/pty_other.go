//go:build !unix

package toolbox

import (
	"errors"
	"os"
	"os/exec"

	"github.com/leasehold-go/leasehold/internal/emulator/proc"
)

// startOnTerminal fails: this system has no terminals of this kind.
func startOnTerminal(*proc.Group, *exec.Cmd, uint16, uint16) (*os.File, error) {
	return nil, errors.ErrUnsupported
}

func resizeTerminal(*os.File, uint16, uint16) error { return errors.ErrUnsupported }
