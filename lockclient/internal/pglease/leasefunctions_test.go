package pglease_test

import "testing"

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
