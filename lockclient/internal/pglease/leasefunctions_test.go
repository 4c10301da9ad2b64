package pglease_test

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/internal/input"
	"github.com/fencepost-go/fencepost/lockclient/internal/leasetest"

	"github.com/jackc/pgx/v5"
)

const (
	renews     = "SELECT * FROM fencepost.renew('{r}', '{mine}', '{5}', '{60000000}', '5000')"
	releases   = "SELECT * FROM fencepost.release('{r}', '{mine}', '{5}', '{topic}', '5000')"
	unwatches  = "SELECT * FROM fencepost.unwatch('r', 'p', '5000')"
	spends     = "SELECT * FROM fencepost.spend('r', 'mine', 'topic', '5000')"
	waits      = "SELECT * FROM fencepost.watch('r', 'mine', 'p', '5000')"
	looks      = "SELECT * FROM fencepost.watch('r', '', 'p', '5000')"
	line       = "UPDATE fencepost.leases SET kept_for = 'x', wake_until = "
	lineOfFive = ", waiters = '{p,q,s,u,v}'"
	turns      = `
		fencepost.leases.p: topic p q s u
		fencepost.leases.q: topic p q s u
		fencepost.leases.s: topic p q s u
		fencepost.leases.u: topic p q s u`
)

var states = leaseRow("a", mine+"'T+1µs'") + leaseRow("b", mine+"'T'") + leaseRow("c", others+"'T+1h'") +
	leaseRow("d", "6, 'mine', 'o', 'T-1m', 'T+1h'") + leaseRow("e", free+"'T-1s'") + leaseRow("f", mine+"'T+1h'")

const ofStates = "('{a,b,c,d,e,f,g}', array_fill('mine'::text, '{7}'), array_fill(5::bigint, '{7}'), "

