package pglease_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	floor41  = "INSERT INTO fencepost.leases (resource, token) VALUES ('', 41);"
	cuts     = "SELECT o_status, o_at, o_token, o_state, o_cut_token, o_lease_id, o_owner, o_acquired_at, o_expires_at FROM fencepost.force_unlock("
	cut      = cuts + "'r', 'me', 'why', '', 'request', 'topic', 5000, NULL, 'fencepost.leases'::regclass)"
	cutHeld  = "acquired_at=T-1m0s at=T cut_token=5 expires_at=T+1µs lease_id=theirs owner=x state=held status=cut token=6"
	rowOfCut = "expires_at=T resource=r spent_until=T+1h0m0s token=6\n\t\t\tspent r theirs T+1h0m0s"
	record   = `
			audit action=force_unlock actor=me at=T cut_acquired_at=T-1m0s cut_expires_at=T+1µs cut_lease_id=theirs cut_owner=x cut_state=held cut_token=5 reason=why request_id=request resource=r token=6`
	recorded = `INSERT INTO fencepost.audit (at, action, resource, actor, reason, request_id, token, cut_state, cut_token, cut_lease_id, cut_owner, cut_acquired_at, cut_expires_at)
			VALUES `
	advances     = "SELECT fencepost.advance_lease('r', 9, 5000) AS token"
	refusedLevel = "25000 fencepost: isolation level repeatable read is refused, set default_transaction_isolation to read committed"
	rowOf9       = "expires_at=T resource=r token=9"
	purges       = "SELECT * FROM fencepost.purge_leases(ARRAY['', 'r', 'a', 'b', 'c', 'd'], 1000000, 5000)"
)

