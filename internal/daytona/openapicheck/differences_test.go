package openapicheck

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// replyWithSandbox are the operations whose reply is a sandbox, the nulls of absent values included. That of a
// creation omits them.
var replyWithSandbox = []string{
	"GET /sandbox/{sandboxIdOrName}",
	"DELETE /sandbox/{sandboxIdOrName}",
	"POST /sandbox/{sandboxIdOrName}/start",
	"POST /sandbox/{sandboxIdOrName}/stop",
	"POST /sandbox/{sandboxIdOrName}/archive",
	"POST /sandbox/{sandboxIdOrName}/recover",
	"POST /sandbox/{sandboxIdOrName}/public/{isPublic}",
	"POST /sandbox/{sandboxIdOrName}/autostop/{interval}",
	"POST /sandbox/{sandboxIdOrName}/autoarchive/{interval}",
	"POST /sandbox/{sandboxIdOrName}/autodelete/{interval}",
	"POST /sandbox/{sandboxIdOrName}/snapshot",
	"DELETE /sandbox/{sandboxIdOrName}/ssh-access",
}

// withLifetime are those that were made with a sandbox that has a lifetime.
var withLifetime = []string{
	"POST /sandbox",
	"GET /sandbox/{sandboxIdOrName}",
	"DELETE /sandbox/{sandboxIdOrName}",
	"POST /sandbox/{sandboxIdOrName}/start",
	"POST /sandbox/{sandboxIdOrName}/stop",
	"POST /sandbox/{sandboxIdOrName}/archive",
	"POST /sandbox/{sandboxIdOrName}/recover",
	"POST /sandbox/{sandboxIdOrName}/autodelete/{interval}",
	"POST /sandbox/{sandboxIdOrName}/snapshot",
	"DELETE /sandbox/{sandboxIdOrName}/ssh-access",
}