var renewCases = []functionCase{
	{name: "runs", before: leaseRow("r", mine+"'T+1µs'"), call: renews, answer: "extended=true lease_id=mine resource=r token=5",
		after: "acquired_at=T-1m0s expires_at=T+1m0s lease_id=mine owner=o resource=r token=5", settings: "5s on"},
	{name: "shorter", before: leaseRow("r", mine+"'T+1h'"), call: renews, answer: "extended=true lease_id=mine resource=r token=5",
		after: "acquired_at=T-1m0s expires_at=T+1h0m0s lease_id=mine owner=o resource=r token=5"},
	{name: "over", before: leaseRow("r", mine+"'T'"), call: renews, answer: "-", after: "acquired_at=T-1m0s expires_at=T lease_id=mine owner=o resource=r token=5"},
	{name: "one waits", before: leaseRow("r", mine+"'T+1m'"), meanwhile: "UPDATE fencepost.leases SET metadata = 'new'; UPDATE clock SET t = 'T+1s'",
		call: renews, answer: "extended=true lease_id=mine resource=r token=5", after: "acquired_at=T-1m0s expires_at=T+1m1s lease_id=mine metadata=new owner=o resource=r token=5"},
	{name: "one waits too long", before: leaseRow("r", mine+"'T+1m'"), meanwhile: "UPDATE fencepost.leases SET metadata = 'new'; UPDATE clock SET t = 'T+1m'",
		call: renews, answer: "-", after: "acquired_at=T-1m0s expires_at=T+1m0s lease_id=mine metadata=new owner=o resource=r token=5"},
	{name: "one waits for lock_timeout", before: leaseRow("r", mine+"'T+1m'"), locked: "UPDATE fencepost.leases SET metadata = 'new'",
		call:   "SELECT * FROM fencepost.renew('{r}', '{mine}', '{5}', '{1}', '20')",
		answer: "55P03 canceling statement due to lock timeout"},
	{name: "a lost one does not wait", before: leaseRow("r", others+"'T+1m'"), locked: "UPDATE fencepost.leases SET metadata = 'new'",
		call: "SELECT * FROM fencepost.renew('{r}', '{mine}', '{5}', '{1}', '20')", answer: "-", after: "acquired_at=T-1m0s expires_at=T+1m0s lease_id=theirs owner=x resource=r token=5"},
	{name: "one of an earlier token does not wait", before: leaseRow("r", "6, 'mine', 'o', 'T-1m', 'T+1m'"), locked: "UPDATE fencepost.leases SET metadata = 'new'",
		call: "SELECT * FROM fencepost.renew('{r}', '{mine}', '{5}', '{1}', '20')", answer: "-", after: "acquired_at=T-1m0s expires_at=T+1m0s lease_id=mine owner=o resource=r token=6"},
	{name: "states", before: states, call: "SELECT * FROM fencepost.renew" + ofStates + "'{1000000,2000000,3000000,4000000,5000000,6000000,7000000}', '5000') ORDER BY 1, 4 DESC",
		answer: `extended=true lease_id=mine resource=a token=5
			extended=false lease_id=mine resource=a token=5
			extended=true lease_id=mine resource=f token=5
			extended=false lease_id=mine resource=f token=5`,
		after: `acquired_at=T-1m0s expires_at=T+1s lease_id=mine owner=o resource=a token=5
			acquired_at=T-1m0s expires_at=T lease_id=mine owner=o resource=b token=5
			acquired_at=T-1m0s expires_at=T+1h0m0s lease_id=theirs owner=x resource=c token=5
			acquired_at=T-1m0s expires_at=T+1h0m0s lease_id=mine owner=o resource=d token=6
			acquired_at=T-1m0s expires_at=T-1s owner=x resource=e token=5
			acquired_at=T-1m0s expires_at=T+1h0m0s lease_id=mine owner=o resource=f token=5`,
		settings: "0 on"},
	{name: "all", before: states, call: "SELECT * FROM fencepost.renew('{a,f}', '{mine,mine}', '{5,5}', '{1000000,2000000}', '5000') ORDER BY 1, 4 DESC",
		answer: `extended=true lease_id=mine resource=a token=5
			extended=true lease_id=mine resource=f token=5`},
	{name: "locked states", before: states, locked: "SELECT FROM fencepost.leases FOR UPDATE", call: "SELECT * FROM fencepost.renew" + ofStates + "'{1,1,1,1,1,1,1}', '5000') ORDER BY 1",
		answer: `extended=false lease_id=mine resource=a token=5
			extended=false lease_id=mine resource=f token=5`},
	{name: "one locked", before: states, locked: "SELECT FROM fencepost.leases WHERE resource = 'f' FOR UPDATE",
		call: "SELECT * FROM fencepost.renew('{a,f}', '{mine,mine}', '{5,5}', '{1000000,2000000}', '5000') ORDER BY 1, 4 DESC",
		answer: `extended=true lease_id=mine resource=a token=5
			extended=false lease_id=mine resource=a token=5
			extended=false lease_id=mine resource=f token=5`},
	{name: "two claims of one resource", before: leaseRow("r", "6, 'mine', 'o', 'T-1m', 'T+1s'"), call: "SELECT * FROM fencepost.renew('{r,r}', '{old,mine}', '{5,6}', '{1000000,2000000}', '5000') ORDER BY 1, 4 DESC",
		answer: `extended=true lease_id=mine resource=r token=6
			extended=false lease_id=mine resource=r token=6`, after: "acquired_at=T-1m0s expires_at=T+2s lease_id=mine owner=o resource=r token=6"},
	{name: "two claims of one token", before: leaseRow("r", mine+"'T+1s'"), call: "SELECT * FROM fencepost.renew('{r,r,r}', '{x,mine,y}', '{5,5,5}', '{1000000,2000000,3000000}', '5000') ORDER BY 1, 4 DESC",
		answer: `extended=true lease_id=mine resource=r token=5
			extended=false lease_id=mine resource=r token=5`, after: "acquired_at=T-1m0s expires_at=T+2s lease_id=mine owner=o resource=r token=5"},
}

