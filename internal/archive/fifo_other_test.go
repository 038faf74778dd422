//go:build !unix

package archive

import "errors"

func makeFIFO(string) error { return errors.ErrUnsupported }
