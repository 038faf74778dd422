package pgstore

import "strings"

// statements are the store's queries, with the names of its tables.
//
// Each is safe under read committed, where a statement sees what was committed when it began, and a row that it locks as
// that is then. What they rest on:
//
//   - clock_timestamp, not now: what waited for a lock counts from the write, not from when it was sent.
//   - A token is drawn from the sequence while the record's row is locked, so tokens are granted in their order. An
//     insertion has no row to lock yet. It excludes deletions of its attempt with an advisory lock instead: else it could
//     draw a token, wait, and insert it after a greater one was granted and its record removed.
//   - That an owner is dead is read from its locked row. One that renewed since the statement began is alive.
//   - Who holds a record has a row in the table of owners, so that there is one to lock. A foreign key sees to it.
type statements struct {
	put, claim, claimDue, renew, update, release, remove, list string
}

// durable makes the commit of the statement wait for the disk (and for a standby, where there is a synchronous one),
// although the session may not ask for it.
const durable = `set_config('synchronous_commit',
			CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)`

// brief keeps the locks of the transaction from outliving a host that is cut off in it.
const brief = `set_config('idle_in_transaction_session_timeout',
			CASE current_setting('idle_in_transaction_session_timeout') WHEN '0' THEN '10s'
				ELSE current_setting('idle_in_transaction_session_timeout') END, true)`

// alone excludes other insertions and deletions of the attempt $1 until the commit. The seed tells its locks from those
// of others.
const alone = `pg_advisory_xact_lock(hashtextextended($1::text, 6074398511203427))`

// known gives an owner a row, dead, if it has none.
const known = `INSERT INTO {owners} (owner, until) SELECT {owner}::text, clock_timestamp() FROM guard ON CONFLICT DO NOTHING`

