package emulator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// createBody is the body of POST /sandbox. Unknown fields are ignored.
type createBody struct {
	name, snapshot, user, target      string
	env, labels                       map[string]string
	public, blockAll                  bool
	cpu, gpu, memory, disk            *int
	autoStop, autoArchive, autoDelete *int
	ttl                               *int
	dockerfile                        string
	built                             bool // it has a buildInfo
}

// parseObject reads a request's JSON object, as the API's body parser does: an empty body is an empty object.
func parseObject(r *http.Request) (map[string]json.RawMessage, *apiError) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "request aborted")
	}
	fields := map[string]json.RawMessage{}
	if len(text) == 0 {
		return fields, nil
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, &apiError{status: http.StatusBadRequest, message: err.Error(), syntax: true}
	}
	return fields, nil
}

// fieldReader collects the validation messages of a body.
type fieldReader struct {
	fields   map[string]json.RawMessage
	messages []string
}

func (f *fieldReader) read(name, must string, into any) bool {
	raw, found := f.fields[name]
	if !found || string(raw) == "null" {
		return false
	}
	if json.Unmarshal(raw, into) != nil {
		f.messages = append(f.messages, name+" must be "+must)
		return false
	}
	return true
}

func (f *fieldReader) text(name string) (s string) { f.read(name, "a string", &s); return s }
func (f *fieldReader) flag(name string) (b bool)   { f.read(name, "a boolean value", &b); return b }

func (f *fieldReader) number(name string) *int {
	var n float64
	if !f.read(name, "a number conforming to the specified constraints", &n) {
		return nil
	}
	if n != float64(int(n)) {
		f.messages = append(f.messages, name+" must be an integer number")
		return nil
	}
	i := int(n)
	return &i
}

// texts reads an object. Its values are not checked: what is not a string is kept as its JSON text.
func (f *fieldReader) texts(name string) map[string]string {
	var values map[string]json.RawMessage
	f.read(name, "an object", &values)
	texts := map[string]string{}
	for key, raw := range values {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		texts[key] = text
	}
	return texts
}

func (f *fieldReader) err() *apiError {
	if len(f.messages) == 0 {
		return nil
	}
	return refuse(http.StatusBadRequest, strings.Join(f.messages, ", "))
}

func parseCreate(r *http.Request) (createBody, *apiError) {
	fields, err := parseObject(r)
	if err != nil {
		return createBody{}, err
	}
	f := &fieldReader{fields: fields}
	b := createBody{
		name: f.text("name"), snapshot: f.text("snapshot"), user: f.text("user"), target: f.text("target"),
		env: f.texts("env"), labels: f.texts("labels"),
		public: f.flag("public"), blockAll: f.flag("networkBlockAll"),
		cpu: f.number("cpu"), gpu: f.number("gpu"), memory: f.number("memory"), disk: f.number("disk"),
		autoStop: f.number("autoStopInterval"), autoArchive: f.number("autoArchiveInterval"),
		autoDelete: f.number("autoDeleteInterval"), ttl: f.number("ttlMinutes"),
	}
	var build struct {
		Dockerfile string `json:"dockerfileContent"`
	}
	if b.built = f.read("buildInfo", "an object", &build); b.built {
		if b.dockerfile = build.Dockerfile; b.dockerfile == "" {
			f.messages = append(f.messages, "buildInfo.dockerfileContent should not be empty")
		}
	}
	if invalidName(b.name) {
		f.messages = append(f.messages, "name must not contain HTML, URLs or control characters")
	}
	for name, n := range map[string]*int{"autoStopInterval": b.autoStop, "autoArchiveInterval": b.autoArchive, "ttlMinutes": b.ttl} {
		if n != nil && *n < 0 {
			f.messages = append(f.messages, name+" must not be less than 0")
		}
	}
	slices.Sort(f.messages)
	return b, f.err()
}

// invalidName applies the API's rule for names: spaces and slashes are fine; HTML, URLs and control characters are not.
func invalidName(name string) bool {
	return strings.ContainsAny(name, "<>") || strings.Contains(name, "://") || strings.HasPrefix(strings.ToLower(name), "www.") ||
		strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f })
}

