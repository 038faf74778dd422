package emulator

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
)

// State is a sandbox's state or desired state, as the control plane names it.
type State string

// The states that the emulator itself produces. Sandbox.Force accepts any other.
const (
	StateCreating    State = "creating"
	StateRestoring   State = "restoring"
	StateDestroyed   State = "destroyed"
	StateDestroying  State = "destroying"
	StateStarted     State = "started"
	StateStopped     State = "stopped"
	StateStarting    State = "starting"
	StateStopping    State = "stopping"
	StateError       State = "error"
	StateBuildFailed State = "build_failed"
	StatePending     State = "pending_build"
	StateBuilding    State = "building_snapshot"
	StateUnknown     State = "unknown"
	StatePulling     State = "pulling_snapshot"
	StateArchived    State = "archived"
	StateArchiving   State = "archiving"

	StateSnapshotting State = "snapshotting"
)

// record is the control plane's row of one sandbox. It is copied by value; its maps are replaced, never changed.
type record struct {
	ID           string            `json:"id"`
	Organization string            `json:"organization"`
	Name         string            `json:"name"`
	Snapshot     string            `json:"snapshot,omitempty"`
	Dockerfile   string            `json:"dockerfile,omitempty"`
	User         string            `json:"user"`
	Env          map[string]string `json:"env"`
	Labels       map[string]string `json:"labels"`
	Public       bool              `json:"public,omitempty"`
	BlockAll     bool              `json:"blockAll,omitempty"`
	Target       string            `json:"target"`
	CPU          int               `json:"cpu"`
	GPU          int               `json:"gpu"`
	Memory       int               `json:"memory"`
	Disk         int               `json:"disk"`
	State        State             `json:"state"`
	Desired      State             `json:"desired"`
	ErrorReason  string            `json:"errorReason,omitempty"`
	Recoverable  bool              `json:"recoverable,omitempty"`
	AutoStop     int               `json:"autoStop"`    // minutes; 0 never
	AutoArchive  int               `json:"autoArchive"` // minutes; 0 the maximum
	AutoDelete   int               `json:"autoDelete"`  // minutes after the stop; 0 at the stop, negative never
	DestroyAt    time.Time         `json:"destroyAt,omitzero"`
	CreatedAt    time.Time         `json:"createdAt"`
	UpdatedAt    time.Time         `json:"updatedAt"`
	ActiveAt     time.Time         `json:"activeAt"`
	Token        string            `json:"token,omitempty"` // of previews; new with each start
	WasStarted   bool              `json:"wasStarted,omitempty"`
}

// shown is the state that the API reports: the state and the desired state together.
func (r *record) shown() State {
	switch {
	case r.Desired == StateDestroyed && r.State != StateDestroyed:
		return StateDestroying
	case r.State == StateStarted && r.Desired == StateStopped:
		return StateStopping
	case r.State == StateStopped && r.Desired == StateStarted:
		return StateStarting
	case r.State == StateUnknown && r.Desired == StateStarted:
		return StateCreating
	}
	return r.State
}

func (r *record) errored() bool { return r.State == StateError || r.State == StateBuildFailed }

// visible tells whether any read may find the record: a destroyed one never, an errored one not once it is deleted.
func (r *record) visible() bool {
	return r.State != StateDestroyed && (!r.errored() || r.Desired != StateDestroyed)
}

// version is a record as it was from one change of the control plane to the next.
type version struct {
	number uint64
	at     time.Time
	record record
}

// keptVersions bounds what a stale list can look back to, per sandbox.
const keptVersions = 64

// sandbox is one sandbox. Every field is guarded by Server.mu, unless it says otherwise.
type sandbox struct {
	record
	pending bool          // a state change is in progress
	op      uint64        // number of the current state change; an older one must not touch the record any more
	stop    func()        // ends the wait of the current state change
	changed chan struct{} // closed and replaced with each change of the record
	history []version
	runs    int
	machine *machine // the current or last run; nil before the first
	lost    bool     // its container and files have vanished
	open    map[*activity]struct{}

	// Not guarded: whether its disk is full for all requests, and for how many it is.
	full    atomic.Bool
	fullFor atomic.Int64
}

// activity is one open proxied request that counts as use of the sandbox.
type activity struct{ since time.Time }

// activityRepeat is how often the proxy repeats the report of a request that stays open.
const activityRepeat = 50 * time.Second

