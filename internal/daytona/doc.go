// Package daytona is the only package that talks to Daytona: to the control plane (sandboxes) and, through its toolbox
// proxy, to the daemon inside each sandbox. It speaks for one credential and knows nothing of leases: one method is one
// request, nothing is retried, nothing waits for a state, and every call is bounded by its context alone.
//
// Every request but a caller's own, which Preview and DialSocket carry, goes through one transport, which adds the
// credential, counts bytes, keeps the status, Retry-After and shape of an error reply, and proves whether a request was
// dispatched. All methods return errors as [*Error], whose text never contains a provider's words. [Config.Observe] sees every call. No environment variable has an influence here, except the usual
// HTTPS_PROXY, HTTP_PROXY and NO_PROXY when [Config.Transport] is nil.
//
// The SDK's own client is never made: it takes no http.Client, so that its requests could neither go through that transport
// nor outlast its 60 s, and it takes what it was not told from the environment. What needs it, which is all of the control
// plane, is out of reach for that alone; services for a toolbox can be had without it. Which client carries a call, and why:
//
//	call                       | carried by       | why
//	---------------------------+------------------+------------------------------------------------------------------
//	Create,                    | generated client | the SDK hides labels, error reason and expiry, polls inside Create,
//	CredentialOrganization     |                  | loses the id when that fails, and cannot take an http.Client. The
//	                           |                  | reply is decoded here: the model demands 14 fields, and replaces
//	                           |                  | unknown states by a number
//	Get                        | plain HTTP       | for the same reasons, and because it is what waiting consists of: the
//	                           |                  | model decodes each reply three times
//	Start, Stop, Recover       | generated client | the SDK's Start and Stop wait, poll every 100 ms, and give up on one
//	                           |                  | lost poll; it has no Recover
//	Archive                    | generated client | the SDK reads the sandbox once more, and fails if that does
//	Delete, SetAutoDelete      | generated client | the SDK's client alone: its calls are one request, too, and keep the
//	                           |                  | server's message
//	PreviewURL, SignPreview,   | generated client | the SDK loses the server's message and takes any answer
//	ExpirePreview              |                  |
//	Preview, DialSocket        | plain HTTP,      | the SDK sends nothing through a preview. They go out without the
//	                           | websocket        | API's credential
//	CreateSSH, RevokeSSH       | generated client | the SDK has neither
//	CreateSnapshot             | generated client | the SDK polls in a goroutine of its own, turns lines of log into a
//	                           |                  | channel, cuts the log off when the build ends, and cannot name a
//	                           |                  | region. Its build contexts (S3) are left out
//	Capture                    | generated client | the SDK's waits for the sandbox, and takes its return for a success
//	GetSnapshot,               | generated client | the SDK loses the server's message; the reply is decoded here, since
//	DeleteSnapshot             |                  | its model demands 14 fields, too
//	BuildLogURL                | generated client | the SDK uses the deprecated call that it replaces
//	BuildLog                   | plain HTTP       | the SDK's reader is not exported, and cut off by the 60 s of its client
//	CreateSession,             | SDK              | right as they are
//	DeleteSession              |                  |
//	StartCommand, Command      | generated client | the SDK panics on a successful answer that is empty
//	SessionCommands            | generated client | the SDK turns the session into an untyped map
//	Execute                    | plain HTTP       | the SDK cuts the timeout to whole seconds and reports a missing exit
//	                           |                  | code as 0; the model decodes each reply three times
//	Logs                       | plain HTTP       | with the SDK's version header the daemon answers JSON, which damages
//	                           |                  | invalid UTF-8 and multiplies the memory; both clients read it whole
//	Upload                     | plain HTTP       | both clients hold files in memory and refuse empty ones; the
//	                           |                  | generated bulk call has no file parameter
//	Download, ReadFile         | plain HTTP       | both clients read files whole through temporary files which they
//	                           |                  | leave behind; neither knows Range; the multipart reply of the bulk
//	                           |                  | call is declared as a JSON map
//	CreatePTY, DescribePTY,    | generated client | the SDK cannot name a directory, leaves the envs out of a description
//	ResizePTY, DeletePTY       |                  | (they are decoded here), and reports every successful deletion as an
//	                           |                  | error
//	Follow                     | websocket        | the SDK's reader ignores the context, withholds the last two bytes,
//	                           |                  | drops bytes before the first marker and does not escape ids
//	ConnectPTY                 | websocket        | the SDK loses non-zero exit codes, panics on concurrent input, and
//	                           |                  | takes an empty close reason for exit code 0
//
// Versions: sdk-go and api-client-go v0.170.0; toolbox-api-client-go v0.190.0, whose models accept fields they do not
// know. No call above depends on that, since answers are decoded here, or not looked at. The protocol facts in this
// package were measured against daemon and API v0.190.0.
package daytona
