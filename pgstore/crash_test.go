package pgstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold"
	"github.com/leasehold-go/leasehold/storetest"
)

// history is what one record must be after a crash: as the last call that returned nil left it or, if the last call's
// outcome is uncertain, as that would have left it.
type history struct {
	certain, uncertain int // marks, in Record.Failures; absent: no record
	known              bool
	token              int64
}

const absent = -1

// writer writes records until stop is closed, whatever becomes of the database, and returns their histories.
func writer(ctx context.Context, t *testing.T, s *Store, owner string, stop <-chan struct{}, acknowledged func()) map[string]history {
	histories := make(map[string]history)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return histories
		default:
		}
		r := storetest.NewRecord()
		h := history{certain: absent, known: true}
		var claim leasehold.Claim
		steps := []struct {
			mark int
			call func() error
		}{
			{0, func() (err error) { claim, err = s.Put(ctx, r, owner); return err }},
			{1, func() error { return s.Update(ctx, claim, r) }},
			{2, func() (err error) { claim, err = s.Claim(ctx, r.Envelope.Attempt, owner); return err }},
			{3, func() error { return s.Release(ctx, claim, r, time.Hour) }},
			{absent, func() error { return s.Delete(ctx, claim) }},
		}
		if i%2 == 0 {
			steps = append(steps[:3], steps[4])
		} else {
			steps = steps[:1+rand.IntN(4)]
		}
		for _, step := range steps {
			switch step.mark {
			case absent, 2: // a claim leaves the record as it is
			default:
				r.Failures = step.mark
			}
			err := step.call()
			outcome := r.Failures
			if step.mark == absent {
				outcome = absent
			}
			if err != nil {
				if !errors.Is(err, leasehold.ErrStore) {
					t.Errorf("a call that the database's end interrupted = %v, want ErrStore", err)
				}
				h.uncertain, h.known = outcome, false
				if awaitDatabase(testDSN) != nil {
					t.Error("the database did not come back")
					return histories
				}
				break
			}
			h.certain, h.token = outcome, claim.Token
			acknowledged()
		}
		histories[r.Envelope.Attempt] = h
	}
}

// TestNothingAcknowledgedIsLost: through ends of a server process, and of the whole server, in the middle of writes, with
// sessions that ask not to wait for the disk and a server that would let them lose ten seconds of work.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	server := needServer(t)
	restart := func(options string) {
		t.Helper()
		check(t, server.crash())
		check(t, server.start(options))
		check(t, awaitDatabase(testDSN))
	}
	const options = "-c fsync=on -c full_page_writes=on -c synchronous_commit=off -c wal_writer_delay=10s"
	restart(options)
	t.Cleanup(func() { restart("") })
	s := newStore(t, "synchronous_commit=off")

	const writers, perRound = 6, 100
	owners := make([]string, writers)
	for i := range owners {
		owners[i] = newOwner(t, s)
	}
	stop := make(chan struct{})
	acks := make(chan struct{}, 1<<16)
	all := make([]map[string]history, writers)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			all[i] = writer(context.WithoutCancel(t.Context()), t, s, owners[i], stop, func() { acks <- struct{}{} })
		})
	}
	written := 0
	more := func() { // waits for writes after the last end
		t.Helper()
		for range perRound {
			select {
			case <-acks:
				written++
			case <-time.After(patience):
				t.Fatal("the writers stopped writing")
			}
		}
		for len(acks) > 0 {
			<-acks
			written++
		}
	}
	rounds := []string{"kill", "crash"}
	for _, end := range rounds {
		more()
		if end == "crash" {
			restart(options)
			continue
		}
		var pid int
		check(t, open(t).QueryRowContext(t.Context(), `
			SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND query LIKE '%' || $1::text || '%' AND pid <> pg_backend_pid()
			ORDER BY state_change DESC LIMIT 1`, s.names.schema).Scan(&pid))
		check(t, killProcess(pid)) // the server takes all its processes down, and recovers
		check(t, awaitDatabase(testDSN))
	}
	more()
	close(stop)
	wg.Wait()
	restart(options)

	db := open(t)
	found := make(map[string]int)
	for _, e := range must(must(New(db, s.options))(t).List(t.Context(), "", 1<<20))(t) {
		found[e.Record.Envelope.Attempt] = e.Record.Failures
	}
	uncertain, newest := 0, int64(0)
	for _, histories := range all {
		for attempt, h := range histories {
			got, ok := found[attempt]
			if !ok {
				got = absent
			}
			if got != h.certain && (h.known || got != h.uncertain) {
				t.Errorf("%s is at mark %d, want %d (%+v)", attempt, got, h.certain, h)
			}
			if !h.known {
				uncertain++
			}
			newest = max(newest, h.token)
			delete(found, attempt)
		}
	}
	for attempt := range found {
		t.Errorf("%s was written by nobody", attempt)
	}
	if uncertain == 0 {
		t.Error("no call was interrupted: the test proves nothing")
	}
	check(t, awaitDatabase(testDSN))
	if claim := must(must(New(db, s.options))(t).Put(t.Context(), storetest.NewRecord(), owners[0]))(t); claim.Token <= newest {
		t.Errorf("Put() gave token %d after %d", claim.Token, newest)
	}
	t.Logf("%d writes were acknowledged, %d were interrupted, in %d ends", written, uncertain, len(rounds))
}