var releaseCases = []functionCase{
	{name: "held", before: leaseRow("r", mine+"'T+1m'"), call: releases, answer: "resource=r told=false",
		after: "acquired_at=T-1m0s expires_at=T owner=o resource=r token=5", settings: "5s off"},
	{name: "over", before: leaseRow("r", mine+"'T-1s'"), call: releases, answer: "resource=r told=false", after: "acquired_at=T-1m0s expires_at=T-1s owner=o resource=r token=5"},
	{name: "states", before: states, call: "SELECT * FROM fencepost.release" + ofStates + "array_fill('x'::text, '{7}'), '5000') ORDER BY 1",
		answer: `resource=a told=false
			resource=b told=false
			resource=f told=false`,
		after: `acquired_at=T-1m0s expires_at=T owner=o resource=a token=5
			acquired_at=T-1m0s expires_at=T owner=o resource=b token=5
			acquired_at=T-1m0s expires_at=T+1h0m0s lease_id=theirs owner=x resource=c token=5
			acquired_at=T-1m0s expires_at=T+1h0m0s lease_id=mine owner=o resource=d token=6
			acquired_at=T-1m0s expires_at=T-1s owner=x resource=e token=5
			acquired_at=T-1m0s expires_at=T owner=o resource=f token=5`},
	{name: "line", before: leaseRow("r", mine+"'T+1m'") + line + "'T+1µs'" + lineOfFive, call: releases, answer: "resource=r told=true" + turns,
		after: `acquired_at=T-1m0s expires_at=T kept_for=p owner=o resource=r token=5 waiters=["q", "s", "u", "v"] wake_until=T+1µs`},
	{name: "line of one", before: leaseRow("r", mine+"'T+1m'") + line + "'T+1s', waiters = '{p}'", call: releases,
		answer: `resource=r told=true
			fencepost.leases.p: topic p`,
		after: `acquired_at=T-1m0s expires_at=T kept_for=p owner=o resource=r token=5 waiters=[] wake_until=T+1s`},
	{name: "old line", before: leaseRow("r", mine+"'T+1m'") + line + "'T'" + lineOfFive, call: releases, answer: "resource=r told=false",
		after: `acquired_at=T-1m0s expires_at=T owner=o resource=r token=5 wake_until=T`},
	{name: "a mark without a name", before: leaseRow("r", mine+"'T+1m'") + line + "'T+1s'", call: releases,
		answer: `resource=r told=true
			fencepost.leases: topic`,
		after: `acquired_at=T-1m0s expires_at=T owner=o resource=r token=5 wake_until=T+1s`},
	{name: "no topic", before: leaseRow("r", mine+"'T+1m'") + line + "'T+1s'" + lineOfFive,
		call: "SELECT * FROM fencepost.release('{r}', '{mine}', '{5}', ARRAY[''], '5000')", answer: "resource=r told=false",
		after: `acquired_at=T-1m0s expires_at=T kept_for=p owner=o resource=r token=5 waiters=["q", "s", "u", "v"] wake_until=T+1s`},
	{name: "marked meanwhile", before: leaseRow("r", mine+"'T+1m'"), meanwhile: "UPDATE fencepost.leases SET wake_until = 'T+5s', waiters = '{p}'", call: releases,
		answer: `resource=r told=true
			fencepost.leases.p: topic p`},
	{name: "renewed meanwhile", before: leaseRow("r", mine+"'T+1m'"), meanwhile: "UPDATE fencepost.leases SET expires_at = 'T+2m'; UPDATE clock SET t = 'T+1s'", call: releases,
		answer: "resource=r told=false", after: "acquired_at=T-1m0s expires_at=T+1s owner=o resource=r token=5"},
}

