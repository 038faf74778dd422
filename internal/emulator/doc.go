// Package emulator is an embedded Daytona: a control plane, a toolbox proxy and a preview proxy over real HTTP and
// WebSocket, behind which every sandbox is a directory tree and real processes of the current user. It is for
// development and tests and is no security boundary.
//
// # Addresses
//
// One server carries everything, on a loopback listener or, with [Options].InMemory, on in-memory connections:
//
//	/api/...                       the control plane ([Server.URL])
//	/toolbox/{id}/...              the toolbox proxy (a sandbox's toolboxProxyUrl is the part before the id)
//	/preview/{port}-{id}/...       the preview proxy: to that port of this host; the prefix is removed
//	/preview/{port}-{token}/...    the same by a signed token
//	/snapshots/{id}/build-logs     the proxy's stream of a build's log
//	Host: {port}-{id or token}.…   the preview proxy again, by host name, as the production system does it
//
// Preview URLs are of the path form, because the names below "localhost" do not resolve on every system;
// [Options].PreviewDomain chooses the host form. A preview request presents the token of the preview-url reply in the
// header x-daytona-preview-token or the query parameter DAYTONA_SANDBOX_AUTH_KEY; both are removed before it goes on.
//
// # Faithfulness
//
// The model is the API, proxy and daemon v0.190, with the lifetimes (ttlMinutes, autoDestroyAt) of v0.205 unless
// [Options].Legacy. The awkward parts are kept, because clients must survive them: a creation is held up to 30 s and
// then answered with the state it was inserted with; it fails without naming the sandbox it leaves behind; a deletion
// renames; a stop, start or delete answers 409 while another change is pending; the proxy says 401 of a sandbox that it
// does not know; auto-stop looks only at requests, never at processes; a new SSH access revokes the one before; while a
// snapshot is made of a sandbox nothing in it answers; the read of a snapshot takes a name, the deletion an id only; the
// log of a build is refused until a runner builds.
//
// Chosen where the production behaviour is not known: an image-backed creation is answered at once (pending_build) and
// never held; recover is held like start; the proxy refuses requests (400) from the moment a stop is accepted, and
// requests in flight then end as if the daemon had died (502 with an empty body, or a dropped connection); an
// unauthenticated preview request is a plain 401 in the path form, where there is no domain to come back to, and leads to
// a login page in the host form; a captured snapshot appears when the capture has ended; builds run nothing, and their
// log has a line for each instruction; a start that fails is answered like a creation that fails (400), not with the state.
//
// Left out, so that tests need not wait or count on chance: the proxy asks for each request whether its key is valid, and
// remembers no answer (production: 2 min a valid one, 5 s another); no deletion loses a race to another change ("Sandbox was
// modified by another operation", 409); processes go on while their sandbox's files are captured, unanswered. Left out, too,
// is what the library never asks for: resize, pause, fork (and so the refusal to delete what has forks, 400), backup, network
// settings, volumes and push access of the control plane; git, lsp, port, computer-use and code-run of the toolbox. They are
// answered as unknown paths are (404). A start that lasts too long fails as in production, but never leaves a sandbox
// recoverable, which takes a backup there.
//
// # Time
//
// All waiting goes through package time, no process is started before the first request reaches a toolbox, and
// in-memory connections block on condition variables: so the control plane runs in a testing/synctest bubble.
package emulator
