package emulator

import (
	"time"
)

// forgetAfter is how long a destroyed sandbox is remembered, for stale lists.
const forgetAfter = 10 * time.Minute

// longestArchiveInterval stands for an auto-archive interval of 0.
const longestArchiveInterval = 30 * 24 * time.Hour

// cron looks at every sandbox each Timing.Cron, until the server closes.
func (s *Server) cron() {
	ticker := time.NewTicker(s.opt.Timing.Cron)
	defer ticker.Stop()
	for {
		select {
		case now := <-ticker.C:
			s.tick(now)
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Server) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token, preview := range s.signed {
		if !now.Before(preview.expires) {
			delete(s.signed, token)
		}
	}
	for token, access := range s.ssh {
		if !now.Before(access.expires) {
			delete(s.ssh, token)
		}
	}
	for id, sb := range s.sandboxes {
		if sb.State == StateDestroyed {
			if now.Sub(sb.UpdatedAt) > forgetAfter {
				delete(s.sandboxes, id)
			}
			continue
		}
		s.look(sb, now)
	}
}

// look applies to one sandbox what is due: first its lifetime, then its intervals. A pending change comes first; the
// next tick looks again. The caller holds s.mu.
func (s *Server) look(sb *sandbox, now time.Time) {
	if sb.pending || sb.Desired == StateDestroyed {
		return
	}
	unused := now.Sub(sb.lastActive(now))
	minutes := func(n int) time.Duration { return time.Duration(n) * time.Minute }
	archive := minutes(sb.AutoArchive)
	if archive == 0 {
		archive = longestArchiveInterval
	}
	var err *apiError
	switch resting := sb.State == StateStopped || sb.State == StateArchived; {
	case !sb.DestroyAt.IsZero() && !now.Before(sb.DestroyAt):
		err = s.beginDestroy(sb, nil)
	case sb.State == StateStarted && sb.lost:
		s.change(sb, func(r *record) {
			r.State, r.ErrorReason, r.Recoverable = StateError, containerMissing(r.ID), false
		})
	case sb.State == StateStarted && sb.AutoStop > 0 && unused >= minutes(sb.AutoStop):
		err = s.beginStop(sb, nil)
	case resting && sb.AutoDelete >= 0 && unused >= minutes(sb.AutoDelete):
		err = s.beginDestroy(sb, nil)
	case sb.State == StateStopped && unused >= archive:
		err = s.beginArchive(sb, nil)
	}
	if err != nil {
		s.log.Error("scheduled state change refused", "sandbox", sb.ID, "err", err.message)
	}
}