var spendCases = []functionCase{
	{name: "no row", call: spends, answer: "freed=false", settings: "5s on",
		after: `resource=r spent_until=T+1h0m0s token=1
			spent r mine T+1h0m0s`},
	{name: "above the floor", before: leaseRow("", "41, NULL, '', '-infinity', '-infinity'") + leaseRow("q", free+"'T'"), call: spends, answer: "freed=false",
		after: `token=41
			acquired_at=T-1m0s expires_at=T owner=x resource=q token=5
			resource=r spent_until=T+1h0m0s token=42
			spent r mine T+1h0m0s`},
	{name: "held under it", before: leaseRow("r", mine+"'T+1m'") + "UPDATE fencepost.leases SET not_after = 'T+1h', kept_for = 'x', waiters = '{p}'", call: spends, answer: "freed=true",
		after: `acquired_at=T-1m0s expires_at=T kept_for=x owner=o resource=r spent_until=T+1h0m0s token=5 waiters=["p"]
			spent r mine T+1h0m0s`},
	{name: "over", before: leaseRow("r", mine+"'T-1s'"), call: spends, answer: "freed=true",
		after: `acquired_at=T-1m0s expires_at=T-1s owner=o resource=r spent_until=T+1h0m0s token=5
			spent r mine T+1h0m0s`},
	{name: "held under another", before: leaseRow("r", others+"'T+1m'") + leaseRow("q", mine+"'T+1m'"), call: spends, answer: "freed=false",
		after: `acquired_at=T-1m0s expires_at=T+1m0s lease_id=mine owner=o resource=q token=5
			acquired_at=T-1m0s expires_at=T+1m0s lease_id=theirs owner=x resource=r spent_until=T+1h0m0s token=5
			spent r mine T+1h0m0s`},
	{name: "earlier ones", before: leaseRow("r", free+"'T-1m'") + `INSERT INTO fencepost.spent VALUES ('r', 'now', 'T'), ('r', 'soon', 'T+1µs'), ('q', 'elsewhere', 'T-1h'), ('r', 'mine', 'T+1s')`, call: spends, answer: "freed=false",
		after: `acquired_at=T-1m0s expires_at=T-1m0s owner=x resource=r spent_until=T+1h0m0s token=5
			spent q elsewhere T-1h0m0s
			spent r mine T+1h0m0s
			spent r soon T+1µs`},
	{name: "line", before: leaseRow("r", mine+"'T+1m'") + line + "'T+1µs'" + lineOfFive, call: spends, answer: "freed=true" + turns,
		after: `acquired_at=T-1m0s expires_at=T kept_for=p owner=o resource=r spent_until=T+1h0m0s token=5 waiters=["q", "s", "u", "v"] wake_until=T+1µs
			spent r mine T+1h0m0s`},
	{name: "old line", before: leaseRow("r", mine+"'T+1m'") + line + "'T'" + lineOfFive, call: spends, answer: "freed=true",
		after: `acquired_at=T-1m0s expires_at=T kept_for=x owner=o resource=r spent_until=T+1h0m0s token=5 waiters=["p", "q", "s", "u", "v"] wake_until=T
			spent r mine T+1h0m0s`},
}

const heldAnswer = "expires_at=T+1µs lease_id=theirs marked=true owner=x remaining=1 token=5"

