//go:build !linux && !darwin && !freebsd

package archive

import "os"

// freeSpace does not know.
func freeSpace(*os.Root) (int64, bool) { return 0, false }