// differences are all the ways in which the emulator is not as the documents say.
var differences = []difference{
	// The control plane: requests.
	{document: control, kind: Parameter, at: "X-Daytona-Source", source: clients,
		why: "every client names itself in a header that no operation documents"},
	{document: control, kind: Parameter, at: "X-Daytona-Sdk-Version", source: clients,
		why: "the SDK sends its version in a header that no operation documents"},
	{document: control, operations: []string{"POST /sandbox"}, status: 200, kind: RequestBody, at: "/ttlMinutes", source: v205,
		why: "the lifetime of a new sandbox is newer than the document; an older server ignores it"},

	// The control plane: what it serves beyond the document.
	{document: control, operations: []string{"POST /sandbox/{sandboxIdOrName}/ttl/{ttlMinutes}"}, status: 200, kind: Operation,
		instead: member("autoDestroyAt"), source: v205, why: "the operation is newer than the document"},
	{document: control, operations: []string{"GET /nothing"}, status: 404, kind: Operation,
		instead: apiError, source: measured, why: "an unknown path is refused in the shape of all errors"},
	{document: control, operations: []string{"GET /sandbox"}, status: 200, kind: Parameter, at: "limit", source: v190,
		why: "the list became one with a cursor and a limit"},
	{document: control, operations: []string{"GET /sandbox"}, status: 200, kind: ResponseBody, instead: cursorList, source: v190,
		why: "the reply was an array of sandboxes, and became a page of shorter items"},

	// The control plane: replies.
	{document: control, operations: withLifetime, status: 200, kind: ResponseBody, at: "/autoDestroyAt", source: v205,
		why: "the end of a sandbox's lifetime is newer than the document"},
	{document: control, operations: append([]string{"POST /sandbox"}, replyWithSandbox...), status: 200, kind: ResponseBody,
		at: "/sandboxClass", source: v190, why: "the field took the place of class"},
	{document: control, operations: replyWithSandbox, status: 200, kind: ResponseBody, at: "/domainAllowList", source: measured,
		why: "the field is newer than the document; absent it is null"},
	{document: control, operations: replyWithSandbox, status: 200, kind: ResponseBody, at: "/networkAllowList", source: measured,
		why: "an absent list is null, and the document does not say that it may be"},
	{document: control, operations: replyWithSandbox, status: 200, kind: ResponseBody, at: "/errorReason", source: measured,
		why: "an absent reason is null, and the document does not say that it may be"},
	{document: control, operations: []string{"GET /sandbox/paginated"}, status: 200, kind: ResponseBody, at: "/items/*/autoDestroyAt",
		source: v205, why: "as in a sandbox alone"},
	{document: control, operations: []string{"GET /sandbox/paginated"}, status: 200, kind: ResponseBody, at: "/items/*/sandboxClass",
		source: v190, why: "as in a sandbox alone"},
	{document: control, operations: []string{"GET /sandbox/paginated"}, status: 200, kind: ResponseBody, at: "/items/*/domainAllowList",
		source: measured, why: "as in a sandbox alone"},
	{document: control, operations: []string{"GET /sandbox/paginated"}, status: 200, kind: ResponseBody, at: "/items/*/networkAllowList",
		source: measured, why: "as in a sandbox alone"},
	{document: control, operations: []string{"GET /sandbox/paginated"}, status: 200, kind: ResponseBody, at: "/items/*/errorReason",
		source: measured, why: "as in a sandbox alone"},
	{document: control, operations: []string{"GET /sandbox/{sandboxIdOrName}/build-logs"}, status: 200, kind: ResponseBody,
		instead: plainText, source: clients, why: "the document declares no body; the SDK reads lines of text"},
	{document: control, operations: []string{"GET /snapshots/{id}/build-logs"}, status: 200, kind: ResponseBody,
		instead: plainText, source: clients, why: "the document declares no body; the SDK reads lines of text"},
	{document: control, operations: []string{"GET /health"}, status: 200, kind: ResponseBody,
		instead: object("status", "version"), source: chosen, why: "the document declares no body"},

	// The control plane: refusals. The document declares none for any operation.
	{document: control, status: 401, kind: Status, instead: apiError, source: measured, why: "no key, or a wrong one", operations: []string{
		"POST /sandbox", "GET /sandbox/paginated", "GET /sandbox/{sandboxIdOrName}", "DELETE /sandbox/{sandboxIdOrName}",
	}},
	{document: control, status: 404, kind: Status, instead: apiError, source: measured, why: "no such sandbox, region or token", operations: []string{
		"POST /sandbox",
		"GET /sandbox/{sandboxIdOrName}",
		"DELETE /sandbox/{sandboxIdOrName}",
		"POST /sandbox/{sandboxIdOrName}/start",
		"POST /sandbox/{sandboxIdOrName}/stop",
		"POST /sandbox/{sandboxIdOrName}/archive",
		"POST /sandbox/{sandboxIdOrName}/recover",
		"POST /sandbox/{sandboxIdOrName}/autodelete/{interval}",
		"PUT /sandbox/{sandboxIdOrName}/labels",
		"POST /sandbox/{sandboxId}/last-activity",
		"GET /sandbox/{sandboxId}/toolbox-proxy-url",
		"GET /sandbox/{sandboxIdOrName}/ports/{port}/preview-url",
		"POST /sandbox/{sandboxIdOrName}/ports/{port}/signed-preview-url/{token}/expire",
	}},
	{document: control, status: 404, kind: Status, instead: apiError, source: read, why: "no such sandbox or snapshot", operations: []string{
		"POST /sandbox/{sandboxIdOrName}/ssh-access", "DELETE /sandbox/{sandboxIdOrName}/ssh-access", "DELETE /snapshots/{id}",
	}},
	{document: control, status: 400, kind: Status, instead: either(apiError, apiSyntax), source: measured,
		why: "a body that is no JSON, in three fields; or one that is wrong", operations: []string{
			"POST /sandbox", "PUT /sandbox/{sandboxIdOrName}/labels",
		}},
	{document: control, status: 400, kind: Status, instead: apiError, source: measured, why: "wrong parameters, or a wrong state", operations: []string{
		"GET /sandbox",
		"GET /sandbox/paginated",
		"POST /sandbox/{sandboxIdOrName}/start",
		"POST /sandbox/{sandboxIdOrName}/stop",
		"POST /sandbox/{sandboxIdOrName}/recover",
		"POST /sandbox/{sandboxIdOrName}/autostop/{interval}",
		"POST /sandbox/{sandboxIdOrName}/autoarchive/{interval}",
		"GET /sandbox/{sandboxIdOrName}/ports/{port}/preview-url",
		"GET /sandbox/{sandboxIdOrName}/ports/{port}/signed-preview-url",
	}},
	{document: control, status: 409, kind: Status, instead: apiError, source: measured, why: "the name is taken, or a state change is pending", operations: []string{
		"POST /sandbox", "DELETE /sandbox/{sandboxIdOrName}", "POST /sandbox/{sandboxIdOrName}/start", "POST /sandbox/{sandboxIdOrName}/stop",
	}},
	{document: control, status: 403, kind: Status, instead: apiError, source: read, why: "the organisation is suspended", operations: []string{
		"POST /sandbox",
	}},
	{document: control, operations: []string{"GET /snapshots/{id}"}, status: 404, kind: ResponseBody, instead: apiError, source: read,
		why: "the document knows the status, and declares no body"},
	{document: control, operations: []string{"POST /snapshots"}, status: 400, kind: ResponseBody, instead: either(apiError, apiSyntax), source: read,
		why: "the document knows the status, and declares no body"},
	{document: control, status: 400, kind: Status, instead: apiError, source: read, why: "wrong parameters, or an id that is none", operations: []string{
		"POST /sandbox/{sandboxIdOrName}/ssh-access", "POST /sandbox/{sandboxIdOrName}/snapshot", "DELETE /snapshots/{id}",
	}},
	{document: control, status: 409, kind: Status, instead: apiError, source: read, why: "the name is taken", operations: []string{
		"POST /snapshots", "POST /sandbox/{sandboxIdOrName}/snapshot",
	}},
	{document: control, operations: []string{"DELETE /snapshots/{id}"}, status: 403, kind: Status, instead: apiError, source: read,
		why: "the snapshot is the provider's, for everybody"},
	{document: control, status: 429, kind: Status, instead: apiError, source: read, why: "too many requests", operations: []string{
		"POST /sandbox", "GET /sandbox/{sandboxIdOrName}",
	}},

	// The toolbox: requests.
	{document: toolbox, kind: Parameter, at: "X-Daytona-Source", source: clients,
		why: "every client names itself in a header that no operation documents"},
	{document: toolbox, kind: Parameter, at: "X-Daytona-Sdk-Version", source: clients,
		why: "the SDK sends its version in a header that no operation documents; the daemon chooses the form of logs by it"},
	{document: toolbox, kind: Parameter, at: "X-Daytona-Split-Output", source: measured,
		operations: []string{"GET /process/session/{sessionId}/command/{commandId}/logs"},
		why:        "the header chooses the form of logs, and is not documented"},
	{document: toolbox, operations: []string{"POST /files/bulk-upload"}, status: 200, kind: RequestBody, source: measured,
		why: "the document declares no body: neither the form nor its fields files[i].path and files[i].file"},

	// The toolbox: what it serves beyond the document.
	{document: toolbox, operations: []string{"GET /project-dir"}, status: 200, kind: Operation, instead: object("dir"), source: measured,
		why: "the older name of /work-dir still answers"},
	{document: toolbox, operations: []string{"GET /nothing"}, status: 404, kind: Operation, instead: plainText, source: read,
		why: "an unknown path is refused in the words of the daemon's router"},
	{document: toolbox, operations: []string{"GET /process/session/{sessionId}/command/{commandId}/logs"}, status: 101, kind: Status, source: measured,
		why: "the document mentions the WebSocket in words, but not its status"},

	// The toolbox: replies.
	{document: toolbox, operations: []string{"POST /files/upload"}, status: 200, kind: ResponseBody, instead: nothingElse, source: measured,
		why: "the document declares an object, and there is no body"},
	{document: toolbox, operations: []string{"POST /files/bulk-upload"}, status: 200, kind: ResponseBody, instead: object("files"), source: measured,
		why: "the document declares no body, and there is the list of what was written"},
	{document: toolbox, operations: []string{"POST /files/bulk-download"}, status: 200, kind: ResponseBody, at: "/file", source: measured,
		why: "the document declares a form of objects; the parts are files"},
	{document: toolbox, operations: []string{"POST /files/bulk-download"}, status: 200, kind: ResponseBody, at: "/error", source: measured,
		why: "the document declares a form of objects; the part is an error in JSON"},
	{document: toolbox, operations: []string{"GET /files/download"}, status: 206, kind: Status, instead: partial, source: measured,
		why: "ranges work, and are not documented"},
	{document: toolbox, operations: []string{"GET /process/session/{sessionId}/command/{commandId}/logs"}, status: 200, kind: ResponseBody,
		instead: plainText, source: measured, why: "for clients that are old or unknown the log is text, which the document gives the schema of an object"},
	{document: toolbox, operations: []string{"POST /process/session/{sessionId}/exec"}, status: 202, kind: ResponseBody, at: "/exitCode",
		source: measured, why: "what is not known yet is null"},
	{document: toolbox, operations: []string{"POST /process/session/{sessionId}/exec"}, status: 202, kind: ResponseBody, at: "/output",
		source: measured, why: "what is not known yet is null"},
	{document: toolbox, operations: []string{"POST /process/session/{sessionId}/exec"}, status: 202, kind: ResponseBody, at: "/stdout",
		source: measured, why: "what is not known yet is null"},
	{document: toolbox, operations: []string{"POST /process/session/{sessionId}/exec"}, status: 202, kind: ResponseBody, at: "/stderr",
		source: measured, why: "what is not known yet is null"},
	{document: toolbox, operations: []string{"DELETE /process/pty/{sessionId}"}, status: 200, kind: ResponseBody, at: "/message", source: measured,
		why: "the document declares a map of objects, and the one member is a text; the SDK fails on it"},

	// The toolbox: refusals. The document declares none for the operations below.
	{document: toolbox, operations: []string{"GET /version"}, status: 401, kind: Status, instead: daemonError, source: measured,
		why: "the proxy refuses a wrong key, and a sandbox that it does not know"},
	{document: toolbox, operations: []string{"GET /version"}, status: 400, kind: Status, instead: daemonError, source: measured,
		why: "the proxy refuses when the sandbox does not run"},
	{document: toolbox, operations: []string{"GET /version"}, status: 404, kind: Status, instead: daemonError, source: read,
		why: "the proxy refuses when the container is gone"},
	{document: toolbox, status: 400, kind: Status, instead: daemonError, source: measured, why: "a wrong request", operations: []string{
		"POST /process/execute", "POST /process/session", "POST /process/session/{sessionId}/command/{commandId}/input",
	}},
	{document: toolbox, operations: []string{"POST /process/session/{sessionId}/exec"}, status: 400, kind: Status,
		instead: either(nothingElse, daemonError), source: measured, why: "a blank command, without body; or a body that is no JSON"},
	{document: toolbox, operations: []string{"POST /process/execute"}, status: 408, kind: Status, instead: daemonError, source: measured,
		why: "the command ran out of time"},
	{document: toolbox, status: 404, kind: Status, instead: daemonError, source: measured, why: "no such session or command", operations: []string{
		"GET /process/session/{sessionId}",
		"DELETE /process/session/{sessionId}",
		"GET /process/session/{sessionId}/command/{commandId}",
		"GET /process/session/{sessionId}/command/{commandId}/logs",
		"POST /process/session/{sessionId}/command/{commandId}/input",
	}},
	{document: toolbox, operations: []string{"POST /process/session"}, status: 409, kind: Status, instead: daemonError, source: measured,
		why: "the session exists"},
	{document: toolbox, operations: []string{"POST /process/session/{sessionId}/command/{commandId}/input"}, status: 410, kind: Status,
		instead: daemonError, source: measured, why: "the command has ended"},
	{document: toolbox, operations: []string{"POST /process/session/{sessionId}/exec"}, status: 500, kind: Status, instead: daemonUnknown,
		source: measured, why: "every failure is a 500, an unknown session included"},
	{document: toolbox, status: 400, kind: Status, instead: nothingElse, source: measured, why: "file operations refuse without a body", operations: []string{
		"DELETE /files",
		"GET /files/info",
		"GET /files/download",
		"GET /files/search",
		"GET /files/find",
		"POST /files/folder",
		"POST /files/permissions",
		"POST /files/move",
		"POST /files/replace",
		"POST /files/upload",
	}},
	{document: toolbox, operations: []string{"POST /files/bulk-download"}, status: 400, kind: Status, instead: object("error"), source: read,
		why: "no paths; unlike the other file operations it says so"},
	{document: toolbox, operations: []string{"POST /files/bulk-upload"}, status: 400, kind: Status, instead: object("errors", "files"),
		source: measured, why: "a bulk upload says what went wrong, and what it has written"},
	{document: toolbox, status: 404, kind: Status, instead: nothingElse, source: measured, why: "no such file, without a body", operations: []string{
		"GET /files", "DELETE /files", "GET /files/info", "GET /files/download", "POST /files/permissions", "POST /files/move",
	}},
	{document: toolbox, operations: []string{"POST /files/move"}, status: 409, kind: Status, instead: nothingElse, source: measured,
		why: "the destination exists"},
	{document: toolbox, operations: []string{"GET /files/download"}, status: 416, kind: Status, instead: plainText, source: read,
		why: "the range is beyond the file, in the words of Go's file server"},
	{document: toolbox, status: 400, kind: Status, instead: ptyError, source: measured, why: "a wrong request for a terminal", operations: []string{
		"POST /process/pty", "POST /process/pty/{sessionId}/resize",
	}},
	{document: toolbox, status: 404, kind: Status, instead: ptyError, source: measured, why: "no such terminal", operations: []string{
		"GET /process/pty/{sessionId}", "DELETE /process/pty/{sessionId}",
	}},
	{document: toolbox, operations: []string{"POST /process/pty"}, status: 409, kind: Status, instead: ptyError, source: measured,
		why: "the terminal exists"},
	{document: toolbox, operations: []string{"POST /process/pty/{sessionId}/resize"}, status: 410, kind: Status, instead: ptyError, source: measured,
		why: "the terminal has ended"},
	{document: toolbox, operations: []string{"POST /process/pty"}, status: 500, kind: Status, instead: ptyError, source: measured,
		why: "the terminal's shell could not be started"},
}