// lastActive is when the sandbox was last used: its record's time, or the last repeat of an open request.
func (sb *sandbox) lastActive(now time.Time) time.Time {
	last := sb.ActiveAt
	for a := range sb.open {
		if t := a.since.Add(now.Sub(a.since).Truncate(activityRepeat)); t.After(last) {
			last = t
		}
	}
	return last
}

// now is the record as it is shown now: with the repeats of open requests.
func (sb *sandbox) now() *record {
	r := sb.record
	r.ActiveAt = sb.lastActive(time.Now())
	return &r
}

// insert adds a record. The caller holds s.mu.
func (s *Server) insert(r record) *sandbox {
	sb := &sandbox{changed: make(chan struct{}), open: map[*activity]struct{}{}, stop: func() {}}
	s.sandboxes[r.ID] = sb
	s.change(sb, func(old *record) { *old = r })
	return sb
}

// change edits a record, notes the version, saves it and wakes whoever waits for it. The caller holds s.mu.
func (s *Server) change(sb *sandbox, edit func(*record)) {
	edit(&sb.record)
	sb.UpdatedAt = time.Now()
	s.version++
	sb.history = append(sb.history, version{s.version, sb.UpdatedAt, sb.record})
	if extra := len(sb.history) - keptVersions; extra > 0 {
		sb.history = slices.Delete(sb.history, 0, extra)
	}
	close(sb.changed)
	sb.changed = make(chan struct{})
	if err := s.save(sb); err != nil {
		s.log.Error("saving a sandbox's record", "sandbox", sb.ID, "err", err)
	}
}

// find looks a visible sandbox of an organisation up, by id or by name. A sandbox that is being destroyed has lost
// its name already. The caller holds s.mu.
func (s *Server) find(organization, idOrName string) (*sandbox, *apiError) {
	if sb := s.sandboxes[idOrName]; sb != nil && sb.Organization == organization && sb.visible() {
		return sb, nil
	}
	if sb := s.named(organization, idOrName); sb != nil {
		return sb, nil
	}
	return nil, notFound(idOrName)
}

// named finds the sandbox that occupies a name. The caller holds s.mu.
func (s *Server) named(organization, name string) *sandbox {
	for _, sb := range s.sandboxes {
		if sb.Name == name && sb.Organization == organization && sb.Desired != StateDestroyed && sb.visible() {
			return sb
		}
	}
	return nil
}

// outcome is a state change's own view of its sandbox: every step fails once another change took over.
type outcome struct {
	s    *Server
	sb   *sandbox
	op   uint64
	ctx  context.Context
	pace pace
}

// begin starts a state change in its own goroutine. The caller holds s.mu and has set the desired state.
func (s *Server) begin(sb *sandbox, stall *time.Duration, run func(*outcome)) {
	sb.stop()
	ctx, cancel := context.WithCancel(s.ctx)
	sb.stop = cancel
	sb.op++
	sb.pending = true
	o := &outcome{s: s, sb: sb, op: sb.op, ctx: ctx, pace: pace{stall}}
	if s.closed {
		cancel()
		return
	}
	s.work.Go(func() {
		defer cancel()
		run(o)
	})
}

// wait passes the time that a step takes. It returns false if the change was abandoned.
func (o *outcome) wait(d time.Duration) bool { return o.pace.wait(o.ctx, d) }

// waitAtMost is wait for a step that the control plane gives up after limit: the sandbox ends errored.
func (o *outcome) waitAtMost(d, limit time.Duration, doing string) bool {
	d, ends := o.pace.step(d)
	if ends && d <= limit {
		return sleep(o.ctx, d)
	}
	if sleep(o.ctx, limit) {
		o.fail("Timeout while "+doing+" sandbox", false)
	}
	return false
}

// pace is how fast a change of a sandbox or a snapshot goes on.
type pace struct {
	stall *time.Duration // replaces the time of the next step: see faultHit.stall
}

// step is how long a step takes, and whether it ends at all. A stall applies to the first step only.
func (p *pace) step(d time.Duration) (_ time.Duration, ends bool) {
	if p.stall == nil {
		return d, true
	}
	d = *p.stall
	p.stall = nil
	return d, d != 0
}

// wait passes the time that a step takes. It returns false if ctx ended first.
func (p *pace) wait(ctx context.Context, d time.Duration) bool {
	d, ends := p.step(d)
	if !ends {
		<-ctx.Done()
		return false
	}
	return sleep(ctx, d)
}

