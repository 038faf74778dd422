package leasehold

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// DefaultBuildTimeout bounds [Snapshots.Build].
const DefaultBuildTimeout = 30 * time.Minute

// Snapshots makes the templates that sandboxes are created from ([Config.Snapshot]), and deletes those that it made. It is
// safe for concurrent use.
type Snapshots struct{ p *provider }

// NewSnapshots returns the snapshots of the provider's account. It sends nothing. It fails with [ErrInvalid] if the provider
// is not of this package.
func NewSnapshots(p Provider) (*Snapshots, error) {
	own, ok := p.(*provider)
	if !ok {
		var bad problems
		bad.add("p", "is not of this package")
		return nil, bad.err("configure snapshots")
	}
	return &Snapshots{own}, nil
}

// snapshotRefVersion is the version of [SnapshotRef] that this package writes and reads.
const snapshotRefVersion = 1

// SnapshotRef names one snapshot, from before its creation is sent. It is a plain value without secrets: store its JSON
// form. The name is unique, so that whatever is found under it came from this reference, and from nobody else.
type SnapshotRef struct {
	Version    int    `json:"version"`
	Name       string `json:"name"`              // of the snapshot, for Config.Snapshot
	ID         string `json:"id,omitempty"`      // the provider's, once it was seen
	Account    string `json:"account,omitempty"` // fingerprint of endpoint and organisation, once the API attested it
	Credential string `json:"credential"`        // fingerprint of endpoint and credential
}

// ParseSnapshotRef decodes a stored reference and validates every field. Unknown fields are ignored. It fails with
// [ErrInvalid].
func ParseSnapshotRef(data []byte) (SnapshotRef, error) {
	return parse[SnapshotRef]("parse snapshot", "SnapshotRef", data)
}

