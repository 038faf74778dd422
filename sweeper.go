package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Defaults of [SweeperOptions].
const (
	DefaultSweepInterval    = 30 * time.Second
	DefaultSweepConcurrency = 4
	DefaultSweepBaseDelay   = 10 * time.Second
	DefaultSweepMaxDelay    = 30 * time.Minute
	DefaultEscalateAfter    = 5
)

// SweeperOptions change what a [Sweeper] does. The zero value is useful. Its functions may be called at the same time, for
// different records.
type SweeperOptions struct {
	Interval    time.Duration // of Run, between the end of a pass and the next; zero: 30 s
	Concurrency int           // records worked on at once; zero: 4

	// A record whose attempt failed waits for BaseDelay, doubled with each failure up to MaxDelay, of which the last
	// half is random. The wait is stored: a restart does not shorten it. An outage of the provider or of the store
	// counts as no failure.
	BaseDelay time.Duration // zero: 10 s
	MaxDelay  time.Duration // zero: 30 min

	// EscalateAfter is how many failures make a record somebody's concern: then, and each time their number has doubled,
	// it is logged as an error and given to OnEscalate, which must return soon and not close the provider. Attempts go on.
	// Zero: 5.
	EscalateAfter int
	OnEscalate    func(Record)

	// OnOrphan decides about a lease whose host is dead, by its state: in use ([StateLeased]), or stopped by an earlier
	// sweep ([StateStopped]), perhaps because its host released it to be kept, and died before that was done: who
	// destroys the stopped ones, too, deletes what was to be resumed. It may keep it; then it is asked again after
	// MaxDelay, of which the last half is random. What the provider would delete when it stops (Config.AutoDeleteMinutes 0) is
	// not stopped for [OrphanStop]: that is a failure, and it is asked again. It must return when its context ends, and must
	// leave it to the sweep to give the lease back, which it would wait for.
	// Nil: what Record.Orphan says of a lease that was in use. It is destroyed if it is not reusable, and else stopped. One that
	// was resumed, or bound and used, and was not on the list then, because it had been given back and kept or was acquired
	// without a store, is stopped in any case. A stopped one is kept until it is resumed, destroyed, or deleted by the
	// provider, which after ReleaseOptions.Retain it is not. An unknown disposition keeps it.
	OnOrphan func(context.Context, Record) Disposition
}

// Sweeper works off the records of a provider's store that no living host holds: it deletes what creations left behind, stops
// or deletes leases whose host died, and removes records only when what they stand for is proved to be gone, or given back.
// It never gives up a record, and takes not-found of a name for absence only if the creation was refused. Any number of
// sweepers, in one process or many, may share a store: each record is worked on by one of them at a time. A sweeper leaves
// alone the records of living hosts and those of another account than its provider's.
type Sweeper struct {
	p       *provider
	options SweeperOptions
}

// SweepReport counts the records that a pass looked at, by what came of them.
type SweepReport struct {
	Destroyed  int // the sandbox is proved gone, or never to have been made, and the record removed
	Stopped    int // an orphan was stopped, and is kept on the list
	Kept       int // an orphan was left as it is
	Unresolved int // no sandbox of the name was ever seen, which proves nothing
	Failed     int // another failure; it is tried again
	Escalated  int // of the two before, those that were escalated
	Deferred   int // an outage, or the end of the pass, came between; not counted as an attempt
	Refused    int // another account's
	Lost       int // taken over by another owner meanwhile
	// RetryAfter is how long the provider wants to be left alone, if it ended the pass by saying so. At most an hour.
	RetryAfter time.Duration
}

