package leasehold

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
	"github.com/leasehold-go/leasehold/internal/emulator"
)

// secretWords stand in every error body of the matrix: provider text, which must not come back out.
const secretWords = "secret words of the provider"

// mischief is one column of the matrix: a fault of the emulator, or something that the host does meanwhile.
type mischief struct {
	name  string
	fault emulator.Fault
	host  func(cancel context.CancelCauseFunc, p *provider) // if set, called when the request arrives
}

// mischiefs are every action of the fault plan with what its parameters make of it, and what a host may do. Where requests
// take real time, so do the waits.
func mischiefs(real bool) []mischief {
	var list []mischief
	add := func(f emulator.Fault, details ...any) {
		list = append(list, mischief{name: strings.TrimSpace(fmt.Sprintln(append([]any{f.Action}, details...)...)), fault: f})
	}
	status := func(action emulator.Action, code int, body, retryAfter string) {
		f := emulator.Fault{Action: action, Status: code, Body: body}
		details := []any{code}
		if strings.HasPrefix(body, "{") {
			details = append(details, "structured")
		}
		if retryAfter != "" {
			f.Header = http.Header{"Retry-After": {retryAfter}}
			details = append(details, "after", retryAfter)
		}
		add(f, details...)
	}
	status(emulator.StatusBefore, 204, "", "")
	status(emulator.StatusBefore, 302, "", "")
	status(emulator.StatusBefore, 400, structured(400, secretWords), "")
	status(emulator.StatusBefore, 400, secretWords, "")
	status(emulator.StatusBefore, 401, structured(401, "Invalid credentials"), "")
	status(emulator.StatusBefore, 200, `{"hello":"`+secretWords+`"}`, "")
	status(emulator.StatusBefore, 403, "<html>"+secretWords, "")
	status(emulator.StatusBefore, 408, structured(408, secretWords), "")
	status(emulator.StatusBefore, 503, "", "2")
	status(emulator.StatusBefore, 429, structured(429, secretWords), "3600")
	for _, action := range []emulator.Action{emulator.StatusBefore, emulator.StatusAfter} {
		status(action, 200, "<html>"+secretWords, "")
		status(action, 404, "<html>"+secretWords, "")
		status(action, 404, structured(404, secretWords), "")
		status(action, 409, structured(409, "Sandbox state change in progress"), "")
		status(action, 410, structured(410, "gone: "+secretWords), "")
		status(action, 429, structured(429, secretWords), "1")
		status(action, 500, structured(500, secretWords), "")
		status(action, 502, "", "")
		status(action, 504, "<html>"+secretWords, "")
	}
	for _, merge := range []string{
		`{"state":"hibernating","future":{"a":[1]}}`, `{"state":null}`, `{"id":"another"}`, `{"id":"../another"}`, `{"name":"another"}`, `{"labels":{}}`, `{"labels":null}`,
		`{"organizationId":"another"}`, `{"organizationId":null}`, `{"autoDestroyAt":"9999-12-31T23:59:59-23:59"}`, `{"autoDestroyAt":null}`, `{"createdAt":null}`,
		`{"autoDeleteInterval":0}`, `{"toolboxProxyUrl":null}`, `{"toolboxProxyUrl":"http://[::1"}`,
		`{"state":"error","recoverable":false,"errorReason":"` + secretWords + `"}`,
		`{"state":"error","recoverable":true,"errorReason":"` + secretWords + `"}`,
		`{"state":"destroyed"}`, `{"state":"stopped"}`, `{"state":"started"}`,
		`{"result":"` + secretWords + `","exitCode":-1,"files":[]}`,
		`{"url":"http://[::1","token":null}`,
	} {
		add(emulator.Fault{Action: emulator.MergeReply, Body: merge}, merge)
	}
	for _, n := range []int64{0, 10, 700} {
		add(emulator.Fault{Action: emulator.TruncateBody, Bytes: n}, n)
		add(emulator.Fault{Action: emulator.ResetReply, Bytes: n}, n)
		add(emulator.Fault{Action: emulator.ResetUpload, Bytes: n}, n)
	}
	if real {
		add(emulator.Fault{Action: emulator.ResetUpload, Bytes: archive.LargeFile + 1<<20}, "behind a large file")
	}
	for _, n := range []int64{1, 5, 512} {
		add(emulator.Fault{Action: emulator.ReplayPrefix, Bytes: n}, n)
	}
	for _, n := range []int64{-1, 0, 100} {
		add(emulator.Fault{Action: emulator.SilentSocket, Bytes: n}, n)
	}
	for _, code := range []int{0, 1000, 1008, 1011} {
		add(emulator.Fault{Action: emulator.CloseSocket, Code: code, Bytes: 40, Body: secretWords}, code)
	}
	add(emulator.Fault{Action: emulator.CloseSocket, Code: 1000, Body: `{"exitCode":0}`}, "with an exit")
	short, long := time.Second, 12*time.Second // shorter and longer than a call may take
	if real {
		short, long = 20*time.Millisecond, realCallTimeout+200*time.Millisecond
	}
	for _, delay := range []time.Duration{short, long} {
		add(emulator.Fault{Action: emulator.DelayRequest, Delay: delay}, delay)
		add(emulator.Fault{Action: emulator.DropAfter, Delay: delay}, delay)
		add(emulator.Fault{Action: emulator.StallChange, Delay: delay}, delay)
	}
	add(emulator.Fault{Action: emulator.StallChange})
	add(emulator.Fault{Action: emulator.DropBefore})
	add(emulator.Fault{Action: emulator.DropAfter})
	add(emulator.Fault{Action: emulator.Duplicate})
	add(emulator.Fault{Action: emulator.Duplicate, Delay: short / 4}, "meanwhile")
	add(emulator.Fault{Action: emulator.SkewClock, Delay: 24 * time.Hour}, "ahead")
	add(emulator.Fault{Action: emulator.SkewClock, Delay: -24 * time.Hour}, "behind")
	add(emulator.Fault{Action: emulator.StaleList})
	add(emulator.Fault{Action: emulator.StaleList, Delay: time.Hour}, "by an hour")
	add(emulator.Fault{Action: emulator.LoseContainer})
	add(emulator.Fault{Action: emulator.DiskFull})
	add(emulator.Fault{Action: emulator.RunnerFailure, Body: secretWords})
	add(emulator.Fault{Action: emulator.RunnerFailure, Body: secretWords, Code: 200}, "recoverable")
	return append(list,
		mischief{name: "the caller cancels", host: func(cancel context.CancelCauseFunc, _ *provider) { cancel(errHost) }},
		mischief{name: "the caller cancels because another lease is gone", host: func(cancel context.CancelCauseFunc, _ *provider) {
			cancel(&Error{Op: "resume", Kind: KindGone, Reason: ReasonNotFound, Sandbox: "another"})
		}},
		mischief{name: "the provider is closed", host: func(_ context.CancelCauseFunc, p *provider) {
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			go func() { _ = p.Close(ended) }()
		}},
	)
}

