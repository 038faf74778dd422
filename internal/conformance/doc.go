// Package conformance holds one suite of behaviour for every backend, in its test files: what a command must do wherever
// it runs. The suite is written against the library's public interface. Being in test files it may import the library,
// which nothing below internal may do otherwise.
//
// It runs against the embedded backend, and against an emulated toolbox behind a stand-in for the control plane. The same
// cases run against real ones:
//
//	LEASEHOLD_TOOLBOX_URL=http://127.0.0.1:2280 [LEASEHOLD_TOOLBOX_TOKEN=...]   a toolbox daemon, or one behind a proxy
//	LEASEHOLD_REAL=1 DAYTONA_API_URL=... DAYTONA_API_KEY=...                    a control plane, on which sandboxes cost money
//
// Commands run as the daemon's user in its working directory. Every sandbox that the suite creates has a lifetime of half
// an hour, and is destroyed at the end.
package conformance
