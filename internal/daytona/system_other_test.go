//go:build !unix

package daytona

// processesWork: the emulator can start processes on this system.
const processesWork = false