// NewSweeper returns a sweeper of the provider's store. It does nothing until it is asked to. It fails with [ErrInvalid]
// if the provider has no store, or is not of this package.
func NewSweeper(p Provider, options SweeperOptions) (*Sweeper, error) {
	const op = "configure sweeper"
	var bad problems
	own, ok := p.(*provider)
	switch {
	case !ok:
		bad.add("p", "is not a provider of this package")
	case own.cfg.Store == nil:
		bad.add("p", "was made without Config.Store")
	}
	options.Interval = checkDuration(&bad, "SweeperOptions.Interval", options.Interval, DefaultSweepInterval)
	options.BaseDelay = checkDuration(&bad, "SweeperOptions.BaseDelay", options.BaseDelay, DefaultSweepBaseDelay)
	options.MaxDelay = checkDuration(&bad, "SweeperOptions.MaxDelay", options.MaxDelay, max(DefaultSweepMaxDelay, options.BaseDelay))
	if options.MaxDelay < options.BaseDelay {
		bad.add("SweeperOptions.MaxDelay", "is shorter than BaseDelay")
	}
	for _, n := range []struct {
		field    string
		value    *int
		fallback int
	}{{"Concurrency", &options.Concurrency, DefaultSweepConcurrency}, {"EscalateAfter", &options.EscalateAfter, DefaultEscalateAfter}} {
		if *n.value < 0 {
			bad.add("SweeperOptions."+n.field, "is negative")
		} else if *n.value == 0 {
			*n.value = n.fallback
		}
	}
	if err := bad.err(op); err != nil {
		return nil, err
	}
	return &Sweeper{p: own, options: options}, nil
}

// Run sweeps until ctx ends, and returns why it did. A pass that fails is logged, and followed by the next as any other. A
// closed provider ends it with [ErrClosed].
func (s *Sweeper) Run(ctx context.Context) error {
	for {
		report, err := s.Sweep(ctx)
		if ctx.Err() == nil && errors.Is(err, ErrClosed) {
			return err
		}
		wait := max(s.options.Interval, report.RetryAfter)
		timer := time.NewTimer(wait + rand.N(wait/10+1))
		select {
		case <-timer.C:
		case <-s.p.work.Done():
			timer.Stop()
			return failed("sweep", errProviderClosed)
		case <-ctx.Done():
			timer.Stop()
			return failed("sweep", ctxError(ctx))
		}
	}
}

// Sweep makes one pass over what is due. It returns when every due record was tried once, when the provider turns out to
// be down, or when ctx ends; then what is under way is given up at a point from which it can go on. The error is that of
// the store, of ctx or of a closed provider: what became of records is in the report.
func (s *Sweeper) Sweep(ctx context.Context) (report SweepReport, err error) {
	const op = "sweep"
	ctx, span := s.p.span(ctx, op)
	defer func() { endSpan(span, err) }()
	_, finish, err := s.p.start(ctx, op, s.p.everything)
	if err != nil {
		return report, err
	}
	defer finish()
	// The pass has no budget of its own, each record has: it ends with ctx and with the provider.
	ctx, cancel := s.p.untilClosed(ctx)
	defer cancel()
	s.p.attestOnce(ctx)

	pass := &sweepPass{Sweeper: s, owner: "sweep-" + uuid.NewString(), seen: make(map[string]bool)}
	err = pass.run(ctx)
	if err != nil {
		mapped := storeError(op, err)
		switch {
		case ctx.Err() != nil:
			mapped = failed(op, ctxError(ctx))
		case err == errProviderClosed:
			mapped = failed(op, err)
		}
		s.p.log(mapped)
		err = mapped
	}
	if pass.report != (SweepReport{}) {
		pass.report.log(ctx, s.p.cfg.Logger)
	}
	return pass.report, err
}

func (r SweepReport) log(ctx context.Context, logger *slog.Logger) {
	logger.LogAttrs(ctx, slog.LevelInfo, "leasehold: swept",
		slog.Int("destroyed", r.Destroyed), slog.Int("stopped", r.Stopped), slog.Int("kept", r.Kept),
		slog.Int("unresolved", r.Unresolved), slog.Int("failed", r.Failed), slog.Int("escalated", r.Escalated),
		slog.Int("deferred", r.Deferred), slog.Int("refused", r.Refused), slog.Int("lost", r.Lost))
}

// sweepPass is one pass of a sweeper. It is an owner of its own, and ends as such with the pass: a claim whose answer was
// lost is not held any longer than that.
type sweepPass struct {
	*Sweeper
	owner string
	seen  map[string]bool // attempts that this pass had in hand

	attesting sync.Once // at most once in a pass

	mu      sync.Mutex
	report  SweepReport
	outages int  // in a row
	down    bool // the provider is; nothing more is begun
	closed  bool // it was; nothing more can be
}

