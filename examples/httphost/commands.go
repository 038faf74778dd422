package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/leasehold-go/leasehold"
)

type commandRequest struct {
	ID             string            `json:"id"` // chosen by a client that may have to ask twice; empty: one is made up
	Script         string            `json:"script"`
	Args           []string          `json:"args"`
	Dir            string            `json:"dir"`
	Env            map[string]string `json:"env"`
	TimeoutSeconds int               `json:"timeoutSeconds"`
}

const maxTimeoutSeconds = 24 * 60 * 60

var commandID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// complete checks a request, and gives it an id if it has none. It returns a digest, which tells two requests apart: the
// environment, which may hold secrets, is written down in no other form.
func (q *commandRequest) complete() (digest string, err error) {
	if q.ID == "" {
		q.ID = rand.Text()
	}
	if !commandID.MatchString(q.ID) {
		return "", invalid("id is not 1 to 64 of A-Z a-z 0-9 _ -")
	}
	if q.TimeoutSeconds < 0 || q.TimeoutSeconds > maxTimeoutSeconds {
		return "", invalid("timeoutSeconds is not 0 to 86400")
	}
	data, err := json.Marshal(q)
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), err
}

// startCommand starts a command, once for each id: who gets no answer asks again with the same id, and is told of the
// command that there is.
func (s *service) startCommand(w http.ResponseWriter, r *http.Request, t *tenant) error {
	l, err := s.leases.of(t, r.PathValue("lease"))
	if err != nil {
		return err
	}
	var request commandRequest
	if err := s.decode(w, r, &request); err != nil {
		return err
	}
	digest, err := request.complete()
	if err != nil {
		return err
	}
	if c := l.find(request.ID); c != nil {
		return again(w, c, digest)
	}
	if s.ending.Load() {
		return errEnding
	}
	bound, err := l.use(s.provider)
	if err != nil {
		return err
	}
	if !t.commands.take() {
		return tooMany("running commands")
	}
	c, made, err := l.newCommand(request, digest, s.limits)
	if err != nil || !made { // asked for twice at the same time
		t.commands.free()
		if err != nil {
			return err
		}
		return again(w, c, digest)
	}
	if err := s.start(l, c, bound.Executor(), request, t); err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/leases/"+l.id()+"/commands/"+request.ID)
	return writeJSON(w, http.StatusCreated, c.view())
}

// start starts a command that has a slot of its tenant, which it gives back.
func (s *service) start(l *lease, c *command, on *leasehold.Executor, q commandRequest, t *tenant) error {
	process, err := on.Start(s.commands, leasehold.Command{
		Script: q.Script, Args: q.Args, Dir: q.Dir, Env: q.Env, Timeout: time.Duration(q.TimeoutSeconds) * time.Second,
		Stdout: c.stream(streamOut), Stderr: c.stream(streamErr),
	})
	if err != nil {
		t.commands.free()
		if failed, ok := errors.AsType[*leasehold.Error](err); ok && (failed.Dispatched == leasehold.DispatchedNo || failed.Kind == leasehold.KindInvalid) {
			return errors.Join(err, l.forget(c)) // it did not begin, and never will
		}
		c.finish(commandUnknown, leasehold.Result{}, err)
		return err
	}
	// The slot is free before anybody is told of the end: who knows of it may start the next one.
	if err := s.watch(c, process, true, t.commands.free); err != nil { // without its reference nobody could go on with it
		return errors.Join(err, process.Kill(s.commands))
	}
	return nil
}

// watch observes a command in the background until its end, or until the service lets go of it. ended is called before the
// end can be seen. The error is that its reference was not written down.
func (s *service) watch(c *command, p *leasehold.Process, fresh bool, ended func()) error {
	err := c.observe(p)
	s.background.Go(func() {
		state, result, err := c.outcome(p, fresh)
		ended()
		c.finish(state, result, err)
	})
	if s.keeping.Load() { // the others were let go of before this one was there
		c.detach()
	}
	return err
}

// again answers a request for a command that there is.
func again(w http.ResponseWriter, c *command, digest string) error {
	if _, record, _ := c.progress(); record.Digest != digest {
		return refusal(http.StatusConflict, "another command has this id")
	}
	return writeJSON(w, http.StatusOK, c.view())
}

func (s *service) listCommands(w http.ResponseWriter, r *http.Request, t *tenant) error {
	l, err := s.leases.of(t, r.PathValue("lease"))
	if err != nil {
		return err
	}
	views := []commandRecord{}
	for _, c := range l.all() {
		views = append(views, c.view())
	}
	slices.SortFunc(views, func(a, b commandRecord) int { return a.StartedAt.Compare(b.StartedAt) })
	return writeJSON(w, http.StatusOK, map[string]any{"commands": views})
}

func (s *service) showCommand(w http.ResponseWriter, r *http.Request, t *tenant) error {
	_, c, err := s.command(r, t)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, c.view())
}

type signalRequest struct {
	Signal string `json:"signal"` // as kill names it: INT, TERM, KILL
}

// signalCommand sends a signal to a command that is observed, and all its children.
func (s *service) signalCommand(w http.ResponseWriter, r *http.Request, t *tenant) error {
	_, c, err := s.command(r, t)
	if err != nil {
		return err
	}
	var request signalRequest
	if err := s.decode(w, r, &request); err != nil {
		return err
	}
	process := c.observed()
	if process == nil {
		return refusal(http.StatusConflict, "the command is not running")
	}
	if request.Signal == "KILL" {
		err = process.Kill(r.Context())
	} else {
		err = process.Signal(r.Context(), request.Signal)
	}
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return refusal(http.StatusConflict, "the command has ended")
	case err != nil:
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *service) command(r *http.Request, t *tenant) (*lease, *command, error) {
	l, err := s.leases.of(t, r.PathValue("lease"))
	if err != nil {
		return nil, nil, err
	}
	c := l.find(r.PathValue("command"))
	if c == nil {
		return nil, nil, errNoCommand
	}
	return l, c, nil
}

func (l *lease) find(id string) *command {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.commands[id]
}

func (l *lease) all() []*command {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.commands))
}

// attach goes on with the commands that an earlier process started, each from where its output ends here. They do not count
// among those that their tenant may have running.
func (s *service) attach(l *lease, on *leasehold.Lease) {
	for _, c := range l.all() {
		_, record, _ := c.progress()
		from, open := c.offsets()
		switch {
		case record.State != commandDetached || !open:
			continue
		case record.Ref == nil: // the process was killed while it started the command
			c.finish(commandUnknown, leasehold.Result{}, errUnrecorded)
			continue
		}
		process, err := on.Executor().Attach(s.commands, *record.Ref, leasehold.Attachment{
			From: from, Stdout: c.stream(streamOut), Stderr: c.stream(streamErr),
		})
		switch failed, ok := errors.AsType[*leasehold.Error](err); {
		case err == nil:
			if err := s.watch(c, process, false, func() {}); err != nil {
				s.log.Error("a command cannot be written down", "err", err)
			}
		case ok && (failed.Retryable || failed.Kind == leasehold.KindCanceled || failed.Kind == leasehold.KindNotRunning):
			s.log.Warn("a command cannot be observed", "lease", l.id(), "err", err) // the next resume tries again
		default:
			c.finish(commandUnknown, leasehold.Result{}, err)
		}
	}
}