var forceUnlockCases = []functionCase{
	{name: "held", before: leaseRow("r", others+"'T+1µs'") + leaseRow("q", others+"'T+1m'"), call: cut, answer: cutHeld, settings: "5s on",
		after: "acquired_at=T-1m0s expires_at=T+1m0s lease_id=theirs owner=x resource=q token=5\n" + rowOfCut + record},
	{name: "ran out", before: leaseRow("r", others+"'T'"), call: cut, answer: "acquired_at=T-1m0s at=T cut_token=5 expires_at=T lease_id=theirs owner=x state=expired status=cut token=6"},
	{name: "ran out before", before: leaseRow("r", others+"'T-1s'"), call: cut, answer: "acquired_at=T-1m0s at=T cut_token=5 expires_at=T-1s lease_id=theirs owner=x state=expired status=cut token=6",
		after: `expires_at=T-1s resource=r spent_until=T+1h0m0s token=6
			spent r theirs T+1h0m0s
			audit action=force_unlock actor=me at=T cut_acquired_at=T-1m0s cut_expires_at=T-1s cut_lease_id=theirs cut_owner=x cut_state=expired cut_token=5 reason=why request_id=request resource=r token=6`},
	{name: "free", before: leaseRow("r", free+"'T-1s'"), call: cut, answer: "at=T cut_token=5 expires_at=T-1s state=free status=cut token=6"},
	{name: "above the floor", before: floor41 + leaseRow("r", others+"'T+1µs'"), call: cut, answer: "acquired_at=T-1m0s at=T cut_token=5 expires_at=T+1µs lease_id=theirs owner=x state=held status=cut token=42"},
	{name: "no row", before: leaseRow("q", others+"'T+1m'"), call: cut, answer: "status=not found"},
	{name: "the floor", before: floor41, call: cuts + "'', 'me', 'why', '', 'request', 'topic', 5000, NULL, 'fencepost.leases'::regclass)", answer: "status=not found", after: "token=41"},
	{name: "as expected", before: leaseRow("r", others+"'T+1µs'"), call: cuts + "'r', 'me', 'why', 'theirs', 'request', 'topic', 5000, NULL, 'fencepost.leases'::regclass)", answer: cutHeld},
	{name: "not as expected", before: leaseRow("r", others+"'T+1µs'"), call: cuts + "'r', 'me', 'why', 'mine', 'request', 'topic', 5000, NULL, 'fencepost.leases'::regclass)",
		answer: "acquired_at=T-1m0s at=T cut_token=5 expires_at=T+1µs lease_id=theirs owner=x state=held status=changed",
		after:  "acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5"},
	{name: "not as expected, but free", before: leaseRow("r", free+"'T'"), call: cuts + "'r', 'me', 'why', 'mine', 'request', 'topic', 5000, NULL, 'fencepost.leases'::regclass)",
		answer: "at=T cut_token=5 expires_at=T state=free status=changed"},
	{name: "repeated", before: leaseRow("r", others+"'T+1m'") + recorded + "('T-1s', 'force_unlock', 'r', 'me', 'why', 'request', 4, 'held', 3, 'old', 'y', 'T-2s', 'T-3s'), ('T-1s', 'force_unlock', 'r', 'me', 'why', 'another', 14, 'held', 13, 'old', 'y', 'T-2s', 'T-3s')", call: cut,
		answer: "acquired_at=T-2s at=T-1s cut_token=3 expires_at=T-3s lease_id=old owner=y state=held status=repeated token=4"},
	{name: "request of another resource", before: leaseRow("r", others+"'T+1m'") + recorded + "('T-1s', 'force_unlock', 'q', 'me', 'why', 'request', 4, 'held', 3, 'old', 'y', 'T-2s', 'T-3s')", call: cut,
		answer: "acquired_at=T-2s at=T-1s cut_token=3 expires_at=T-3s lease_id=old owner=y state=held status=foreign token=4"},
	{name: "somebody waits", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1µs', waiters = '{p}'", call: cut, answer: cutHeld + `
			fencepost.leases.p: topic p`},
	{name: "a line waits", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1µs', waiters = '{p,q}'", call: cut, answer: cutHeld + `
			fencepost.leases.p: topic p q
			fencepost.leases.q: topic p q`, after: `expires_at=T kept_for=p resource=r spent_until=T+1h0m0s token=6 waiters=["q"] wake_until=T+1µs
			spent r theirs T+1h0m0s
			audit action=force_unlock actor=me at=T cut_acquired_at=T-1m0s cut_expires_at=T+1µs cut_lease_id=theirs cut_owner=x cut_state=held cut_token=5 reason=why request_id=request resource=r token=6`},
	{name: "somebody waited", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T', waiters = '{p}'", call: cut, answer: cutHeld},
	{name: "no topic", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1s', waiters = '{p}'",
		call: cuts + "'r', 'me', 'why', '', 'request', NULL, 5000, NULL, 'fencepost.leases'::regclass)", answer: cutHeld},
	{name: "another table", before: leaseRow("r", others+"'T+1µs'"), call: cuts + "'r', 'me', 'why', '', 'request', 'topic', 5000, NULL, 'fencepost.audit'::regclass)", answer: "status=moved"},
	{name: "another server", before: leaseRow("r", others+"'T+1µs'"), call: cuts + "'r', 'me', 'why', '', 'request', 'topic', 5000, 'T', 'fencepost.leases'::regclass)", answer: "status=moved"},
	{name: "this server", before: leaseRow("r", others+"'T+1µs'"), call: cuts + "'r', 'me', 'why', '', 'request', 'topic', 5000, pg_postmaster_start_time(), 'fencepost.leases'::regclass)", answer: cutHeld},
	{name: "granted meanwhile", before: leaseRow("r", free+"'T-1s'"), meanwhile: "UPDATE fencepost.leases SET lease_id = 'theirs', expires_at = 'T+1µs'", call: cut, answer: cutHeld},
	{name: "isolation", isolation: pgx.RepeatableRead, call: cut, answer: refusedLevel},
	{name: "who waits too long", before: leaseRow("r", others+"'T+1µs'"), locked: "SELECT FROM fencepost.leases FOR UPDATE",
		call: cuts + "'r', 'me', 'why', '', 'request', 'topic', 20, NULL, 'fencepost.leases'::regclass)", answer: "55P03 canceling statement due to lock timeout"},
}

const cutsOfR = `('T', 'force_unlock', 'r', 'first', 'why', '1', 6, 'held', 5, 'theirs', 'y', 'T', 'T'), ('T-1h', 'force_unlock', 'r', 'last', 'why', '2', 6, 'held', 5, 'theirs', 'y', 'T', 'T'),
	('T', 'force_unlock', 'r', 'x', 'why', '3', 6, 'held', 7, 'theirs', 'y', 'T', 'T'), ('T', 'force_unlock', 'r', 'x', 'why', '4', 6, 'held', 5, 'another', 'y', 'T', 'T'),
	('T', 'force_unlock', 'q', 'x', 'why', '5', 6, 'held', 5, 'theirs', 'y', 'T', 'T')`

var forceUnlockedCases = []functionCase{
	{name: "the last one", before: recorded + cutsOfR, call: "SELECT * FROM fencepost.force_unlocked('r', 'theirs', 5)", answer: "actor=last at=T-1h0m0s reason=why"},
	{name: "none", before: recorded + cutsOfR, call: "SELECT * FROM fencepost.force_unlocked('r', 'theirs', 8)", answer: "-"},
}

var advanceCases = []functionCase{
	{name: "no row", call: advances, answer: "token=9", after: rowOf9, settings: "5s on"},
	{name: "the floor", call: "SELECT fencepost.advance_lease('', 9, 5000) AS token", answer: "-", after: "-"},
	{name: "raised", before: leaseRow("r", "8, NULL, 'x', 'T-1m', 'T+1h'"), call: advances, answer: "token=9", after: rowOf9},
	{name: "high enough", before: leaseRow("r", "9, NULL, 'x', 'T-1m', 'T-1s'"), call: advances, answer: "token=9", after: "acquired_at=T-1m0s expires_at=T-1s owner=x resource=r token=9"},
	{name: "higher", before: leaseRow("r", "10, NULL, 'x', 'T-1m', 'T-1s'"), call: advances, answer: "token=10"},
	{name: "held", before: leaseRow("r", others+"'T+1µs'"), call: advances, answer: "token=5", after: "acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5"},
	{name: "below a floor", before: floor41 + leaseRow("r", "8, NULL, 'x', 'T-1m', 'T-1s'"), call: advances, answer: "token=41"},
	{name: "ran out", before: leaseRow("r", others+"'T'") + leaseRow("q", "20, 'theirs', 'x', 'T', 'T+1h'"), call: advances, answer: "token=9",
		after: "acquired_at=T expires_at=T+1h0m0s lease_id=theirs owner=x resource=q token=20\n" + rowOf9},
	{name: "raised meanwhile", before: leaseRow("r", free+"'T-1s'"), meanwhile: "UPDATE fencepost.leases SET token = 9", call: advances, answer: "token=9", after: "acquired_at=T-1m0s expires_at=T-1s owner=x resource=r token=9"},
	{name: "granted meanwhile", before: leaseRow("r", free+"'T-1s'"), meanwhile: "UPDATE fencepost.leases SET token = 6, lease_id = 'theirs', expires_at = 'T+1µs'", call: advances, answer: "token=6"},
	// A refusal does not wait for the row.
	{name: "high enough and locked", before: leaseRow("r", "9, NULL, 'x', 'T-1m', 'T-1s'"), locked: "SELECT FROM fencepost.leases FOR UPDATE", call: "SELECT fencepost.advance_lease('r', 9, 20)", answer: "advance_lease=9"},
	{name: "held and locked", before: leaseRow("r", others+"'T+1µs'"), locked: "SELECT FROM fencepost.leases FOR UPDATE", call: "SELECT fencepost.advance_lease('r', 9, 20)", answer: "advance_lease=5"},
	{name: "isolation", isolation: pgx.RepeatableRead, call: advances, answer: refusedLevel},
	{name: "waits too long", before: leaseRow("r", free+"'T-1s'"), locked: "SELECT FROM fencepost.leases FOR UPDATE", call: "SELECT fencepost.advance_lease('r', 9, 20)", answer: "55P03 canceling statement due to lock timeout"},
}

var purgeCases = []functionCase{
	{name: "nothing", call: purges, answer: "floor=0 purged=0", after: "-", settings: "5s local"},
	{name: "nothing, and a floor", before: floor41, call: purges, answer: "floor=41 purged=0", after: "token=41"},
	{name: "long enough", before: leaseRow("a", "7, NULL, '', 'T', 'T-1000001µs'") + leaseRow("b", "6, 'theirs', 'x', 'T', 'T-1000001µs'") + leaseRow("c", "9, NULL, '', 'T', 'T-1s'") +
		leaseRow("z", "9, NULL, '', 'T', 'T-1h'"), call: purges, answer: "floor=7 purged=2", settings: "5s on",
		after: `token=7
			acquired_at=T expires_at=T-1s resource=c token=9
			acquired_at=T expires_at=T-1h0m0s resource=z token=9`},
	{name: "below the floor", before: floor41 + leaseRow("a", "7, NULL, '', 'T', 'T-1h'"), call: purges, answer: "floor=41 purged=1", after: "token=41"},
	{name: "with what was spent", before: leaseRow("a", "7, NULL, '', 'T', 'T-1h'") + leaseRow("b", "7, NULL, '', 'T', 'T-1h'") +
		"INSERT INTO fencepost.spent VALUES ('a', 'mine', 'T-1h'), ('a', 'theirs', 'T-1h'), ('b', 'mine', 'T+1h'); UPDATE fencepost.leases SET spent_until = 'T+1h' WHERE resource = 'b'",
		call: purges, answer: "floor=7 purged=1", after: `token=7
			acquired_at=T expires_at=T-1h0m0s resource=b spent_until=T+1h0m0s token=7
			spent b mine T+1h0m0s`},
	{name: "awaited or spent",
		before: leaseRow("a", free+"'T-1h'") + leaseRow("b", free+"'T-1h'") + leaseRow("c", free+"'T-1h'") + leaseRow("d", free+"'T-1h'") +
			`UPDATE fencepost.leases SET wake_until = 'T' WHERE resource = 'a'; UPDATE fencepost.leases SET wake_until = 'T-1µs' WHERE resource = 'b';
			UPDATE fencepost.leases SET spent_until = 'T' WHERE resource = 'c'; UPDATE fencepost.leases SET spent_until = 'T-1µs' WHERE resource = 'd'`,
		call: purges, answer: "floor=5 purged=2",
		after: `token=5
			acquired_at=T-1m0s expires_at=T-1h0m0s owner=x resource=a token=5 wake_until=T
			acquired_at=T-1m0s expires_at=T-1h0m0s owner=x resource=c spent_until=T token=5`},
	{name: "not before its end", before: leaseRow("r", others+"'T'"), call: "SELECT * FROM fencepost.purge_leases('{r}', -3600000000, 5000)", answer: "floor=0 purged=0"},
	{name: "at once", before: leaseRow("r", others+"'T-1µs'"), call: "SELECT * FROM fencepost.purge_leases('{r}', -3600000000, 5000)", answer: "floor=5 purged=1"},
	{name: "a locked row", before: leaseRow("a", free+"'T-1h'") + leaseRow("b", free+"'T-1h'"), locked: "SELECT FROM fencepost.leases WHERE resource = 'a' FOR UPDATE", call: purges, answer: "floor=5 purged=1"},
	{name: "a shared row", before: leaseRow("a", free+"'T-1h'"), locked: "SELECT FROM fencepost.leases WHERE resource = 'a' FOR SHARE", call: strings.Replace(purges, "5000", "20", 1), answer: "floor=0 purged=0"},
	{name: "beside a grant", before: leaseRow("a", free+"'T-1h'"), locked: "LOCK TABLE fencepost.leases IN ROW EXCLUSIVE MODE", call: purges,
		answer: "55P03 fencepost: an open transaction, of server process N, has a lock on fencepost.leases"},
}

var floorCases = []functionCase{
	{name: "none", call: "SELECT fencepost.raise_floor(41)", answer: "-", after: "token=41", settings: "0 on"},
	{name: "lower", before: floor41, call: "SELECT fencepost.raise_floor(42)", answer: "-", after: "token=42"},
	{name: "higher", before: floor41, call: "SELECT fencepost.raise_floor(40)", answer: "-", after: "token=41"},
}

// lockCases: the lock modes that conflict with lock_leases make it fail, the
// others do not.
func lockCases() (cases []functionCase) {
	for _, mode := range []string{"ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"} {
		cases = append(cases, functionCase{name: mode, locked: "LOCK TABLE fencepost.leases IN " + mode + " MODE", call: "SELECT fencepost.lock_leases(5000)",
			answer: "55P03 fencepost: an open transaction, of server process N, has a lock on fencepost.leases"})
	}
	twice := `SELECT (SELECT string_agg(mode, ',') FROM pg_locks WHERE relation = 'fencepost.leases'::regclass AND pid = pg_backend_pid() AND mode LIKE '%Exclusive%' AND x.n > 0) AS modes
		FROM (SELECT count(*) AS n FROM (SELECT fencepost.lock_leases(5000) UNION ALL SELECT fencepost.lock_leases(5000)) y) x`
	for _, other := range []string{"LOCK TABLE fencepost.leases IN ROW SHARE MODE", "LOCK TABLE fencepost.audit IN ACCESS EXCLUSIVE MODE", "SELECT FROM fencepost.leases FOR UPDATE"} {
		cases = append(cases, functionCase{name: other, locked: other, call: "SELECT fencepost.lock_leases(5000)", answer: "-", settings: "5s local"})
	}
	once := `SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND x.n > 0) AS pauses FROM (SELECT count(*) AS n FROM (SELECT fencepost.lock_leases(5000)) y) x`
	cases = append(cases, functionCase{name: "a reader, without a pause", locked: "LOCK TABLE fencepost.leases IN ROW SHARE MODE", call: once, answer: "pauses=0"})
	const begun = "LOCK TABLE fencepost.leases IN ROW EXCLUSIVE MODE; SELECT pg_advisory_xact_lock(1)"
	cases = append(cases,
		functionCase{name: "ended", meanwhile: begun, call: "SELECT fencepost.lock_leases(5000)", answer: "-"},
		functionCase{name: "ended, and another began", meanwhile: begun, late: "LOCK TABLE fencepost.leases IN ROW EXCLUSIVE MODE", call: "SELECT fencepost.lock_leases(20)",
			answer: "55P03 canceling statement due to lock timeout"},
		functionCase{name: "ended, and a reader began", meanwhile: begun, late: "LOCK TABLE fencepost.leases IN ROW SHARE MODE", call: "SELECT fencepost.lock_leases(5000)", answer: "-"},
		functionCase{name: "isolation", isolation: pgx.RepeatableRead, call: "SELECT fencepost.lock_leases(5000)", answer: refusedLevel})
	return append(cases, functionCase{name: "twice", call: twice, answer: "modes=ShareRowExclusiveLock"})
}

const (
	raised = "SELECT o_epoch, o_base, o_timeline, o_floor, o_moved, o_raised, o_hidden FROM fencepost.raise_epoch("
	raises = raised + "0, 0, 0, false, 5000)"
	own    = "(SELECT system_identifier::text FROM pg_control_system()), (SELECT oid FROM pg_database WHERE datname = current_database()), 'fencepost.leases'::regclass"
	here   = " here in this database in this table"
)

// epochRow inserts the row of the epoch.
func epochRow(values string) string {
	return "INSERT INTO fencepost.epoch SELECT true, " + values + ";"
}

var epochCases = []functionCase{
	{name: "first", call: raises, answer: "base=0 epoch=0 floor=0 moved=false raised=true timeline=1", after: "epoch 0" + here, settings: "5s on"},
	{name: "nothing to raise", before: epochRow("0, " + own), call: raises, answer: "base=0 epoch=0 floor=0 moved=false raised=false timeline=1", after: "epoch 0" + here, settings: "5s local"},
	{name: "nothing recorded yet", before: epochRow("2, NULL, NULL, NULL"), call: raises, answer: "base=2 epoch=2 floor=2199023255552 moved=false raised=true timeline=1",
		after: "token=2199023255552\nepoch 2" + here},
	{name: "the cluster was hidden", before: epochRow("0, NULL, (SELECT oid FROM pg_database WHERE datname = current_database()), 'fencepost.leases'::regclass"), call: raises,
		answer: "base=0 epoch=0 floor=0 moved=false raised=true timeline=1", after: "epoch 0" + here},
	{name: "another cluster", before: epochRow("0, 'x', (SELECT oid FROM pg_database WHERE datname = current_database()), 'fencepost.leases'::regclass"), call: raises,
		answer: "base=1 epoch=1 floor=1099511627776 moved=true raised=true timeline=1", after: "token=1099511627776\nepoch 1" + here},
	{name: "another database", before: epochRow("0, (SELECT system_identifier::text FROM pg_control_system()), 1, 'fencepost.leases'::regclass"), call: raises,
		answer: "base=1 epoch=1 floor=1099511627776 moved=true raised=true timeline=1", after: "token=1099511627776\nepoch 1" + here},
	{name: "another table", before: epochRow("0, (SELECT system_identifier::text FROM pg_control_system()), (SELECT oid FROM pg_database WHERE datname = current_database()), 1"), call: raises,
		answer: "base=1 epoch=1 floor=1099511627776 moved=true raised=true timeline=1", after: "token=1099511627776\nepoch 1" + here},
	{name: "moved, above all tokens", before: epochRow("2, 'x', 1, 1") + leaseRow("r", "3298534883329, NULL, '', 'T', 'T'"), call: raises,
		answer: "base=4 epoch=4 floor=4398046511104 moved=true raised=true timeline=1"},
	{name: "moved, above the base", before: epochRow("2, 'x', 1, 1") + leaseRow("r", "1099511627777, NULL, '', 'T', 'T'"), call: raises,
		answer: "base=3 epoch=3 floor=3298534883328 moved=true raised=true timeline=1"},
	{name: "moved, above several tokens", before: epochRow("0, 'x', 1, 1") + leaseRow("r", "3298534883329, NULL, '', 'T', 'T'") + leaseRow("s", "7, NULL, '', 'T', 'T'"), call: raises,
		answer: "base=4 epoch=4 floor=4398046511104 moved=true raised=true timeline=1"},
	{name: "to an epoch", before: epochRow("1, " + own), call: raised + "3, 0, 0, false, 5000)", answer: "base=3 epoch=3 floor=3298534883328 moved=false raised=true timeline=1"},
	{name: "to the present epoch", before: epochRow("3, "+own) + "INSERT INTO fencepost.leases (resource, token) VALUES ('', 3298534883328)", call: raised + "3, 0, 0, false, 5000)",
		answer: "base=3 epoch=3 floor=3298534883328 moved=false raised=false timeline=1"},
	{name: "by one", before: epochRow("1, " + own), call: raised + "0, 1, 0, false, 5000)", answer: "base=2 epoch=2 floor=2199023255552 moved=false raised=true timeline=1"},
	{name: "not below the tokens", before: epochRow("0, "+own) + leaseRow("r", "3298534883329, NULL, '', 'T', 'T'"), call: raised + "1, 0, 0, false, 5000)",
		answer: "base=3 epoch=3 floor=3298534883328 moved=false raised=true timeline=1"},
	{name: "the last", before: epochRow("0, " + own), call: raised + "8388607, 0, 0, false, 5000)", answer: "base=8388607 epoch=8388607 floor=9223370937343148032 moved=false raised=true timeline=1"},
	{name: "after the last", before: epochRow("0, " + own), call: raised + "8388608, 0, 0, false, 5000)",
		answer: "22003 fencepost: epoch 8388608 is refused, base 8388608 on timeline 1: a token has room for 8388607", after: "epoch 0" + here},
	{name: "a floor", before: epochRow("0, " + own), call: raised + "0, 0, 7, false, 5000)", answer: "base=0 epoch=0 floor=7 moved=false raised=true timeline=1", after: "token=7\nepoch 0" + here, settings: "5s on"},
	{name: "a floor that is there", before: epochRow("0, "+own) + floor41, call: raised + "0, 0, 41, false, 5000)", answer: "base=0 epoch=0 floor=41 moved=false raised=false timeline=1"},
	{name: "a floor in an earlier epoch", before: epochRow("1, " + own), call: raised + "0, 0, 7, false, 5000)", answer: "base=1 epoch=1 floor=1099511627776 moved=false raised=true timeline=1"},
	{name: "raised meanwhile", before: epochRow("0, " + own), meanwhile: "UPDATE fencepost.epoch SET base = 5", call: raised + "3, 0, 0, false, 5000)",
		answer: "base=5 epoch=5 floor=5497558138880 moved=false raised=true timeline=1"},
	// Both have read the row; the second one waits and does not end the first.
	{name: "raised at the same time", before: epochRow("0, " + own), meanwhile: "SELECT FROM fencepost.epoch FOR SHARE", then: "UPDATE fencepost.epoch SET base = 5", call: raised + "0, 1, 0, false, 5000)",
		answer: "base=6 epoch=6 floor=6597069766656 moved=false raised=true timeline=1"},
	{name: "beside a grant", before: epochRow("0, " + own), locked: "LOCK TABLE fencepost.leases IN ROW EXCLUSIVE MODE", call: raises, answer: "base=0 epoch=0 floor=0 moved=false raised=false timeline=1"},
	{name: "alone", before: epochRow("0, " + own), locked: "LOCK TABLE fencepost.leases IN ROW EXCLUSIVE MODE", call: raised + "0, 0, 0, true, 5000)",
		answer: "55P03 fencepost: an open transaction, of server process N, has a lock on fencepost.leases"},
	{name: "waits too long", before: epochRow("0, " + own), locked: "SELECT FROM fencepost.epoch FOR UPDATE", call: raised + "1, 0, 0, false, 20)", answer: "55P03 canceling statement due to lock timeout"},
	{name: "adopted, nothing to raise", before: epochRow("0, " + own), call: "SELECT o_epoch, o_base, o_floor, o_raised FROM fencepost.adopt_epoch(5000)", answer: "base=0 epoch=0 floor=0 raised=false"},
	{name: "adopted beside a grant", before: epochRow("0, " + own), locked: "LOCK TABLE fencepost.leases IN ROW EXCLUSIVE MODE", call: "SELECT o_epoch FROM fencepost.adopt_epoch(5000)", answer: "epoch=0"},
	{name: "adopted", before: epochRow("1, "+own) + floor41, call: "SELECT o_epoch, o_base, o_timeline, o_floor, o_moved, o_raised, o_hidden, o_started = pg_postmaster_start_time() AS started, o_leases = LEASES AS leases FROM fencepost.adopt_epoch(5000)",
		answer: "leases=true base=1 epoch=1 floor=1099511627776 moved=false raised=true timeline=1 started=true"},
}

// TestOperatorFunctions: the same for the functions that an operator calls.
func TestOperatorFunctions(t *testing.T) {
	f := newFunctionTests(t)
	for name, cases := range map[string][]functionCase{"force_unlock": forceUnlockCases, "force_unlocked": forceUnlockedCases, "advance_lease": advanceCases,
		"purge_leases": purgeCases, "raise_floor": floorCases, "lock_leases": lockCases(), "raise_epoch": epochCases} {
		t.Run(name, func(t *testing.T) { f.check(t, cases) })
	}
}