func (s *sweepPass) run(ctx context.Context) (err error) {
	if err := s.renew(ctx); err != nil {
		return err
	}
	var beating sync.WaitGroup
	ctx, end := context.WithCancelCause(ctx)
	beating.Go(func() { s.beat(ctx, end) })
	defer func() {
		end(nil)
		beating.Wait()
		if context.Cause(ctx) == errLapsed {
			err = errLapsed
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.p.cfg.CallTimeout)
		defer cancel()
		_ = s.p.cfg.Store.Renew(last, s.owner, 0)
	}()

	free := make(chan struct{}, s.options.Concurrency)
	var workers sync.WaitGroup
	defer workers.Wait()
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return ctxError(ctx)
		}
		switch down, closed := s.isDown(); {
		case ctx.Err() != nil:
			return ctxError(ctx)
		case closed:
			return errProviderClosed
		case down:
			return nil
		}
		claims, err := s.claim(ctx)
		if err != nil {
			return err
		}
		if len(claims) == 0 {
			return nil
		}
		claim := claims[0]
		if attempt := claim.Record.Envelope.Attempt; s.seen[attempt] { // due again: the pass has been round
			return s.giveUp(ctx, claim)
		} else {
			s.seen[attempt] = true
		}
		workers.Go(func() {
			defer func() { <-free }()
			s.settle(ctx, claim)
		})
	}
}

// claim takes one record: none is held that nobody works on.
func (s *sweepPass) claim(ctx context.Context) ([]Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, s.p.cfg.CallTimeout)
	defer cancel()
	return s.p.cfg.Store.ClaimDue(ctx, s.owner, 1)
}

func (s *sweepPass) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, min(s.p.cfg.CallTimeout, s.p.cfg.ClaimTime/3))
	defer cancel()
	return s.p.cfg.Store.Renew(ctx, s.owner, s.p.cfg.ClaimTime)
}

// errLapsed ends a pass whose claims others may take: what it works on may be in use again.
var errLapsed = errors.New("the sweep could not keep its claims")

// beat keeps the claims until ctx ends, or ends the pass before they lapse.
func (s *sweepPass) beat(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(s.p.cfg.ClaimTime / 3)
	defer tick.Stop()
	for renewed := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if s.renew(ctx) == nil {
			renewed = began
		} else if time.Since(renewed) >= s.p.cfg.ClaimTime*2/3 {
			end(errLapsed)
			return
		}
	}
}

func (s *sweepPass) isDown() (down, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down, s.closed
}

func (s *sweepPass) count(n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
}

// settle brings one record as far as it goes, and says in it how far that was.
func (s *sweepPass) settle(ctx context.Context, claim Claim) {
	work, finish, err := s.p.start(ctx, "sweep", s.p.about(claim.Record.Envelope.target()))
	if err == nil {
		defer finish()
		work, cancel := until(work, ctx)
		defer cancel()
		err = s.advance(work, &claim)
	}
	switch e := failed("sweep", err); {
	case e == nil:
		s.mu.Lock()
		s.outages = 0
		s.mu.Unlock()
	case e.Kind == KindFenced:
		s.count(&s.report.Lost)
	case ctx.Err() != nil, e.Kind == KindStore, e.Kind == KindClosed:
		s.mu.Lock()
		s.report.Deferred++
		s.closed = s.closed || e.Kind == KindClosed
		s.mu.Unlock()
		_ = s.giveUp(ctx, claim)
	case e.Kind == KindRateLimited, e.Retryable && (e.Kind == KindUnavailable || e.Kind == KindTimeout):
		s.outage(ctx, claim, e)
	default:
		s.failure(ctx, claim, e)
	}
}

