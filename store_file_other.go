//go:build (!unix && !windows) || solaris || illumos || aix

package leasehold

import (
	"errors"
	"os"
)

const openFileOnly = 0

// tryLock fails: there is no lock here that ends with the process.
func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

func syncDir(string) error { return nil }