// create answers POST /sandbox: it checks in the order of the API, inserts, and holds the reply until the sandbox has
// started; the reply is the record as inserted, whatever became of it meanwhile.
func (s *Server) create(w http.ResponseWriter, r *http.Request) *apiError {
	body, err := parseCreate(r)
	if err != nil {
		return err
	}
	fault := faultOf(r)
	s.mu.Lock()
	sb, source, err := s.admit(organizationOf(r), body)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	if fault.is(RunnerFailure) {
		source = Snapshot{Failure: fault.reason(), Recoverable: fault.Code == http.StatusOK}
	}
	reply := s.dto(sb.now(), skewOf(r))
	hold := sb.Dockerfile == "" && sb.State != StateStarted
	if sb.State != StateStarted {
		s.begin(sb, fault.stall(), func(o *outcome) { s.provision(o, source) })
	}
	s.mu.Unlock()

	if hold {
		s.settled(r.Context(), sb, s.opt.Timing.CreateHold)
		s.mu.Lock()
		failed, reason := sb.State == StateError && !sb.pending, sb.ErrorReason
		s.mu.Unlock()
		if failed {
			return refuse(http.StatusBadRequest, "Sandbox failed to start: "+reason)
		}
	}
	writeJSON(w, http.StatusOK, reply)
	return nil
}

// admit checks a creation and inserts it. It also returns what the sandbox is made from. The caller holds s.mu.
func (s *Server) admit(organization string, b createBody) (*sandbox, Snapshot, *apiError) {
	none := func(err *apiError) (*sandbox, Snapshot, *apiError) { return nil, Snapshot{}, err }
	bad := func(format string, args ...any) (*sandbox, Snapshot, *apiError) {
		return none(refuse(http.StatusBadRequest, fmt.Sprintf(format, args...)))
	}
	switch {
	case b.built && b.snapshot != "":
		return bad("Cannot specify a snapshot when using a build info entry")
	case !b.built && (b.cpu != nil || b.gpu != nil || b.memory != nil || b.disk != nil):
		return bad("Cannot specify Sandbox resources when using a snapshot")
	}
	if b.target == "" {
		b.target = s.opt.Regions[0]
	} else if !slices.Contains(s.opt.Regions, b.target) {
		return none(refuse(http.StatusNotFound, "Region not found"))
	}
	source, found := s.source(organization, &b)
	if !b.built {
		switch {
		case !found:
			return bad("Snapshot %s not found. Did you add it through the Daytona Dashboard?", b.snapshot)
		case source.State != "" && source.State != "active":
			return bad("Snapshot %s is %s", b.snapshot, source.State)
		case len(source.Regions) > 0 && !slices.Contains(source.Regions, b.target):
			return bad("Snapshot %s is not available in region %s", b.snapshot, b.target)
		}
	}
	if s.limits.Suspended {
		return none(errSuspended)
	}
	r := record{
		ID: uuid.NewString(), Organization: organization, Name: b.name, Snapshot: b.snapshot, Dockerfile: b.dockerfile,
		User: cmp.Or(b.user, "daytona"), Env: b.env, Labels: b.labels, Public: b.public, Target: b.target,
		CPU: pick(b.cpu, cmp.Or(source.CPU, 1)), GPU: pick(b.gpu, 0), Memory: pick(b.memory, cmp.Or(source.Memory, 1)), Disk: pick(b.disk, cmp.Or(source.Disk, 3)),
		State: StateUnknown, Desired: StateStarted,
		AutoStop: pick(b.autoStop, 15), AutoArchive: pick(b.autoArchive, 10080), AutoDelete: max(-1, pick(b.autoDelete, -1)),
		Token: newToken(),
	}
	r.BlockAll = b.blockAll
	if err := s.quota(&r); err != nil {
		return none(err)
	}
	if s.limits.NoRunners {
		return bad("No available runners")
	}
	if r.Name == "" {
		r.Name = r.ID
	} else if s.named(organization, r.Name) != nil {
		return none(refuse(http.StatusConflict, "Sandbox with name "+r.Name+" already exists"))
	}
	r.CreatedAt = time.Now()
	r.ActiveAt = r.CreatedAt
	if b.ttl != nil && *b.ttl > 0 && !s.opt.Legacy {
		r.DestroyAt = r.CreatedAt.Add(time.Duration(*b.ttl) * time.Minute)
	}
	if b.built {
		r.State = StatePending
	}
	if !b.built && source.Warm && source.Failure == "" {
		if err := s.makeHome(r.ID); err != nil {
			return bad("%v", err)
		}
		r.State = StateStarted
	}
	sb := s.insert(r)
	if r.State == StateStarted {
		s.boot(sb)
		s.change(sb, func(*record) {})
	}
	return sb, source, nil
}