// lies reports that the reply at this request is well-formed but untrue, so that believing it is no fault of the library's.
func (m mischief) lies(at string) bool {
	switch m.fault.Action {
	case emulator.MergeReply:
		switch m.fault.Body {
		case `{"state":"stopped"}`: // it runs
			return true
		case `{"id":"another"}`: // it has another id
			return true
		case `{"organizationId":"another"}`: // the list, by which the account is attested, is of this one
			return strings.HasSuffix(at, "/paginated")
		}
	case emulator.StatusAfter: // the creation was not held back by a rate limit: it was done
		return m.fault.Status == 429 && at == creationRoute
	case emulator.StatusBefore: // the session or terminal was not ended, nor what runs there
		return m.fault.Status < 300 && strings.HasPrefix(at, "DELETE /toolbox/")
	}
	return false
}

// creationRoute is the request that creates a sandbox.
const creationRoute = "POST /api/sandbox"

// limits reports that creations are refused by a rate limit, after which they are sent again.
func (m mischief) limits(at, extent string) bool {
	return m.fault.Status == 429 && (at == creationRoute || extent == everywhere)
}

// forges reports that a reply that is not numbered, signed or framed in any way is changed.
func (m mischief) forges() bool {
	switch m.fault.Action {
	case emulator.ReplayPrefix, emulator.MergeReply, emulator.StatusBefore, emulator.StatusAfter, emulator.CloseSocket:
		return true
	}
	return false
}

