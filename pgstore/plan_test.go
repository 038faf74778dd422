package pgstore

import (
	"strings"
	"testing"
	"time"
)

// TestClaimDueUsesTheIndexes: among ten thousand records, most of them held by living owners, with and without what the
// planner knows of the arguments.
func TestClaimDueUsesTheIndexes(t *testing.T) {
	s := newStore(t)
	for _, owner := range []string{"a", "b", "c"} {
		check(t, s.Renew(t.Context(), owner, time.Hour))
	}
	check(t, s.Renew(t.Context(), "dead", 0))
	fill(t, s, 9300, "(ARRAY['a', 'b', 'c'])[1 + i % 3]")
	fill(t, s, 200, "NULL")
	fill(t, s, 200, "'dead'")
	waitingRecords := fill(t, s, 300, "NULL")
	db := open(t)
	mustExec(t, db, `UPDATE `+s.names.records+` SET due = now() + interval '1 hour' WHERE attempt = ANY ($1)`, waitingRecords)
	mustExec(t, db, `VACUUM ANALYZE `+s.names.records)

	conn := must(db.Conn(t.Context()))(t)
	defer conn.Close()
	_, err := conn.ExecContext(t.Context(), `PREPARE claim_due (text, text) AS `+withLimit(s.statements.claimDue, 20))
	check(t, err)
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		_, err := conn.ExecContext(t.Context(), `SET plan_cache_mode = `+mode)
		check(t, err)
		var plan []string
		rows := must(conn.QueryContext(t.Context(), `EXPLAIN EXECUTE claim_due('self', '{}')`))(t)
		check(t, eachRow(rows, func() error {
			plan = append(plan, "")
			return rows.Scan(&plan[len(plan)-1])
		}))
		text := strings.Join(plan, "\n")
		for _, index := range []string{"records_free", "records_held", "records_pkey"} {
			if !strings.Contains(text, index) {
				t.Errorf("%s: the plan does not use %s:\n%s", mode, index, text)
			}
		}
		if strings.Contains(text, "Seq Scan on "+s.names.prefix+"records") {
			t.Errorf("%s: the plan reads the whole table:\n%s", mode, text)
		}
	}
	claimed, calls, start := 0, 0, time.Now()
	for {
		claims := must(s.ClaimDue(t.Context(), "self-"+strings.Repeat("x", calls), 100))(t)
		if len(claims) == 0 {
			break
		}
		check(t, s.Renew(t.Context(), claims[0].Owner, time.Hour))
		claimed, calls = claimed+len(claims), calls+1
	}
	if claimed != 400 {
		t.Errorf("%d records were claimed, want the 200 that nobody holds and the 200 of a dead owner", claimed)
	}
	t.Logf("%d records in %d calls, %s", claimed, calls, time.Since(start).Round(time.Millisecond))
}
