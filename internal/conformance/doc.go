// Package conformance holds one suite of behaviour for every backend, in its test files: leases, commands, files, terminals,
// channels, endpoints, snapshots, cleanup and idleness, wherever they are had from. The suite is written against the
// library's public interface, and looks at a sandbox only with what the library gives. Being in test files it may import the
// library, which nothing below internal may do otherwise.
//
// An ordinary run takes three backends: the embedded one; a toolbox behind a URL; and a control plane that is known by its
// URL and an API key. The last two are emulated, and reached on the roads that real ones are reached on. What a backend
// lacks is in one table, differences, with the reason; cases that need it are skipped there, and nothing in the library
// knows of it. With -v each run says how many cases ran, how many did not because of a difference, and how many sandboxes
// were created:
//
//	go test -v -run 'Embedded|ByURL' ./internal/conformance | grep -E 'cases|sandboxes'
//
// # Against a real toolbox
//
// A toolbox daemon, or one behind a proxy, is enough, without a control plane:
//
//	LEASEHOLD_TOOLBOX_URL=http://127.0.0.1:2280 [LEASEHOLD_TOOLBOX_TOKEN=…] go test -v -timeout 30m -run TestRealToolbox ./internal/conformance
//
// Commands run as the daemon's user, in one directory leasehold-run-<uuid> below the daemon's working directory, and some
// make a directory /tmp/writable-<random>. These are removed at the end, but not by a run that is killed, which Go does
// without a -timeout after ten minutes: then they stay, and so may terminals, until the daemon ends. The library's records
// of commands always stay, since other hosts may have theirs beside them: in .leasehold-<uid> below $TMPDIR or /tmp, and
// .leasehold-<uid>-* in /dev/shm. Those of commands that have ended are empty, and go by their age when a host runs commands
// there later.
//
// # Against a real control plane
//
// Sandboxes cost money there, so that it is asked for twice, and -v is needed: the first lines say how many sandboxes are
// created at most, how many at a time, and how long they could last. Without a -timeout Go ends a run after ten minutes,
// and nothing is cleaned up then.
//
//	LEASEHOLD_REAL=1 DAYTONA_API_URL=… DAYTONA_API_KEY=… go test -v -timeout 60m -run TestRealControlPlane ./internal/conformance
//
// Most cases share one sandbox; some twenty have one of their own, most for seconds. -parallel bounds how many there are at a
// time. Every sandbox has the labels leasehold-tenant=leasehold and leasehold-environment=conformance, and a lifetime of half
// an hour, after which the provider destroys it whatever became of the run. Each is on a durable list before it is asked for,
// in LEASEHOLD_CONFORMANCE_DIR, or else leasehold-conformance in the user's cache directory, below the fingerprint of the URL
// and the key, and snapshots, which have no lifetime, beside it. The end of a run, passed or failed, destroys what is left of
// it. What a run that was killed has left is destroyed by the next of the same URL and key, once the killed one has been
// silent for five minutes, and a snapshot that may still appear half an hour after it was asked for; or without a run by
//
//	LEASEHOLD_REAL=1 DAYTONA_API_URL=… DAYTONA_API_KEY=… go test -v -run TestSweepRealControlPlane ./internal/conformance
//
// Some control planes lack what others have. LEASEHOLD_LACKS says what, with commas between, and what needs that is skipped
// as another difference, with its reason in the same table:
//
//	lifetimes	the server is older than v0.205, and ignores them. The provider then stops a sandbox that was left alone
//			after 15 idle minutes, and deletes it half an hour later, unless it was stopped to be kept; what is left
//			after a killed run the next one destroys, and nothing else does for certain
//	previews	their addresses are http, as those of a server of one's own may be: the library takes https alone
//
// LEASEHOLD_LONG=1 adds what takes long, a file of 1 GiB above all. With LEASEHOLD_REQUIRE_ALL=1 a case that is skipped for
// anything but a difference fails: endpoints need python3 in the sandbox, for a service to reach.
package conformance