// source finds what a sandbox is made from, and fills in the default snapshot.
func (s *Server) source(organization string, b *createBody) (Snapshot, bool) {
	name := b.snapshot
	switch {
	case b.built:
		name = imageOf(b.dockerfile)
	case name == "":
		name = s.opt.Snapshots[0].Name
		b.snapshot = name
	}
	if made := s.findSnapshot(organization, name); made != nil && !b.built {
		made.LastUsedAt = time.Now()
		return made.source(s), true
	}
	wildcard := -1
	for i, snapshot := range s.opt.Snapshots {
		switch snapshot.Name {
		case name:
			return snapshot, true
		case "*":
			wildcard = i
		}
	}
	if wildcard >= 0 && !b.built {
		return s.opt.Snapshots[wildcard], true
	}
	return Snapshot{}, false
}

// imageOf is the image that a Dockerfile starts from.
func imageOf(dockerfile string) string {
	for line := range strings.Lines(dockerfile) {
		if words := strings.Fields(line); len(words) > 1 && strings.EqualFold(words[0], "FROM") {
			return words[1]
		}
	}
	return ""
}

// quota checks a new sandbox against the limits. The caller holds s.mu.
func (s *Server) quota(r *record) *apiError {
	l := s.limits
	each := []struct {
		what        string
		value, most int
	}{
		{"CPU", r.CPU, l.SandboxCPU}, {"memory", r.Memory, l.SandboxMemory}, {"disk", r.Disk, l.SandboxDisk},
	}
	for _, e := range each {
		if e.most > 0 && e.value > e.most {
			return refuse(http.StatusBadRequest, fmt.Sprintf("%s request %d exceeds maximum allowed per sandbox (%d)", e.what, e.value, e.most))
		}
	}
	cpu, memory, disk, count := r.CPU, r.Memory, r.Disk, 1
	for sb := range maps.Values(s.sandboxes) {
		if sb.Organization != r.Organization || sb.Desired == StateDestroyed || sb.State == StateDestroyed {
			continue
		}
		count++
		if sb.errored() || sb.State == StateArchived {
			continue
		}
		disk += sb.Disk
		if sb.Desired == StateStarted {
			cpu, memory = cpu+sb.CPU, memory+sb.Memory
		}
	}
	totals := []struct {
		what        string
		value, most int
	}{
		{"Total CPU", cpu, l.CPU}, {"Total memory", memory, l.Memory}, {"Total disk", disk, l.Disk}, {"Sandbox count", count, l.Sandboxes},
	}
	for _, t := range totals {
		if t.most > 0 && t.value > t.most {
			return refuse(http.StatusBadRequest, fmt.Sprintf("%s limit exceeded. Maximum allowed: %d.\n"+
				"To increase concurrency limits, upgrade your organization's Tier.", t.what, t.most))
		}
	}
	return nil
}

// provision is what the runner does with a new sandbox.
func (s *Server) provision(o *outcome, source Snapshot) {
	t := s.opt.Timing
	if o.sb.Dockerfile != "" {
		for _, stage := range []State{StateBuilding, StatePulling} {
			if !o.waitAtMost(t.Build, pullLimit, "pulling snapshot for") || !o.set(false, func(r *record) { r.State = stage }) {
				return
			}
			if stage == StateBuilding && source.State == string(StateBuildFailed) {
				if o.wait(t.Build) {
					o.set(true, func(r *record) { r.State, r.ErrorReason = StateBuildFailed, cmp.Or(source.Failure, "Build failed") })
				}
				return
			}
		}
		if !o.waitAtMost(t.Build, pullLimit, "pulling snapshot for") {
			return
		}
	}
	if !o.set(false, func(r *record) { r.State = StateCreating }) || !o.waitAtMost(t.Create, createLimit, "creating") {
		return
	}
	if source.Failure != "" {
		o.fail(source.Failure, source.Recoverable)
		return
	}
	if source.files != "" {
		if err := copyTree(o.s.homeDir(o.sb.ID), source.files); err != nil {
			o.fail(err.Error(), false)
			return
		}
	}
	o.bootOrFail()
}

func pick(value *int, otherwise int) int {
	if value == nil {
		return otherwise
	}
	return *value
}
