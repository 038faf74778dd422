//go:build !unix

package emulator

// lockDir does nothing where there is no advisory lock.
func lockDir(string) (unlock func(), err error) { return func() {}, nil }