var watchCases = []functionCase{
	{name: "held", before: leaseRow("r", others+"'T+1µs'"), call: waits, answer: heldAnswer, settings: "5s off",
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5 waiters=["p"] wake_until=T+5s`},
	{name: "over", before: leaseRow("r", others+"'T'"), call: waits, answer: "-", after: "acquired_at=T-1m0s expires_at=T lease_id=theirs owner=x resource=r token=5"},
	{name: "own", before: leaseRow("r", mine+"'T+1m'"), call: waits, answer: "-", after: "acquired_at=T-1m0s expires_at=T+1m0s lease_id=mine owner=o resource=r token=5"},
	{name: "another resource", before: leaseRow("q", others+"'T+1m'"), call: waits, answer: "-", after: "acquired_at=T-1m0s expires_at=T+1m0s lease_id=theirs owner=x resource=q token=5"},
	{name: "kept", before: leaseRow("r", free+"'T-99999µs'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: waits,
		answer: "expires_at=T-99.999ms marked=true owner=x remaining=-99999 token=5",
		after:  `acquired_at=T-1m0s expires_at=T-99.999ms kept_for=q owner=x resource=r token=5 waiters=["p"] wake_until=T+5s`},
	{name: "kept long enough", before: leaseRow("r", free+"'T-100ms'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: waits, answer: "-",
		after: `acquired_at=T-1m0s expires_at=T-100ms kept_for=q owner=x resource=r token=5`},
	{name: "kept for it", before: leaseRow("r", free+"'T'") + "UPDATE fencepost.leases SET kept_for = 'p'", call: waits, answer: "-",
		after: `acquired_at=T-1m0s expires_at=T kept_for=p owner=x resource=r token=5`},
	{name: "free", before: leaseRow("r", free+"'T'"), call: waits, answer: "-", after: `acquired_at=T-1m0s expires_at=T owner=x resource=r token=5`},
	{name: "over, and was kept", before: leaseRow("r", others+"'T'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: waits, answer: "-",
		after: `acquired_at=T-1m0s expires_at=T kept_for=q lease_id=theirs owner=x resource=r token=5`},
	// The place in line.
	{name: "old line", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T', waiters = '{q}'", call: waits, answer: heldAnswer,
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5 waiters=["p"] wake_until=T+5s`},
	{name: "behind", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1µs', waiters = '{q}'", call: waits, answer: heldAnswer,
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5 waiters=["q", "p"] wake_until=T+5s`},
	{name: "behind, with a recent mark", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+5s', waiters = '{q}'", call: waits, answer: heldAnswer,
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5 waiters=["q", "p"] wake_until=T+5s`},
	{name: "mark without a name", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1s'", call: waits, answer: heldAnswer,
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5 waiters=["p"] wake_until=T+5s`},
	{name: "already in it, to be renewed", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+2499999µs', waiters = '{p,q}'", call: waits, answer: heldAnswer,
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5 waiters=["p", "q"] wake_until=T+5s`},
	{name: "already in it", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+2500ms', waiters = '{p,q}'", call: waits, answer: heldAnswer,
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5 waiters=["p", "q"] wake_until=T+2.5s`},
	{name: "the last place", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1µs', waiters = array_fill('x'::text, '{127}')", call: waits, answer: heldAnswer},
	{name: "full", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1µs', waiters = array_fill('x'::text, '{128}')", call: waits,
		answer: "expires_at=T+1µs lease_id=theirs owner=x remaining=1 token=5"},
	{name: "full, and in it", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1µs', waiters = array_fill('x'::text, '{127}') || '{p}'", call: waits, answer: heldAnswer},
	{name: "was full", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T', waiters = array_fill('x'::text, '{128}')", call: waits, answer: heldAnswer},
	// Onlookers, who write nothing.
	{name: "look", before: leaseRow("r", others+"'T+1µs'"), call: looks, answer: "expires_at=T+1µs lease_id=theirs marked=false owner=x remaining=1 token=5", settings: "0 local",
		after: `acquired_at=T-1m0s expires_at=T+1µs lease_id=theirs owner=x resource=r token=5`},
	{name: "look, for long", before: leaseRow("r", others+"'T+1h'"), call: looks, answer: "expires_at=T+1h0m0s lease_id=theirs marked=false owner=x remaining=3600000000 token=5"},
	{name: "look, over", before: leaseRow("r", others+"'T'"), call: looks, answer: "-"},
	{name: "look, kept", before: leaseRow("r", free+"'T'") + "UPDATE fencepost.leases SET kept_for = 'q'", call: looks, answer: "-"},
	{name: "look, marked", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+2s', waiters = '{p,q}'", call: looks, answer: heldAnswer},
	{name: "look, mark too old", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+1999999µs', waiters = '{p,q}'", call: looks,
		answer: "expires_at=T+1µs lease_id=theirs marked=false owner=x remaining=1 token=5"},
	{name: "look, mark of another", before: leaseRow("r", others+"'T+1µs'") + "UPDATE fencepost.leases SET wake_until = 'T+2s', waiters = '{q}'", call: looks,
		answer: "expires_at=T+1µs lease_id=theirs marked=false owner=x remaining=1 token=5"},
}

var unwatchCases = []functionCase{
	{name: "in line", before: leaseRow("r", others+"'T+1m'") + line + "'T+1s', waiters = '{q,p,s}'", call: unwatches, answer: "", settings: "5s off",
		after: `acquired_at=T-1m0s expires_at=T+1m0s kept_for=x lease_id=theirs owner=x resource=r token=5 waiters=["q", "s"] wake_until=T+1s`},
	{name: "not in it", before: leaseRow("r", others+"'T+1m'") + line + "'T+1s', waiters = '{q}'", call: unwatches, answer: "",
		after: `acquired_at=T-1m0s expires_at=T+1m0s kept_for=x lease_id=theirs owner=x resource=r token=5 waiters=["q"] wake_until=T+1s`},
}

// TestLeaseFunctions: the same for the other functions that an issuer calls.
func TestLeaseFunctions(t *testing.T) {
	f := newFunctionTests(t)
	for name, cases := range map[string][]functionCase{"renew": renewCases, "release": releaseCases, "spend": spendCases, "watch": watchCases, "unwatch": unwatchCases} {
		t.Run(name, func(t *testing.T) { f.check(t, cases) })
	}
}

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

// epochVariants are servers that the test's server is not: what takes the place
// of texts of the functions, and what they answer then.
var epochVariants = []struct {
	name  string
	texts []string
	cases []functionCase
}{
	{"a standby", []string{"pg_is_in_recovery()", "true"}, []functionCase{
		{name: "refused", call: raises, answer: "25006 fencepost: this server is a standby"},
	}},
	{"timeline 3", []string{"pg_walfile_name(pg_current_wal_lsn())", "'0000000300000001000000FF'"}, []functionCase{
		{name: "first", call: raises, answer: "base=0 epoch=2 floor=2199023255552 moved=false raised=true timeline=3", after: "token=2199023255552\nepoch 0" + here},
		{name: "the present epoch", before: epochRow("1, "+own) + "INSERT INTO fencepost.leases (resource, token) VALUES ('', 3298534883328)", call: raised + "3, 0, 0, false, 5000)",
			answer: "base=1 epoch=3 floor=3298534883328 moved=false raised=false timeline=3"},
		{name: "promoted", before: epochRow("1, "+own) + "INSERT INTO fencepost.leases (resource, token) VALUES ('', 2199023255552)", call: raises,
			answer: "base=1 epoch=3 floor=3298534883328 moved=false raised=true timeline=3", after: "token=3298534883328\nepoch 1" + here},
		{name: "above the tokens", before: epochRow("1, "+own) + leaseRow("r", "5497558138881, NULL, '', 'T', 'T'"), call: raised + "0, 1, 0, false, 5000)",
			answer: "base=4 epoch=6 floor=6597069766656 moved=false raised=true timeline=3"},
		{name: "to an epoch", before: epochRow("1, " + own), call: raised + "9, 0, 0, false, 5000)", answer: "base=7 epoch=9 floor=9895604649984 moved=false raised=true timeline=3"},
		{name: "moved", before: epochRow("1, 'x', 1, 1") + leaseRow("r", "5497558138881, NULL, '', 'T', 'T'"), call: raises,
			answer: "base=6 epoch=8 floor=8796093022208 moved=true raised=true timeline=3"},
		{name: "after the last", before: epochRow("0, " + own), call: raised + "8388608, 0, 0, false, 5000)",
			answer: "22003 fencepost: epoch 8388608 is refused, base 8388606 on timeline 3: a token has room for 8388607"},
	}},
	{"it hides everything", []string{
		"s.system_identifier::text INTO o_system_identifier FROM pg_control_system() s", "public.hidden('cluster') INTO o_system_identifier",
		"pg_walfile_name(pg_current_wal_lsn())", "public.hidden('timeline')",
		"o_started := pg_postmaster_start_time()", "o_started := public.hidden('start')::timestamptz",
	}, []functionCase{
		{name: "first", call: raises, answer: "base=0 epoch=0 floor=0 hidden=no cluster; no timeline; no start moved=false raised=true", after: "epoch 0 in this database in this table"},
		{name: "it did not before", before: epochRow("1, " + own), call: raised + "3, 0, 0, false, 5000)",
			answer: "base=3 epoch=3 floor=3298534883328 hidden=no cluster; no timeline; no start moved=false raised=true", after: "token=3298534883328\nepoch 3" + here},
		{name: "moved", before: epochRow("0, 'x', 1, 1"), call: raises, answer: "base=1 epoch=1 floor=1099511627776 hidden=no cluster; no timeline; no start moved=true raised=true",
			after: "token=1099511627776\nepoch 1 in this database in this table"},
		{name: "nothing to raise", before: epochRow("0, " + own), call: raises, answer: "base=0 epoch=0 floor=0 hidden=no cluster; no timeline; no start moved=false raised=false"},
		{name: "after the last", call: raised + "8388608, 0, 0, false, 5000)",
			answer: "22003 fencepost: epoch 8388608 is refused, base 8388608 on timeline unknown: a token has room for 8388607"},
	}},
}

// TestEpochFunctions: the epoch on a standby, on a later timeline, and where the
// server hides what it is computed from.
func TestEpochFunctions(t *testing.T) {
	f := newFunctionTests(t)
	mustExec(t, f.pool, "CREATE FUNCTION hidden(what text) RETURNS text LANGUAGE plpgsql AS 'BEGIN RAISE insufficient_privilege USING MESSAGE = ''no '' || what; END'")
	functions := leasetest.Value[string](t, f.pool, "SELECT pg_get_functiondef('fencepost.raise_epoch'::regproc)")
	for _, v := range epochVariants {
		t.Run(v.name, func(t *testing.T) {
			for k := 0; k < len(v.texts); k += 2 {
				if !strings.Contains(functions, v.texts[k]) {
					t.Fatalf("the functions have no %q", v.texts[k])
				}
			}
			mustExec(t, f.pool, strings.NewReplacer(v.texts...).Replace(functions))
			f.check(t, v.cases)
		})
	}
}

// issuerTries and ownerTries are statements of an issuer's role and of the owner
// of the table.
func issuerTries(sql string) string {
	return "SELECT public.tries('" + strings.ReplaceAll(sql, "'", "''") + "')"
}

func ownerTries(sql string) string {
	return strings.Replace(issuerTries(sql), "tries(", "tries_as_owner(", 1)
}

const (
	onlyGrows = "42501 fencepost: UPDATE of fencepost.leases is refused: a token only grows"
	tooLong   = " of fencepost.leases is refused: a lease lasts 24 hours at most"
	skips     = " of fencepost.leases is refused: a grant takes the next token"
	theFloor  = " of fencepost.leases is refused: only an operator raises the floor"
	longMark  = " of fencepost.leases is refused: a wake mark lasts a minute at most"
	longSpent = " of fencepost.leases is refused: a lease ID is spent for an hour"
	insert    = "INSERT INTO fencepost.leases (resource, token, expires_at, wake_until) VALUES "
	refused   = "42501 fencepost: "
)

var checkLeaseCases = []functionCase{
	{name: "first token", call: issuerTries(insert + "('r', 1, 'T', NULL)"), answer: "-", after: "expires_at=T resource=r token=1"},
	{name: "first token skipped", call: issuerTries(insert + "('r', 2, 'T', NULL)"), answer: refused + "INSERT" + skips, after: "-"},
	{name: "next above the floor", before: floor41, call: issuerTries(insert + "('r', 42, 'T', NULL)"), answer: "-"},
	{name: "skipped above the floor", before: floor41, call: issuerTries(insert + "('r', 43, 'T', NULL)"), answer: refused + "INSERT" + skips},
	{name: "next token", before: leaseRow("r", free+"'T'"), call: issuerTries("UPDATE fencepost.leases SET token = 6"), answer: "-"},
	{name: "token skipped", before: leaseRow("r", free+"'T'"), call: issuerTries("UPDATE fencepost.leases SET token = 7"), answer: refused + "UPDATE" + skips},
	{name: "next is above the floor", before: floor41 + leaseRow("r", free+"'T'"), call: issuerTries("UPDATE fencepost.leases SET token = 42 WHERE resource = 'r'"), answer: "-"},
	{name: "token skipped above the floor", before: floor41 + leaseRow("r", free+"'T'"), call: issuerTries("UPDATE fencepost.leases SET token = 43 WHERE resource = 'r'"), answer: refused + "UPDATE" + skips},
	{name: "same token", before: leaseRow("r", free+"'T'"), call: issuerTries("UPDATE fencepost.leases SET metadata = 'm'"), answer: "-", after: "acquired_at=T-1m0s expires_at=T metadata=m owner=x resource=r token=5"},
	{name: "lower token", before: leaseRow("r", free+"'T'"), call: issuerTries("UPDATE fencepost.leases SET token = 4"), answer: onlyGrows},
	{name: "renamed", before: leaseRow("r", free+"'T'"), call: issuerTries("UPDATE fencepost.leases SET resource = 'q'"), answer: onlyGrows},
	{name: "first floor", call: issuerTries(insert + "('', 1, 'T', NULL)"), answer: refused + "INSERT" + theFloor},
	{name: "next floor", before: floor41, call: issuerTries("UPDATE fencepost.leases SET token = 42"), answer: refused + "UPDATE" + theFloor},
	{name: "25 hours", call: issuerTries(insert + "('r', 1, 'T+25h', NULL)"), answer: "-"},
	{name: "more than 25 hours", call: issuerTries(insert + "('r', 1, 'T+25h0.000001s', NULL)"), answer: refused + "INSERT" + tooLong},
	{name: "extended to 25 hours", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET expires_at = 'T+25h'"), answer: "-"},
	{name: "extended to more", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET expires_at = 'T+25h0.000001s'"), answer: refused + "UPDATE" + tooLong},
	{name: "the clock was set back", before: "UPDATE clock SET t = 'T+2h';" + leaseRow("r", others+"'T+27h'") + "UPDATE clock SET t = 'T'",
		call: issuerTries("UPDATE fencepost.leases SET metadata = 'm'"), answer: "-", after: "acquired_at=T-1m0s expires_at=T+27h0m0s lease_id=theirs metadata=m owner=x resource=r token=5"},
	{name: "a mark of a minute", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET wake_until = 'T+1m'"), answer: "-"},
	{name: "a longer mark", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET wake_until = 'T+1m0.000001s'"), answer: refused + "UPDATE" + longMark},
	{name: "a new longer mark", call: issuerTries(insert + "('r', 1, 'T', 'T+1h')"), answer: refused + "INSERT" + longMark},
	{name: "spent for two hours", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET spent_until = 'T+2h'"), answer: "-"},
	{name: "spent for longer", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET spent_until = 'T+2h0.000001s'"), answer: refused + "UPDATE" + longSpent},
	{name: "new and spent for longer", call: issuerTries("INSERT INTO fencepost.leases (resource, token, spent_until) VALUES ('r', 1, 'infinity')"), answer: refused + "INSERT" + longSpent},
	{name: "an owner of 128 bytes", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET owner = repeat('x', 128)"), answer: "-"},
	{name: "a longer owner", before: leaseRow("r", others+"'T'"), call: issuerTries("UPDATE fencepost.leases SET owner = repeat('x', 129)"),
		answer: `23514 new row for relation "leases" violates check constraint "leases_text_length"`},
	{name: "owner: any token", call: ownerTries(insert + "('r', 9, 'T', 'T+1h')"), answer: "-", after: "expires_at=T resource=r token=9 wake_until=T+1h0m0s"},
	{name: "owner: the floor", before: floor41, call: ownerTries("UPDATE fencepost.leases SET token = 99"), answer: "-", after: "token=99"},
	{name: "owner: lower token", before: leaseRow("r", free+"'T'"), call: ownerTries("UPDATE fencepost.leases SET token = 4"), answer: onlyGrows},
	{name: "owner: renamed", before: leaseRow("r", free+"'T'"), call: ownerTries("UPDATE fencepost.leases SET resource = 'q', token = 6"), answer: onlyGrows},
	{name: "owner: too long", before: leaseRow("r", free+"'T'"), call: ownerTries("UPDATE fencepost.leases SET expires_at = 'T+26h'"), answer: refused + "UPDATE" + tooLong},
}

func newCheckLeaseTests(t *testing.T) *functionTests {
	f := newFunctionTests(t)
	role := "fencepost_test_" + strings.ReplaceAll(input.NewLeaseID(), "-", "")
	mustExec(t, f.pool, `CREATE ROLE `+role+`;
		GRANT USAGE ON SCHEMA fencepost TO `+role+`; GRANT SELECT, INSERT, UPDATE ON fencepost.leases TO `+role+`; GRANT SELECT ON clock TO `+role+`; GRANT CREATE ON SCHEMA public TO `+role+`;
		CREATE FUNCTION tries(sql text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN EXECUTE sql; END';
		CREATE FUNCTION tries_as_owner(sql text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN EXECUTE sql; END';
		ALTER FUNCTION tries OWNER TO `+role+`;
		DROP TRIGGER leases_insert ON fencepost.leases; DROP TRIGGER leases_token ON fencepost.leases;
		DROP TRIGGER leases_expiry ON fencepost.leases; DROP TRIGGER leases_wake ON fencepost.leases;
		CREATE TRIGGER always AFTER INSERT OR UPDATE ON fencepost.leases FOR EACH ROW EXECUTE FUNCTION fencepost.check_lease()`)
	t.Cleanup(func() { mustExec(t, f.pool, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	return f
}

// TestCheckLease: what the triggers' function refuses, whatever the conditions
// under which they call it.
func TestCheckLease(t *testing.T) { newCheckLeaseTests(t).check(t, checkLeaseCases) }