// advance takes the next step about the record, each recorded before it is taken.
func (s *sweepPass) advance(ctx context.Context, claim *Claim) error {
	r := &claim.Record
	if !s.ours(ctx, r.Envelope) {
		s.count(&s.report.Refused)
		return s.release(ctx, *claim, 0)
	}
	switch r.State {
	case StateLeased, StateStopped:
		return s.orphan(ctx, claim)
	case StateEnding:
		if r.Orphan != OrphanDestroy {
			return s.stop(ctx, claim)
		}
	}
	return s.destroy(ctx, claim)
}

// ours reports whether a record is of our account, as far as that can be told without asking about its sandbox.
func (s *sweepPass) ours(ctx context.Context, e CleanupEnvelope) bool {
	if e.Credential == s.p.account.credential || e.Account == "" {
		return e.Credential == s.p.account.credential
	}
	if s.p.account.known() == "" { // the API was down when it was asked first, or had no sandbox by which to tell
		s.attesting.Do(func() { _, _ = s.p.attest(ctx) })
	}
	return e.Account == s.p.account.known()
}

// orphan decides about a lease that nobody holds.
func (s *sweepPass) orphan(ctx context.Context, claim *Claim) error {
	r := &claim.Record
	disposition := r.Orphan
	if r.State == StateStopped {
		disposition = OrphanKeep
	}
	if s.options.OnOrphan != nil {
		disposition = s.options.OnOrphan(ctx, r.clone())
	}
	switch {
	case disposition == OrphanDestroy:
		r.State, r.Orphan = StateEnding, OrphanDestroy
		if err := s.update(ctx, *claim); err != nil {
			return err
		}
		return s.destroy(ctx, claim)
	case r.State == StateLeased && (disposition == OrphanStop || disposition == OrphanRetain):
		was := r.Orphan
		r.State, r.Orphan = StateEnding, disposition
		if err := s.update(ctx, *claim); err != nil {
			return err
		}
		err := s.stop(ctx, claim)
		if errors.Is(err, errVanishes) {
			r.Orphan = was
		}
		return err
	}
	switch _, err := s.p.read(ctx, "sweep", r.Envelope.target()); { // the provider may have deleted it meanwhile
	case err == nil:
		return s.keep(ctx, claim, &s.report.Kept)
	case errors.Is(err, ErrGone):
		return s.settled(ctx, *claim)
	default:
		return err
	}
}

// destroy deletes the record's sandbox: first it is seen and its id stored, then it is deleted.
func (s *sweepPass) destroy(ctx context.Context, claim *Claim) error {
	r := &claim.Record
	if r.Envelope.Observed == "" {
		sb, err := s.p.read(ctx, "sweep", r.Envelope.target())
		switch {
		case err == nil:
		case r.Refused && absentByName(err):
			return s.settled(ctx, *claim)
		default:
			return err
		}
		r.State, r.Envelope.Observed = StateEnding, sb.ID
		if r.Envelope.Account == "" {
			r.Envelope.Account = s.p.account.known()
		}
		if err := s.update(ctx, *claim); err != nil {
			return err
		}
	}
	if _, err := s.p.delete(ctx, "sweep", r.Envelope.target()); err != nil {
		return err
	}
	return s.settled(ctx, *claim)
}

// stop stops an orphan, and keeps it on the list.
func (s *sweepPass) stop(ctx context.Context, claim *Claim) error {
	r := &claim.Record
	var receipt Receipt
	var err error
	if r.Orphan == OrphanRetain {
		receipt, err = s.p.retain(ctx, "sweep", *r.Lease)
	}
	if err == nil && receipt.State == "" {
		receipt, err = s.p.stop(ctx, "sweep", *r.Lease, goalStopped, PhaseStop)
	}
	switch {
	case errors.Is(err, errVanishes): // until OnOrphan, or who has the reference, decides otherwise
		r.State = StateLeased
		return err
	case err != nil:
		return err
	case receipt.State == ReceiptDestroyed:
		return s.settled(ctx, *claim)
	}
	r.State = StateStopped
	return s.keep(ctx, claim, &s.report.Stopped)
}