func newStatements(n names) statements {
	fill := strings.NewReplacer("{records}", n.records, "{owners}", n.owners, "{tokens}", "'"+n.tokens+"'::regclass").Replace
	return statements{
		// $1 attempt, $2 record, $3 owner.
		put: fill(`
	WITH guard AS MATERIALIZED (
		SELECT ` + durable + `, ` + alone + `
	), known AS (
		` + strings.ReplaceAll(known, "{owner}", "$3") + `
	)
	INSERT INTO {records} (attempt, record, owner, token, due)
	SELECT $1::text, $2::text::jsonb, $3::text, nextval({tokens}), clock_timestamp() FROM guard
	ON CONFLICT (attempt) DO NOTHING
	RETURNING token`),

		// $1 attempt, $2 owner. No row: no record. A null token: it is not to be had. The last column: it was taken, after
		// the statement began, by an owner that was new then. It runs in a transaction.
		claim: fill(`
	WITH guard AS MATERIALIZED (
		SELECT ` + durable + `, ` + brief + `
	), known AS (
		` + strings.ReplaceAll(known, "{owner}", "$2") + `
	), held AS MATERIALIZED (
		SELECT r.attempt, r.owner, r.record ->> 'state' AS state
		FROM {records} r WHERE r.attempt = $1::text
		FOR UPDATE
	), holder AS MATERIALIZED (
		SELECT o.until FROM {owners} o JOIN held ON o.owner = held.owner
		FOR SHARE OF o
	), granted AS (
		UPDATE {records} r SET owner = $2::text, token = nextval({tokens}), due = clock_timestamp()
		FROM guard, held LEFT JOIN holder ON true
		WHERE r.attempt = held.attempt
			AND (held.owner IS NULL OR held.owner = $2::text OR held.state = 'leased' OR holder.until <= clock_timestamp())
		RETURNING r.token, r.record
	)
	SELECT granted.token, granted.record, granted.token IS NULL AND holder.until IS NULL
	FROM held LEFT JOIN holder ON true LEFT JOIN granted ON true`),

		// $1 owner, $2 attempts that are to be passed over. It runs in a transaction.
		claimDue: fill(`
	WITH guard AS MATERIALIZED (
		SELECT clock_timestamp() AS at, ` + durable + `, ` + brief + `
	), known AS (
		` + strings.ReplaceAll(known, "{owner}", "$1") + `
	), forgotten AS (
		DELETE FROM {owners} WHERE owner IN (
			SELECT o.owner FROM {owners} o
			WHERE o.until < (SELECT at FROM guard) - interval '1 hour' AND o.owner <> $1::text
				AND NOT EXISTS (SELECT FROM {records} r WHERE r.owner = o.owner)
			FOR UPDATE SKIP LOCKED)
	), free AS MATERIALIZED (
		SELECT r.attempt, r.due FROM {records} r
		WHERE r.owner IS NULL AND r.due <= (SELECT at FROM guard) AND r.attempt <> ALL ($2::text::text[])
		ORDER BY r.due LIMIT {limit}
		FOR UPDATE SKIP LOCKED
	), orphaned AS MATERIALIZED (
		SELECT held.attempt, held.due FROM {owners} o CROSS JOIN LATERAL (
			SELECT r.attempt, r.due FROM {records} r
			WHERE r.owner = o.owner AND r.attempt <> ALL ($2::text::text[])
			ORDER BY r.due LIMIT {limit}
			FOR UPDATE SKIP LOCKED) held
		WHERE o.until <= (SELECT at FROM guard)
		ORDER BY held.due LIMIT {limit}
		FOR SHARE OF o SKIP LOCKED
	), due AS MATERIALIZED (
		SELECT attempt, due FROM (TABLE free UNION ALL TABLE orphaned) both_kinds
		ORDER BY due, attempt LIMIT {limit}
	), granted AS (
		UPDATE {records} r SET owner = $1::text, token = nextval({tokens}), due = clock_timestamp()
		FROM due WHERE r.attempt = due.attempt
		RETURNING r.attempt, r.record, r.token, due.due
	)
	SELECT attempt, record, token FROM granted ORDER BY due, attempt`),

		// $1 owner, $2 microseconds.
		renew: fill(`
	INSERT INTO {owners} (owner, until)
	VALUES ($1::text, clock_timestamp() + $2::bigint * interval '1 microsecond')
	ON CONFLICT (owner) DO UPDATE SET until = clock_timestamp() + $2::bigint * interval '1 microsecond'`),

		// $1 attempt, $2 owner, $3 token, $4 record.
		update: fill(`
	WITH guard AS MATERIALIZED (
		SELECT ` + durable + `
	)
	UPDATE {records} r SET record = $4::text::jsonb
	FROM guard WHERE r.attempt = $1::text AND r.owner = $2::text AND r.token = $3::bigint`),

		// $1 attempt, $2 owner, $3 token, $4 record, $5 microseconds.
		release: fill(`
	WITH guard AS MATERIALIZED (
		SELECT ` + durable + `
	)
	UPDATE {records} r
	SET record = $4::text::jsonb, owner = NULL, due = clock_timestamp() + $5::bigint * interval '1 microsecond'
	FROM guard WHERE r.attempt = $1::text AND r.owner = $2::text AND r.token = $3::bigint`),

		// $1 attempt, $2 owner, $3 token.
		remove: fill(`
	WITH guard AS MATERIALIZED (
		SELECT ` + durable + `, ` + alone + `
	)
	DELETE FROM {records} r
	USING guard WHERE r.attempt = $1::text AND r.owner = $2::text AND r.token = $3::bigint`),

		// $1 attempt.
		list: fill(`
	SELECT r.attempt, r.record, COALESCE(r.owner, ''), COALESCE(o.until > clock_timestamp(), false), r.due
	FROM {records} r LEFT JOIN {owners} o ON o.owner = r.owner
	WHERE r.attempt > $1::text
	ORDER BY r.attempt LIMIT {limit}`),
	}
}