// meets reports whether a fault does anything to such a request. In virtual time all are tried on all.
func (m mischief) meets(at string) bool {
	method, path, _ := strings.Cut(at, " ")
	api, socket := strings.HasPrefix(path, "/api/"), strings.HasSuffix(path, "/logs") || strings.HasSuffix(path, "/connect") || strings.HasPrefix(path, "/preview/")
	execute := strings.HasSuffix(path, "/execute") || strings.HasSuffix(path, "/bulk-upload")
	switch m.fault.Action {
	case emulator.MergeReply:
		return strings.HasPrefix(m.fault.Body, `{"result"`) && execute || strings.HasPrefix(m.fault.Body, `{"url"`) && strings.HasSuffix(path, "-url") || api && method == "GET"
	case emulator.SkewClock:
		return api
	case emulator.StaleList:
		return strings.HasSuffix(path, "/paginated")
	case emulator.CloseSocket:
		return socket
	case emulator.StallChange, emulator.RunnerFailure:
		return api && method != "GET"
	case emulator.ResetUpload:
		return method == "POST" && m.fault.Bytes <= 700 || strings.HasSuffix(path, "/bulk-upload")
	case emulator.LoseContainer, emulator.DiskFull:
		return !api
	}
	return m.fault.Status != 410 || strings.Contains(path, "/process/")
}

// worthIt reports whether a fault of that extent at that request differs from a shorter one.
func (m mischief) worthIt(extent, at string, real bool) bool {
	if real && !m.meets(at) {
		return false
	}
	switch action := m.fault.Action; extent {
	case "once": // a list that shows what was there when the fault was set is as it should be
		return action != emulator.StaleList || m.fault.Delay > 0
	case "twice": // the client below us repeats reads that meet a connection's end by itself
		return action == emulator.DropBefore || action == emulator.DropAfter || action == emulator.ResetReply
	case "for ever": // what the reply to a change says of the sandbox is not read
		if real && action != emulator.StatusBefore && action != emulator.DropBefore && action != emulator.DropAfter && action != emulator.TruncateBody {
			return false
		}
		return m.host == nil && (strings.HasPrefix(at, "GET ") || action != emulator.MergeReply && action != emulator.SkewClock)
	}
	switch m.fault.Action { // everywhere: an outage
	case emulator.StatusBefore, emulator.DropBefore, emulator.DropAfter, emulator.SilentSocket, emulator.TruncateBody:
		return !real || m.fault.Status == 0 || m.fault.Status == 401 || m.fault.Status == 502
	}
	return false
}

// extents are how long a fault lasts.
var extents = []string{"once", "twice", "for ever", everywhere}

// everywhere is the extent of a fault that strikes all requests from one on.
const everywhere = "for ever, everywhere"

// set makes the fault strike from the request on that is at the position.
func (m mischief) set(w *world, at, extent string) {
	f := m.fault
	switch extent {
	case "once":
		f.Count = 1
	case "twice":
		f.Count = 2
	default:
		f.Count = -1
	}
	if extent != everywhere {
		f.Method, f.Path, _ = strings.Cut(at, " ")
	}
	w.server.SetFaults(f)
}