// settled removes the record of a sandbox that is proved gone, or never to have been made.
func (s *sweepPass) settled(ctx context.Context, claim Claim) error {
	if err := s.store(ctx, func(ctx context.Context) error { return s.p.cfg.Store.Delete(ctx, claim) }); err != nil {
		return err
	}
	s.p.accounted(claim.Record.Envelope)
	s.count(&s.report.Destroyed)
	return nil
}

// keep gives a record back that needs nothing for a long time.
func (s *sweepPass) keep(ctx context.Context, claim *Claim, count *int) error {
	r := &claim.Record
	r.Failures, r.Outcome, r.Status, r.TriedAt = 0, "", 0, receiptTime()
	err := s.release(ctx, *claim, jitter(s.options.MaxDelay))
	if err == nil {
		s.count(count)
	}
	return err
}

// failure counts an attempt that settled nothing.
func (s *sweepPass) failure(ctx context.Context, claim Claim, e *Error) {
	r := &claim.Record
	if r.Failures < 1<<30 {
		r.Failures++
	}
	r.Outcome, r.Status, r.TriedAt = e.Kind, e.HTTPStatus, receiptTime()
	if e.Kind == KindUncertain && r.Envelope.Observed == "" {
		s.count(&s.report.Unresolved)
	} else {
		s.count(&s.report.Failed)
	}
	wait := s.options.MaxDelay
	if doublings := r.Failures - 1; doublings < 40 && s.options.BaseDelay<<doublings>>doublings == s.options.BaseDelay {
		wait = min(wait, s.options.BaseDelay<<doublings)
	}
	_ = s.release(ctx, claim, max(jitter(wait), min(e.RetryAfter, longestPause))) // else it is due when the pass ends, with the count it had
	s.mu.Lock()
	s.outages = 0
	s.mu.Unlock()
	if s.escalates(r.Failures) {
		s.count(&s.report.Escalated)
		s.p.cfg.Logger.LogAttrs(ctx, slog.LevelError, "leasehold: a sandbox is not accounted for",
			slog.Int("failures", r.Failures), slog.String("kind", string(e.Kind)), slog.Int("status", e.HTTPStatus),
			slog.String("state", string(r.State)), slog.Duration("age", time.Since(r.CreatedAt).Round(time.Second)))
		if s.options.OnEscalate != nil {
			s.options.OnEscalate(r.clone())
		}
	}
}

// escalates reports whether a count is EscalateAfter, or that doubled any number of times.
func (s *sweepPass) escalates(failures int) bool {
	n := failures / s.options.EscalateAfter
	return n > 0 && failures%s.options.EscalateAfter == 0 && n&(n-1) == 0
}

// outage gives a record back that nothing could be done about: that is no attempt. When the provider wants to be left
// alone, or nothing but outages comes back, the pass ends.
func (s *sweepPass) outage(ctx context.Context, claim Claim, e *Error) {
	wish := min(e.RetryAfter, longestPause)
	s.mu.Lock()
	s.report.Deferred++
	s.outages++
	if e.Kind == KindRateLimited || s.outages > s.options.Concurrency {
		s.down = true
		s.report.RetryAfter = max(s.report.RetryAfter, wish)
	}
	s.mu.Unlock()
	_ = s.release(ctx, claim, max(jitter(s.options.BaseDelay), wish))
}

// giveUp gives a record back as it is, on a context of its own.
func (s *sweepPass) giveUp(ctx context.Context, claim Claim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.p.cfg.CallTimeout)
	defer cancel()
	return s.p.cfg.Store.Release(ctx, claim, claim.Record, 0)
}

func (s *sweepPass) update(ctx context.Context, claim Claim) error {
	return s.store(ctx, func(ctx context.Context) error { return s.p.cfg.Store.Update(ctx, claim, claim.Record) })
}

func (s *sweepPass) release(ctx context.Context, claim Claim, wait time.Duration) error {
	return s.store(ctx, func(ctx context.Context) error { return s.p.cfg.Store.Release(ctx, claim, claim.Record, wait) })
}

// store makes one call of the store. It is not cut off by the end of the pass: what was done is to be recorded.
func (s *sweepPass) store(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.p.cfg.CallTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		return storeError("sweep", err)
	}
	return nil
}

// jitter returns d less up to half of it.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