// snapshotNameForm is what [Snapshots.Plan] makes of a label: the label, a hyphen, and 16 hexadecimal digits.
var snapshotNameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]{0,77}[a-z0-9])?-[0-9a-f]{16}$`)

const maxSnapshotLabel = 79 // bytes; with the rest, a name has at most 96

func (r SnapshotRef) check(op string) error {
	var p problems
	r.problems(&p)
	return p.err(op)
}

func (r SnapshotRef) problems(p *problems) {
	if r.Version != snapshotRefVersion {
		p.add("SnapshotRef.Version", "is %d: this package reads %d", r.Version, snapshotRefVersion)
		return
	}
	if !snapshotNameForm.MatchString(r.Name) {
		p.add("SnapshotRef.Name", "is not one that this package makes")
	}
	checkIdentifier(p, "SnapshotRef.ID", r.ID, false)
	if r.Account != "" {
		checkFingerprint(p, "SnapshotRef.Account", r.Account)
	}
	checkFingerprint(p, "SnapshotRef.Credential", r.Credential)
}

// target is the snapshot's account, for what is decided about sandboxes and snapshots alike.
func (r SnapshotRef) target() target {
	return target{id: r.ID, name: r.Name, account: r.Account, credential: r.Credential}
}

var notInLabels = regexp.MustCompile(`[^a-z0-9._-]+`)

// Plan fixes the name of a snapshot to come, and sends nothing: store what it returns before the creation is asked for. The
// name is the label, in lower case, with a hyphen for every run of characters but a-z 0-9 . _ -, without those at its ends,
// cut to 79 bytes, and 16 hexadecimal digits. An empty label is "snapshot".
func (s *Snapshots) Plan(label string) SnapshotRef {
	label = notInLabels.ReplaceAllString(strings.ToLower(strings.TrimSpace(label)), "-")
	label = label[:min(len(label), maxSnapshotLabel)]
	if label = strings.Trim(label, "._-"); label == "" {
		label = "snapshot"
	}
	unique := uuid.New()
	return SnapshotRef{
		Version: snapshotRefVersion, Name: label + "-" + hex.EncodeToString(unique[8:]),
		Account: s.p.account.known(), Credential: s.p.account.credential,
	}
}

// BuildRequest says what a snapshot is made of: either Dockerfile or Image.
type BuildRequest struct {
	// Dockerfile is its text; [ImageSpec] writes one. There is no build context: what COPY and ADD take from the host is
	// not there. Import such files into a lease, and capture that.
	Dockerfile string
	// Image is pulled: a name with a tag other than latest, or with a digest.
	Image      string
	Entrypoint []string  // of its sandboxes; empty: the image's
	Resources  Resources // of its sandboxes; zero: the provider's defaults
	Region     string    // empty: Config.Target, else the organisation's default

	// Logs gets the log of a build as it is written, each byte once, and to its end where the provider still has it and sends
	// the rest within [Config.CallTimeout]. It is not closed. Its error ends the call, and not the build. One that waits does
	// not hold up the end of the call by more than a second: that write may return after it, and is the last. Nil: nobody
	// reads the log. A log that cannot be read is no failure.
	Logs io.Writer
	// Timeout bounds the call. Zero: [DefaultBuildTimeout]. At most 24 hours.
	Timeout time.Duration
}

func (r *BuildRequest) check(p *problems) {
	switch {
	case (r.Dockerfile == "") == (r.Image == ""):
		p.add("BuildRequest.Image", "or Dockerfile must be set, and not both")
	case r.Image != "":
		if problem := imageProblem(r.Image); problem != "" {
			p.add("BuildRequest.Image", "%s", problem)
		}
	case len(r.Dockerfile) > maxDockerfile || strings.ContainsRune(r.Dockerfile, 0):
		p.add("BuildRequest.Dockerfile", "is over %d bytes, or has a NUL byte", maxDockerfile)
	case !fromForm.MatchString(r.Dockerfile):
		p.add("BuildRequest.Dockerfile", "has no FROM")
	}
	r.Resources.check(p, "BuildRequest")
	checkText(p, "BuildRequest.Region", r.Region)
	r.Timeout = checkDuration(p, "BuildRequest.Timeout", r.Timeout, DefaultBuildTimeout)
}

// maxDockerfile bounds a Dockerfile, in bytes. Docker's own parser stops at lines of 64 KiB.
const maxDockerfile = 1 << 20

var (
	fromForm  = regexp.MustCompile(`(?im)^\s*FROM\s+\S`)
	imageForm = regexp.MustCompile(`^[a-zA-Z0-9_.:-]+(/[a-zA-Z0-9_.:-]+)*(@sha256:[a-f0-9]{64})?$`)
)

// imageProblem is what the API has against the name of an image.
func imageProblem(image string) string {
	last := image[strings.LastIndexByte(image, '/')+1:]
	switch {
	case !imageForm.MatchString(image):
		return "is no name of an image"
	case strings.Contains(image, "@"):
	case !strings.Contains(last, ":") || strings.HasSuffix(last, ":"):
		return "has no tag"
	case strings.HasSuffix(last, ":latest"):
		return "has the tag latest, which would change under the snapshot"
	}
	return ""
}

// Build makes the planned snapshot, and returns when it can be used. The creation is sent once; a snapshot of that name
// that is there already is waited for instead, so that a host may call Build again with the same reference, after a restart
// too. It returns the reference with what it learnt, the id above all, also with an error: store it.
//
// It fails with [ErrBroken] if the build failed, of which the log says why, and with [ErrUncertain] if the creation was not
// answered and no snapshot of the name is seen within [Config.CallTimeout]. It fails with [ErrConflict] if the snapshot is
// inactive, or being deleted. What failed stays at the provider until [Snapshots.Delete]. The end of ctx ends the call, and
// not the build.
func (s *Snapshots) Build(ctx context.Context, ref SnapshotRef, request BuildRequest) (_ SnapshotRef, err error) {
	const op = "snapshot build"
	ctx, span := s.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	var p problems
	ref.problems(&p)
	request.check(&p)
	if err := p.err(op); err != nil {
		return ref, err
	}
	ctx, finish, err := s.begin(ctx, op, request.Timeout)
	if err != nil {
		return ref, err
	}
	defer finish()
	if request.Region == "" {
		request.Region = s.p.cfg.Target
	}
	create := func(ctx context.Context) error {
		_, err := s.p.client.CreateSnapshot(ctx, daytona.SnapshotRequest{
			Name: ref.Name, Image: request.Image, Dockerfile: request.Dockerfile, Entrypoint: request.Entrypoint, Region: request.Region,
			Resources: daytona.Resources{CPU: request.Resources.CPU, Memory: request.Resources.Memory, Disk: request.Resources.Disk, GPU: request.Resources.GPU},
		})
		return err
	}
	made, err := s.create(ctx, op, &ref, create, func() (bool, error) { return true, nil })
	if err != nil {
		return ref, err
	}
	if request.Logs != nil && request.Dockerfile != "" {
		log := s.followLog(ctx, made.ID, request.Logs)
		ctx = log.ctx
		defer func() {
			failure := log.close(err == nil || errors.Is(err, ErrBroken))
			message := "the log's writer failed; the build goes on"
			switch {
			case failure == nil, errors.Is(err, ErrBroken), errors.Is(err, ErrConflict): // which say more
				return
			case err == nil:
				message = "the log's writer failed; the snapshot can be used"
			}
			err = &Error{Op: op, Kind: KindIO, Phase: PhaseBuild, Dispatched: DispatchedYes, Message: message, cause: failure}
		}()
	}
	return ref, s.settle(ctx, op, &ref)
}

// Capture makes the planned snapshot of the files in a lease's sandbox, which must be started or stopped, and returns when
// the snapshot can be used. Meanwhile the sandbox is paused: what runs in it, and what is asked of it, waits. Apart from
// that it is as Build; the lease cannot be given back before it ends, [Config.Timeout] at most.
func (s *Snapshots) Capture(ctx context.Context, l *Lease, ref SnapshotRef) (_ SnapshotRef, err error) {
	const op = "snapshot capture"
	ctx, span := s.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	var p problems
	ref.problems(&p)
	if l == nil || l.p != s.p {
		p.add("l", "is not of this provider")
	}
	if err := p.err(op); err != nil {
		return ref, err
	}
	done, err := l.begin(op)
	if err != nil {
		return ref, err
	}
	defer done()
	ctx, finish, err := s.begin(ctx, op, s.p.cfg.Timeout)
	if err != nil {
		return ref, err
	}
	defer finish()
	if l.resolved() == nil {
		if err := l.claim(ctx); err != nil {
			return ref, failed(op, err)
		}
	}
	sb, err := l.read(ctx, op)
	if err != nil {
		return ref, inPhase(PhaseLookup, err)
	}
	switch sb.State {
	case daytona.StateStarted, daytona.StateStopped, daytona.StateSnapshotting:
	default:
		return ref, &Error{Op: op, Kind: KindNotRunning, Phase: PhaseState, Sandbox: sb.ID, Dispatched: DispatchedNo, Message: "the sandbox is neither started nor stopped"}
	}
	create := func(ctx context.Context) error { return l.client.Capture(ctx, l.ref.Sandbox, ref.Name) }
	// The snapshot is not seen before the sandbox is released from it, which takes as long as it has files.
	visible := func() (bool, error) {
		sb, err := l.read(ctx, op)
		return err == nil && sb.State != daytona.StateSnapshotting, err
	}
	if _, err = s.create(ctx, op, &ref, create, visible); err == nil {
		err = s.settle(ctx, op, &ref)
	}
	if e := failed(op, err); e != nil {
		e.Sandbox = l.ref.Sandbox
		return ref, e
	}
	return ref, nil
}

// SnapshotState is what a fresh read showed of a snapshot.
type SnapshotState string

// The states of a snapshot.
const (
	SnapshotMaking   SnapshotState = "making"   // it is built, pulled or captured
	SnapshotReady    SnapshotState = "ready"    // sandboxes can be created from it
	SnapshotInactive SnapshotState = "inactive" // the provider put it away for want of use; it can be activated again
	SnapshotFailed   SnapshotState = "failed"   // it will not be ready
	SnapshotRemoving SnapshotState = "removing" // it is being deleted
)

// SnapshotInfo is a snapshot as a fresh read showed it.
type SnapshotInfo struct {
	Ref       SnapshotRef // with the id and the account
	State     SnapshotState
	SizeGiB   float64   // zero: not reported
	CreatedAt time.Time // by the provider's clock
}

// Inspect looks for the snapshot. Store the reference it returns, which holds the id, before calling Delete. It fails with
// [ErrGone] if the snapshot of a known id is proved not to exist, with [ErrUncertain] while no snapshot of the name was ever
// seen, since one may still appear, and with [ErrNotOwned] for another's.
func (s *Snapshots) Inspect(ctx context.Context, ref SnapshotRef) (_ SnapshotInfo, err error) {
	const op = "snapshot inspect"
	ctx, span := s.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := ref.check(op); err != nil {
		return SnapshotInfo{}, err
	}
	ctx, finish, err := s.begin(ctx, op, s.p.cfg.Timeout)
	if err != nil {
		return SnapshotInfo{}, err
	}
	defer finish()
	found, err := s.read(ctx, op, &ref)
	if err != nil {
		return SnapshotInfo{}, inPhase(PhaseLookup, err)
	}
	return SnapshotInfo{Ref: ref, State: snapshotState(found.State), SizeGiB: found.Size, CreatedAt: found.CreatedAt}, nil
}

func snapshotState(s daytona.SnapshotState) SnapshotState {
	switch s {
	case daytona.SnapshotActive:
		return SnapshotReady
	case daytona.SnapshotInactive:
		return SnapshotInactive
	case daytona.SnapshotFailed, daytona.SnapshotBuildFailed:
		return SnapshotFailed
	case daytona.SnapshotRemoving:
		return SnapshotRemoving
	}
	return SnapshotMaking
}

// Delete deletes the snapshot, and returns when a fresh read shows that it is gone. It may be called again: of one that is
// proved gone it succeeds. Sandboxes that were made from it go on. It fails with [ErrUncertain] for a reference without an
// id, and with [ErrNotOwned] for a snapshot of another name or account, or a general one of the provider's; neither deletes
// anything.
func (s *Snapshots) Delete(ctx context.Context, ref SnapshotRef) (err error) {
	const op = "snapshot delete"
	ctx, span := s.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	if err := ref.check(op); err != nil {
		return err
	}
	if ref.ID == "" {
		return &Error{Op: op, Kind: KindUncertain, Dispatched: DispatchedNo, Message: "the reference has no id: inspect it first, and store what that returns"}
	}
	ctx, finish, err := s.begin(ctx, op, s.p.cfg.Timeout)
	if err != nil {
		return err
	}
	defer finish()
	var pause backoff
	phase, sent := PhaseLookup, DispatchedNo // of the deletion
	for {
		found, err := s.read(ctx, op, &ref)
		switch {
		case errors.Is(err, ErrGone):
			return nil
		case err != nil:
			return inPhase(phase, afterwards(sent, err))
		}
		phase = PhaseDelete
		var wish time.Duration
		if found.State != daytona.SnapshotRemoving {
			call, cancel := context.WithTimeout(ctx, s.p.cfg.CallTimeout)
			err := s.p.client.DeleteSnapshot(call, ref.ID)
			cancel()
			e := failed(op, err)
			sent = asked(sent, e)
			if e != nil {
				if !e.Retryable && e.Kind != KindNotFound { // the next read tells what became of it
					return inPhase(phase, afterwards(sent, e))
				}
				wish = e.RetryAfter
			}
		}
		if err := pause.wait(ctx, wish); err != nil {
			return inPhase(phase, afterwards(sent, failed(op, err)))
		}
	}
}

// begin admits a call and returns its context, which also ends with the provider, or with the time for it.
func (s *Snapshots) begin(ctx context.Context, op string, limit time.Duration) (context.Context, func(), error) {
	return s.p.begin(ctx, ctx, op, s.p.everything, limit)
}

// create finds the snapshot, or sends its creation, once, and finds it then. It is not seen before visible says so.
func (s *Snapshots) create(ctx context.Context, op string, ref *SnapshotRef, send func(context.Context) error, visible func() (bool, error)) (*daytona.Snapshot, error) {
	s.p.attestOnce(ctx)
	if ref.Account == "" {
		ref.Account = s.p.account.known()
	}
	found, err := s.read(ctx, op, ref)
	if err == nil || !errors.Is(err, ErrUncertain) || ref.ID != "" {
		return found, inPhase(PhaseLookup, err)
	}
	call, cancel := context.WithTimeout(ctx, s.p.cfg.CallTimeout+replyHold)
	err = send(call)
	cancel()
	var doubt *Error // why it is not known whether the creation was accepted
	sent := DispatchedYes
	if e := failed(op, err); e != nil {
		remote, _ := err.(*daytona.Error)
		switch {
		case remote != nil && remote.NameTaken(): // the name is ours alone: the proxy delivered the request twice
		case e.Dispatched == DispatchedNo, e.HTTPStatus >= 400 && e.HTTPStatus < 500 && e.HTTPStatus != http.StatusRequestTimeout:
			return nil, inPhase(PhaseSubmit, e)
		default:
			doubt, sent = e, DispatchedUnknown
		}
	}
	// It is seen soon, or not at all; but the time for that begins when it can be seen.
	var pause backoff
	begun := time.Now()
	for {
		found, err := s.read(ctx, op, ref)
		if err == nil || !errors.Is(err, ErrUncertain) {
			return found, inPhase(PhaseSubmit, afterwards(sent, err))
		}
		ready, lookErr := visible()
		if lookErr != nil {
			return nil, inPhase(PhaseBuild, afterwards(sent, lookErr))
		}
		if !ready {
			begun = time.Now()
		}
		waited := pause.wait(ctx, 0)
		switch {
		case waited != nil && doubt == nil:
			e := failed(op, waited)
			e.Phase, e.Dispatched = PhaseBuild, DispatchedYes
			return nil, e
		case waited != nil || time.Since(begun) >= s.p.cfg.CallTimeout:
			e := &Error{Op: op, Kind: KindUncertain, Phase: PhaseBuild, Dispatched: sent, cause: waited, Message: "no snapshot of the name is visible, which does not prove that none will appear"}
			if doubt != nil {
				e.Phase, e.HTTPStatus = PhaseSubmit, doubt.HTTPStatus
			}
			return nil, e
		}
	}
}

// settle waits until the snapshot can be used, or will not.
func (s *Snapshots) settle(ctx context.Context, op string, ref *SnapshotRef) error {
	var pause backoff
	for {
		found, err := s.read(ctx, op, ref)
		if err != nil {
			return inPhase(PhaseBuild, afterwards(DispatchedYes, err))
		}
		switch snapshotState(found.State) {
		case SnapshotReady:
			return nil
		case SnapshotInactive:
			return &Error{Op: op, Kind: KindConflict, Phase: PhaseBuild, Dispatched: DispatchedYes, Message: "the snapshot is inactive: the provider put it away, and it has to be activated"}
		case SnapshotFailed:
			return &Error{Op: op, Kind: KindBroken, Phase: PhaseBuild, Dispatched: DispatchedYes, Message: "the snapshot could not be made; it stays until it is deleted"}
		case SnapshotRemoving:
			return &Error{Op: op, Kind: KindConflict, Phase: PhaseBuild, Dispatched: DispatchedYes, Message: "the snapshot is being deleted"}
		}
		if err := pause.wait(ctx, 0); err != nil {
			e := failed(op, err)
			e.Phase, e.Dispatched = PhaseBuild, DispatchedYes
			return e
		}
	}
}

// read reads the snapshot by id, else by name, proves that it is ours, and completes the reference. What a repeat may mend is
// repeated, as for sandboxes.
func (s *Snapshots) read(ctx context.Context, op string, ref *SnapshotRef) (*daytona.Snapshot, error) {
	var pause backoff
	heard := time.Now()
	for attempt := 1; ; attempt++ {
		call, cancel := context.WithTimeout(ctx, s.p.cfg.CallTimeout)
		id := ref.ID
		if id == "" {
			id = ref.Name
		}
		found, err := s.p.client.GetSnapshot(call, id)
		cancel()
		if err == nil {
			attested := s.p.account.of(found.OrganizationID)
			if found.Name != ref.Name || ref.ID != "" && found.ID != ref.ID || found.General || !identifierForm.MatchString(found.ID) || !s.p.account.owns(ref.target(), attested) {
				return nil, &Error{Op: op, Kind: KindNotOwned, Dispatched: DispatchedYes, Message: "its name, id or account differ from the recorded ones: nothing was done to it"}
			}
			s.p.account.learn(attested)
			if ref.ID = found.ID; ref.Account == "" {
				ref.Account = attested
			}
			return found, nil
		}
		e := failed(op, err)
		if e.Kind == KindNotFound {
			if e = s.p.absent(ctx, op, ref.target()); e.Kind == KindGone {
				e.Message = "the snapshot no longer exists"
			} else if ref.ID == "" {
				e.Message = "no snapshot of that name is visible, which does not prove that none will appear"
			}
		}
		if e.Kind == KindRateLimited {
			heard = time.Now()
		}
		if !e.Retryable || attempt == readAttempts || time.Since(heard) >= s.p.cfg.CallTimeout || pause.wait(ctx, e.RetryAfter) != nil {
			return nil, e
		}
	}
}