// sleep passes a time. It returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// set edits the record unless the change was abandoned; done says that the change is complete.
func (o *outcome) set(done bool, edit func(*record)) bool {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	if o.sb.op != o.op {
		return false
	}
	o.sb.pending = !done
	o.s.change(o.sb, edit)
	return true
}

func (o *outcome) fail(reason string, recoverable bool) {
	o.set(true, func(r *record) {
		r.State, r.ErrorReason, r.Recoverable = StateError, reason, recoverable
	})
}

// started completes a start: a new machine, a new preview token.
func (o *outcome) started() {
	s, sb := o.s, o.sb
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb.op != o.op {
		return
	}
	sb.pending = false
	s.boot(sb)
	s.change(sb, func(r *record) {
		r.State, r.ErrorReason, r.Recoverable, r.ActiveAt = StateStarted, "", false, time.Now()
	})
}

// boot gives a sandbox a new machine. The caller holds s.mu and records the state.
func (s *Server) boot(sb *sandbox) {
	sb.runs++
	env := maps.Clone(sb.Env)
	if env == nil {
		env = map[string]string{}
	}
	env["DAYTONA_SANDBOX_ID"] = sb.ID
	env["DAYTONA_SANDBOX_USER"] = sb.User
	env["DAYTONA_ORGANIZATION_ID"] = sb.Organization
	env["DAYTONA_REGION_ID"] = sb.Target
	sb.machine = s.boxes.start(machineSpec{
		id: sb.ID + "." + strconv.Itoa(sb.runs), home: s.homeDir(sb.ID), temp: s.tempDir(sb.ID), env: env,
		quirks: s.opt.Quirks, diskFull: func() bool { return sb.full.Load() || sb.fullFor.Load() > 0 },
	})
	sb.Token, sb.WasStarted = newToken(), true
}

// powerOff ends the sandbox's machine and waits until its processes are gone.
func (s *Server) powerOff(sb *sandbox) {
	s.mu.Lock()
	m := sb.machine
	s.mu.Unlock()
	if m == nil {
		return
	}
	if err := m.kill(); err != nil {
		s.log.Error("killing a sandbox's processes", "sandbox", sb.ID, "err", err)
	}
}