// cursorList demands a page of the cursor list of v0.190: each item has members of its schema SandboxListItem, and
// those that it requires. The end of a lifetime is of v0.205.
func cursorList(e *Exchange) error {
	required := []string{
		"cpu", "disk", "gpu", "id", "labels", "memory", "name", "organizationId", "public", "target", "toolboxProxyUrl", "user",
	}
	known := append(slices.Clone(required), "runnerId", "sandboxClass", "state", "desiredState", "snapshot", "errorReason", "recoverable",
		"gpuType", "backupState", "autoStopInterval", "autoArchiveInterval", "autoDeleteInterval", "createdAt", "updatedAt",
		"lastActivityAt", "daemonVersion", "autoDestroyAt")
	if err := object("items", "nextCursor")(e); err != nil {
		return err
	}
	var page struct{ Items []map[string]any }
	if err := json.Unmarshal(e.ReplyBody, &page); err != nil {
		return err
	}
	for _, item := range page.Items {
		for _, name := range required {
			if _, found := item[name]; !found {
				return fmt.Errorf("no %s in an item", name)
			}
		}
		for name := range item {
			if !slices.Contains(known, name) {
				return fmt.Errorf("%s in an item", name)
			}
		}
	}
	return nil
}

// member demands a JSON object with a member, among others.
func member(name string) func(*Exchange) error {
	return func(e *Exchange) error {
		var have map[string]any
		if err := json.Unmarshal(e.ReplyBody, &have); err != nil {
			return fmt.Errorf("body %s: %w", short(e.ReplyBody), err)
		}
		if _, found := have[name]; !found {
			return fmt.Errorf("no %s in %s", name, short(e.ReplyBody))
		}
		return nil
	}
}

func plainText(e *Exchange) error {
	if kind := e.Reply.Get("Content-Type"); !strings.HasPrefix(kind, "text/plain") {
		return fmt.Errorf("content type %q, want text", kind)
	}
	return nil
}

// partial demands the part of a file.
func partial(e *Exchange) error {
	if kind := e.Reply.Get("Content-Type"); kind != "application/octet-stream" || e.Reply.Get("Content-Range") == "" {
		return fmt.Errorf("content type %q and range %q, want bytes with a range", kind, e.Reply.Get("Content-Range"))
	}
	return nil
}