// settled waits until no state change is pending, for at most hold.
func (s *Server) settled(ctx context.Context, sb *sandbox, hold time.Duration) {
	timer := time.NewTimer(hold)
	defer timer.Stop()
	for {
		s.mu.Lock()
		pending, changed := sb.pending, sb.changed
		s.mu.Unlock()
		if !pending {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// The limits of the control plane on single steps.
const (
	createLimit = 15 * time.Minute
	startLimit  = 5 * time.Minute
	pullLimit   = 30 * time.Minute
)

// containerMissing is the reason of a sandbox whose container has vanished, as the runner's daemon words it.
func containerMissing(id string) string {
	return fmt.Sprintf("not found: failed to inspect sandbox container %s: Error response from daemon: No such container: %s", id, id)
}

// beginStart starts a stopped or archived sandbox. The caller holds s.mu.
func (s *Server) beginStart(sb *sandbox, stall *time.Duration) *apiError {
	from := sb.State
	switch {
	case sb.pending || sb.Desired == StateDestroyed:
		return errPending
	case sb.errored():
		return refuse(http.StatusBadRequest, "Sandbox is in an errored state")
	case from == StateStarted:
		return nil
	case from != StateStopped && from != StateArchived:
		return refuse(http.StatusBadRequest, "Sandbox is not in valid state")
	case s.limits.Suspended:
		return errSuspended
	}
	s.change(sb, func(r *record) {
		r.Desired, r.ActiveAt = StateStarted, time.Now()
		if from == StateArchived {
			r.State = StateRestoring
		}
	})
	s.begin(sb, stall, func(o *outcome) {
		took := s.opt.Timing.Start
		if from == StateArchived {
			took = s.opt.Timing.Restore
		}
		if o.waitAtMost(took, startLimit, "starting") {
			o.bootOrFail()
		}
	})
	return nil
}

// bootOrFail ends a start, a creation or a recovery.
func (o *outcome) bootOrFail() {
	o.s.mu.Lock()
	lost := o.sb.lost
	o.s.mu.Unlock()
	if lost {
		o.fail(containerMissing(o.sb.ID), false)
		return
	}
	if err := o.s.makeHome(o.sb.ID); err != nil {
		o.fail(err.Error(), false)
		return
	}
	o.started()
}

// beginRecover restarts a recoverable errored sandbox. The caller holds s.mu.
func (s *Server) beginRecover(sb *sandbox, stall *time.Duration) *apiError {
	switch {
	case sb.pending || sb.Desired == StateDestroyed:
		return errPending
	case !sb.errored():
		return refuse(http.StatusBadRequest, "Sandbox must be in error state to recover")
	case !sb.Recoverable:
		return refuse(http.StatusBadRequest, "Sandbox is not recoverable")
	case s.limits.Suspended:
		return errSuspended
	}
	s.change(sb, func(r *record) {
		r.State, r.Desired, r.ErrorReason, r.Recoverable = StateStarting, StateStarted, "", false
	})
	s.begin(sb, stall, func(o *outcome) {
		if o.waitAtMost(s.opt.Timing.Start, startLimit, "starting") {
			o.bootOrFail()
		}
	})
	return nil
}

// beginStop stops a started sandbox; an ephemeral one is destroyed instead. The caller holds s.mu.
func (s *Server) beginStop(sb *sandbox, stall *time.Duration) *apiError {
	switch {
	case sb.pending || sb.Desired == StateDestroyed:
		return errPending
	case sb.errored():
		return refuse(http.StatusBadRequest, "Sandbox is in an errored state")
	case sb.State != StateStarted:
		return refuse(http.StatusBadRequest, "Sandbox is not in a stoppable state")
	case sb.AutoDelete == 0:
		return s.beginDestroy(sb, stall)
	}
	s.change(sb, func(r *record) { r.Desired, r.ActiveAt = StateStopped, time.Now() })
	s.begin(sb, stall, func(o *outcome) {
		if !o.set(false, func(r *record) { r.State = StateStopping }) || !o.wait(s.opt.Timing.Stop) {
			return
		}
		s.powerOff(sb)
		o.set(true, func(r *record) { r.State, r.ActiveAt = StateStopped, time.Now() })
	})
	return nil
}

// beginArchive moves a stopped sandbox to cold storage. Its files stay. The caller holds s.mu.
func (s *Server) beginArchive(sb *sandbox, stall *time.Duration) *apiError {
	switch {
	case sb.pending || sb.Desired == StateDestroyed:
		return errPending
	case sb.errored():
		return refuse(http.StatusBadRequest, "Sandbox is in an errored state")
	case sb.State != StateStopped:
		return refuse(http.StatusBadRequest, "Sandbox is not stopped")
	case sb.AutoDelete == 0:
		return refuse(http.StatusBadRequest, "Ephemeral sandboxes cannot be archived")
	}
	s.change(sb, func(r *record) { r.State, r.Desired = StateArchiving, StateArchived })
	s.begin(sb, stall, func(o *outcome) {
		if o.wait(s.opt.Timing.Archive) {
			o.set(true, func(r *record) { r.State, r.ActiveAt = StateArchived, time.Now() })
		}
	})
	return nil
}

// beginDestroy frees the sandbox's name at once and destroys it. A build that has not begun is abandoned; any other
// pending change refuses. The caller holds s.mu.
func (s *Server) beginDestroy(sb *sandbox, stall *time.Duration) *apiError {
	if sb.Desired == StateDestroyed || (sb.pending && sb.State != StatePending) {
		return errPending
	}
	s.change(sb, func(r *record) {
		r.Name = fmt.Sprintf("DESTROYED_%s_%d", r.Name, time.Now().UnixMilli())
		r.Desired = StateDestroyed
	})
	s.begin(sb, stall, func(o *outcome) {
		if !o.wait(s.opt.Timing.Destroy) {
			return
		}
		s.powerOff(sb)
		if err := s.removeFiles(sb.ID); err != nil {
			s.log.Error("removing a sandbox's files", "sandbox", sb.ID, "err", err)
		}
		o.set(true, func(r *record) { r.State = StateDestroyed })
	})
	return nil
}

func (s *Server) sandboxDir(id string) string { return filepath.Join(s.dir, "sandboxes", id) }
func (s *Server) homeDir(id string) string    { return filepath.Join(s.sandboxDir(id), "home") }
func (s *Server) tempDir(id string) string    { return filepath.Join(s.sandboxDir(id), "tmp") }
