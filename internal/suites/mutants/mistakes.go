package main

// edit is one replacement in a file of the repository. old must occur exactly
// once.
type edit struct{ file, old, new string }

// mistake is a version of Fencepost with one thing wrong.
type mistake struct {
	name  string
	wrong string // what is wrong, and what it costs
	edits []edit
	by    catcher
	// also, if set, catches it too: the campaign, which finds by chance what an
	// exact schedule shows.
	also *catcher
}

// catcher is what must fail for a mistake: tests of a package, or the campaign.
type catcher struct {
	what  string // unit test, conformance suite, campaign
	pkg   string // a package's directory
	tests string // a pattern for -run; for the campaign, its flags
	times int    // how often a test is run, and must fail each time; 0 is once
}

// A test that catches a mistake by an exact schedule does so every time.
func unitTest(pkg, tests string) catcher { return catcher{what: "unit test", pkg: pkg, tests: tests} }

func suite(pkg, tests string) catcher {
	return catcher{what: "conformance suite", pkg: pkg, tests: tests}
}

// theCampaign runs until the log shows a violation, for at least a minute.
var theCampaign = &catcher{what: "campaign", pkg: "internal/suites/campaign", tests: "-first -duration 60s"}

const (
	marksSQL      = "sqlfence/sqladmin/migrations/0001_marks.sql"
	triggersSQL   = "sqlfence/sqladmin/migrations/0002_triggers.sql"
	leasesSQL     = "lockclient/internal/pglease/migrations/0001_leases.sql"
	epochSQL      = "lockclient/internal/pglease/migrations/0002_operators.sql"
	tableUpdateGo = "sqlfence/sqlrow/statement.go"
)

// mistakes are those that are easily made and hard to see.
var mistakes = []mistake{
	{
		name: "claim removed", wrong: "the UPDATE compares nothing",
		edits: []edit{{tableUpdateGo, "\tmark := prefix + t.token\n\tswitch {\n", "\tmark := prefix + t.token\n\tif mark != \"\" {\n\t\treturn \"true\"\n\t}\n\tswitch {\n"}},
		by:    unitTest("sqlfence", "^TestRowsDecide$"),
	},
	{
		name: "> for >=", wrong: "a holder cannot write twice under SameOrNewer",
		edits: []edit{{tableUpdateGo, `return token + " OPERATOR(pg_catalog.>=) " + mark`, `return token + " OPERATOR(pg_catalog.>) " + mark`}},
		by:    unitTest("sqlfence", "^TestRowsDecide$"),
	},
	{
		name: ">= for >", wrong: "a token writes twice under OncePerToken",
		edits: []edit{{tableUpdateGo, "OncePerToken:\n\t\treturn token + \" OPERATOR(pg_catalog.>) \" + mark", "OncePerToken:\n\t\treturn token + \" OPERATOR(pg_catalog.>=) \" + mark"}},
		by:    unitTest("sqlfence", "^TestRowsDecide$"),
	},
	{
		name: "row's session not asked", wrong: "a session of another encoding writes the row of another key",
		edits: []edit{{tableUpdateGo, `sessionSQL = sqlkit.EncodedSQL + " IS NOT NULL"`, `sessionSQL = "true"`}},
		by:    unitTest("sqlfence", "^TestRowEncodingOfEveryExecutor$"),
	},
	{
		name: "lease ID not compared", wrong: "two holders of one token look the same",
		edits: []edit{{"guard/decide.go", "case claim.LeaseID != mark.LeaseID:", "case false:"}},
		by:    unitTest("guard", "^TestDecideIsTheRule$"),
	},
	{
		name: "now() for clock_timestamp()", wrong: "after a wait for the row, the time is that before the wait",
		edits: []edit{{leasesSQL, "THEN u.now ELSE clock_timestamp() END)\n      AND u.not_after", "THEN u.now ELSE now() END)\n      AND u.not_after"}},
		by:    unitTest("lockclient/internal/pglease", "^TestGrantAfterAWait$"),
	},
	{
		name: "release without lease ID", wrong: "a late release frees the successor's lease",
		edits: []edit{
			{leasesSQL, "AND l.resource = ANY (p_resources) AND l.lease_id = u.lease_id AND l.token = u.token\n  RETURNING l.resource, CASE", "AND l.resource = ANY (p_resources)\n  RETURNING l.resource, CASE"},
		},
		by: suite("lockclient", "^TestConformance$"),
	},
	{
		name: "token from a sequence", wrong: "it is drawn before the wait for the row: the waiter wins with the smaller number",
		edits: []edit{
			{leasesSQL, "CREATE TABLE fencepost.leases", "CREATE SEQUENCE public.token_seq;\nCREATE TABLE fencepost.leases"},
			{leasesSQL, "SELECT u.resource, coalesce((SELECT f.token FROM fencepost.leases f WHERE f.resource = ''), 0) + 1,", "SELECT u.resource, nextval('public.token_seq'),"},
			{leasesSQL, "v_granted bigint;", "v_granted bigint;\n  v_next    bigint := nextval('public.token_seq');"},
			{leasesSQL, "ELSE greatest(l.token, (SELECT f.token FROM fencepost.leases f WHERE f.resource = '')) + 1 END,", "ELSE v_next END,"},
		},
		by: unitTest("lockclient", "^TestTokensGrow$"),
	},
	{
		name: "row deleted on release", wrong: "the next holder starts again at 1",
		edits: []edit{{leasesSQL, "  UPDATE fencepost.leases l SET lease_id = NULL, expires_at = least(l.expires_at, clock_timestamp()),\n    kept_for = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[1] END,\n    waiters = CASE WHEN l.wake_until > clock_timestamp() THEN l.waiters[2:] END\n  FROM unnest",
			"  DELETE FROM fencepost.leases l\n  USING unnest"}},
		by: suite("lockclient", "^TestConformance$"),
	},
	{
		name: "renewal resurrects", wrong: "a late renewal brings back a lease that is over",
		edits: []edit{{leasesSQL, "AND l.token = u.token AND l.expires_at > clock_timestamp() FOR NO KEY", "AND l.token = u.token FOR NO KEY"}},
		by:    suite("lockclient", "^TestConformance$"),
	},
	{
		name: "grant not durable", wrong: "a crash issues an acknowledged token again where synchronous_commit is off",
		edits: []edit{{leasesSQL, "v_set := set_config('lock_timeout', p_wait_ms, true);\n  IF current_setting('synchronous_commit') IN ('off', 'local') THEN\n    v_set := set_config('synchronous_commit', 'on', true);\n  END IF;\n  LOOP",
			"v_set := set_config('lock_timeout', p_wait_ms, true);\n  LOOP"}},
		by: unitTest("lockclient", "^TestGrantIsDurable$"),
	},
	{
		name: "deadline counted from the response", wrong: "the server gives the lease away before its holder knows",
		edits: []edit{{"lockclient/internal/pglease/issuer.go", "Reclaimed: Of(a.reclaimed), From: from}", "Reclaimed: Of(a.reclaimed), From: driver.Now()}"}},
		by:    suite("lockclient", "^TestConformance$"),
	},
	{
		name: "log before end", wrong: "a logger that blocks keeps holders from learning that their leases are lost",
		edits: []edit{{"lockclient/events.go", "c.reports.Add(func() {", "func(f func()) { f() }(func() {"}},
		by:    unitTest("lockclient", "^TestLossIsKnownWhileLoggerBlocks$"),
	},
	{
		name: "ended lease watched", wrong: "the keeper looks at a released lease without a pause until its deadline",
		edits: []edit{{"lockclient/keeper.go", "\tif l.ended() {\n\t\treturn\n\t}\n", ""}},
		by:    unitTest("lockclient", "^TestRenewedAfterItsEnd$"),
	},
	{
		name: "operation lost", wrong: "what does not fit into a statement is never sent",
		edits: []edit{{"lockclient/internal/pglease/batch.go", "b.waiting = rest;", "b.waiting = nil;"}},
		by:    unitTest("lockclient/internal/pglease", "^TestEachOnce$"),
	},
	{
		name: "operation doubled", wrong: "an operation is twice in its statement",
		edits: []edit{{"lockclient/internal/pglease/batch.go", "ops = append(ops, o)\n", "ops = append(ops, o, o)\n"}},
		by:    unitTest("lockclient/internal/pglease", "^TestEachOnce$"),
	},
	{
		name: "the caller's deadline not sent", wrong: "an attempt that its caller gave up is granted later",
		edits: []edit{{"lockclient/acquire.go", "ask.Timeout = min(ask.Timeout, time.Until(end))", "_ = end"}},
		by:    unitTest("lockclient", "^TestP8CallersDeadline$"),
	},
	{
		name: "purge without floor", wrong: "a purged resource starts again at 1",
		edits: []edit{{epochSQL, "    PERFORM fencepost.raise_floor(v_highest);\n", "    NULL;\n"}},
		by:    unitTest("lockclient/lockadmin/pgadmin", "^TestPurge$"),
	},
	{
		name: "raise without the advisory lock", wrong: "a raise does not wait for the transactions of the older holder",
		edits: []edit{{marksSQL, "    PERFORM pg_advisory_xact_lock(fencepost.lock_key(p_resource));\n    seen := fencepost.judge(", "    seen := fencepost.judge("}},
		by:    unitTest("sqlfence", "^TestRaiseWaits$"),
	},
	{
		name: "enter without the advisory lock", wrong: "a transaction that entered is overtaken by a raise",
		edits: []edit{{marksSQL, "ELSE pg_catalog.pg_advisory_xact_lock_shared(", "ELSE ("}},
		by:    unitTest("sqlfence", "^TestRaiseWaits$"),
		also:  theCampaign,
	},
	{
		name: "raise after read", wrong: "a claim above the mark enters without raising it, so what it reads is overtaken",
		edits: []edit{{marksSQL, "AND m.token OPERATOR(pg_catalog.=) p_token AND m.lease_id OPERATOR(pg_catalog.=) p_lease COLLATE pg_catalog.\"C\";", "AND m.token OPERATOR(pg_catalog.<=) p_token;"}},
		by:    unitTest("sqlfence", "^TestMarksDecide$"),
		also:  theCampaign,
	},
	{
		name: "enter in a savepoint", wrong: "rolling back to it frees the fence while the transaction goes on",
		edits: []edit{{marksSQL, "IF mine <> pg_current_xact_id()::xid THEN", "IF mine IS NULL THEN"}},
		by:    unitTest("sqlfence", "^TestEnterInSavepoint$"),
	},
	{
		name: "enter under an inherited REPEATABLE READ", wrong: "the mark is read by a snapshot from before the lock",
		edits: []edit{
			{"sqlfence/pgx.go", "IsoLevel: pgx.TxIsoLevel(strings.ToLower(level.String())), ", ""},
			{"sqlfence/std.go", "Isolation: level", "Isolation: sql.LevelDefault"},
			{marksSQL, "WHEN pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'\n      OR ", "WHEN "},
			{marksSQL, "  IF current_setting('transaction_isolation') <> ALL (p_levels) THEN", "  IF false THEN"},
		},
		by: unitTest("sqlfence", "^TestDefaultIsolation$"),
	},
	{
		name: "trigger without the lock", wrong: "a raise passes a transaction that has written and not committed",
		edits: []edit{{triggersSQL, "  IF NOT pg_try_advisory_xact_lock_shared(fencepost.lock_key(p_resource)) THEN\n", "  IF false THEN\n"}},
		by:    unitTest("sqlfence", "^TestTriggersInterleaved$"),
		also:  theCampaign,
	},
	{
		name: "trigger that goes on during a raise", wrong: "a writer that meets a raise which waits for the lock writes without it",
		edits: []edit{{triggersSQL, "    PERFORM pg_advisory_xact_lock_shared(fencepost.lock_key(p_resource));\n", ""}},
		by:    unitTest("sqlfence", "^TestTrapDeadlock$"),
	},
	{
		name: "only the first row is checked", wrong: "a statement that writes several resources needs the claim of one",
		edits: []edit{{triggersSQL, "string_agg('%L', ',' ORDER BY n)", "string_agg('', ',' ORDER BY n)"}},
		by:    unitTest("sqlfence", "^TestEveryRowIsSeen$"),
	},
	{
		name: "keys are not quoted", wrong: "a row whose resource has another one's name in its own needs no claim",
		edits: []edit{{triggersSQL, "string_agg('%L', ',' ORDER BY n)", "string_agg('%s', ',' ORDER BY n)"}},
		by:    unitTest("sqlfence", "^TestLatePartitionIsCheap$"),
	},
	{
		name: "swapped columns are not looked for", wrong: "after a rename a row whose new column names another resource passes",
		edits: []edit{{triggersSQL, "  PERFORM fencepost.refuse_swapped(TG_RELID, TG_NAME, label, %8$L);\n", ""}},
		by:    unitTest("sqlfence", "^TestSwappedColumns$"),
	},
	{
		name: "the list of checked resources stays with the session", wrong: "the next transaction of a session is not checked, and one that rolled a savepoint back goes on without the lock",
		edits: []edit{{triggersSQL, "right(%s || %s, 8000), true)", "right(%s || %s, 8000), false)"}},
		by:    unitTest("sqlfence", "^TestLatePartitionIsCheap$"),
	},
	{
		name: "a claim of the session counts", wrong: "behind a pooler the next client writes under the claim of the one before",
		edits: []edit{{marksSQL, "IF split_part(setting, ' ', 1) = pg_current_xact_id()::text THEN", "IF setting <> '' THEN"}},
		by:    unitTest("sqlfence", "^TestPgBouncerClaimsDoNotLeak$"),
	},
	{
		name: "sessions are looked for as the role of the moment", wrong: "after SET ROLE a stopped holder is never ended",
		edits: []edit{{marksSQL, " SET role = 'none' AS $$", " AS $$"}},
		by:    unitTest("sqlfence", "^TestOtherLogin$"),
	},
	{
		name: "memory mark after restart", wrong: "the marks are as durable as memory: a crash forgets them",
		edits: []edit{{marksSQL, "CREATE TABLE fencepost.marks", "CREATE UNLOGGED TABLE fencepost.marks"}},
		by:    unitTest("sqlfence", "^TestRaiseSurvivesCrash$"),
	},
	{
		name: "malformed claims are compared", wrong: "whoever sends a lease ID that is too long is told that two holders have one token",
		edits: []edit{{marksSQL, " AND octet_length(p_lease) <= 128 AND", " AND"}},
		by:    unitTest("sqlfence", "^TestMarkLimits$"),
	},
	{
		name: "floor admits its own token", wrong: "after a retirement the highest deleted token is admitted again",
		edits: []edit{{marksSQL, "WHEN (p_token < p_mark OR p_floor) ", "WHEN (p_token < p_mark) "}},
		by:    unitTest("sqlfence", "^TestMarksDecide$"),
	},
	{
		name: "lost COMMIT called not committed", wrong: "an unknown outcome invites a retry that writes twice",
		edits: []edit{{"sqlfence/outcome.go", "\tcase what == notKnown:\n\t\treturn t.unknown(err)\n", "\tcase what == notKnown:\n\t\treturn guard.Unavailable(commitOp, t.claims[0], err)\n"}},
		by:    unitTest("sqlfence", "^TestLostCommit$"),
	},
	{
		name: "lost COMMIT called committed", wrong: "what was rolled back is called a success",
		edits: []edit{{"sqlfence/outcome.go", "\tcase what == committed && lost && seen:", "\tcase lost && seen:"}},
		by:    unitTest("sqlfence", "^TestLostCommit$"),
	},
	{
		name: "lost COMMIT of another transaction", wrong: "what a callback wrote in a transaction of its own, and lost, is called a success",
		edits: []edit{{"sqlfence/outcome.go", "\tcase what == committed && lost && seen:", "\tcase what == committed && lost:"}},
		by:    unitTest("sqlfence", "^TestDriversEndsThenLost$"),
	},
	{
		name: "lost session after a ROLLBACK", wrong: "what a callback wrote after its own ROLLBACK is called nothing",
		edits: []edit{{"sqlfence/pgx.go", "\tcase native.TxStatus() == 'I':\n\t\treturn txNone\n", "\tcase native.TxStatus() == 'I' && !c.IsClosed():\n\t\treturn txNone\n"}, {"sqlfence/pgx.go", "\tcase native.TxStatus() == 'I': // before", "\tcase native.TxStatus() == 'I' && !c.Conn.IsClosed(): // before"}},
		by:    unitTest("sqlfence", "^TestDriversEndsThenLost$"),
	},
	{
		name: "COMMIT without the marker on pgx", wrong: "a callback that ended its transaction gets a success",
		edits: []edit{{"sqlfence/pgx.go", "\t\topts.CommitQuery = checkedCommitSQL\n", ""}},
		by:    unitTest("sqlfence", "^TestDriversCallbackEnds$"),
	},
	{
		name: "COMMIT without the marker on database/sql", wrong: "a callback that ended its transaction gets a success",
		edits: []edit{{"sqlfence/std.go", "\tif c.marked {\n", "\tif false {\n"}},
		by:    unitTest("sqlfence", "^TestDriversCallbackEnds$"),
	},
	{
		name: "ROLLBACK that asks nothing", wrong: "what the callback committed by itself is called rolled back",
		edits: []edit{{"sqlfence/outcome.go", "\twhat, why := d.end(ctx, t, false)\n", "\twhat, why := d.end(ctx, t, false)\n\tif what == committed {\n\t\twhat = undone\n\t}\n"}},
		by:    unitTest("sqlfence", "^TestDriversCallbackEnds$"),
	},
	{
		name: "an aborted COMMIT that asks nothing", wrong: "what the callback committed by itself is called aborted",
		edits: []edit{{"sqlfence/outcome.go", "\tcase what == committed:\n\t\treturn t.unknown(fmt.Errorf(\"%w: %w\", errEnded, err))\n", ""}},
		by:    unitTest("sqlfence", "^TestDriversCallbackEnds$"),
	},
	{
		name: "callback of a refused claim", wrong: "the callback of a stale claim runs",
		edits: []edit{{"sqlfence/tx.go", "\t\treturn err\n\t})\n\tif err != nil {\n\t\treturn err\n\t}\n\tdefer t.release()", "\t\treturn err\n\t})\n\tif err != nil {\n\t\tvar tx Tx\n\t\tfn(ctx, tx)\n\t\treturn err\n\t}\n\tdefer t.release()"}},
		by:    unitTest("sqlfence", "^TestDriversStale$"),
	},
	{
		name: "client_encoding unchecked in SQL", wrong: "behind a wrapped driver a name in another encoding is compared with another mark",
		edits: []edit{{"sqlfence/internal/sqlkit/drivers.go", "WHEN NOT \" + isEncodedSQL + \" THEN", "WHEN NOT \" + isEncodedSQL + \" AND false THEN"}},
		by:    unitTest("sqlfence", "^TestDriversEncoding$"),
	},
	{
		name: "BEGIN in another transaction", wrong: "what somebody left open is committed with the fenced work",
		edits: []edit{{"sqlfence/internal/sqlkit/drivers.go", "pg_current_xact_id_if_assigned() IS NOT NULL THEN", "pg_current_xact_id_if_assigned() IS NOT NULL AND false THEN"}},
		by:    unitTest("sqlfence", "^TestDriversOpenTransaction$"),
	},
	{
		name: "lost session by the error's text", wrong: "the callback's own io.EOF is taken for a raise",
		edits: []edit{{"sqlfence/outcome.go", "\tif what != undoneByLoss || ctx.Err() != nil ||", "\tif what != undoneByLoss && !sessionLost(err) || ctx.Err() != nil ||"}},
		by:    unitTest("sqlfence", "^TestDriversOwnEOF$"),
	},
	{
		name: "Exec passes on a COMMIT", wrong: "a statement that ends its transaction is called a success",
		edits: []edit{{"sqlfence/tx.go", "\"COMMIT\", \"ROLLBACK\", ", ""}},
		by:    unitTest("sqlfence", "^TestExecEnds$"),
	},
	{
		name: "Exec without enter", wrong: "a stale statement is committed",
		edits: []edit{{"sqlfence/pgx.go", "\tb.Queue(enter.sql, enter.args...)\n", "\tb.Queue(\"SELECT '', '', '', '7', '7', $1::text\", enter.args[0])\n"}},
		by:    unitTest("sqlfence", "^TestExec$"),
	},
	{
		name: "Exec's lost response called nothing", wrong: "a retry writes twice",
		edits: []edit{{"sqlfence/outcome.go", "// nobody can be asked\n\t\treturn guard.OutcomeUnknown(", "// nobody can be asked\n\t\treturn guard.Unavailable("}},
		by:    unitTest("sqlfence", "^TestExecLost$"),
	},
	{
		name: "metadata-only S3", wrong: "where ETags are made of bodies, a stale writer replaces an equal body",
		edits: []edit{{"s3fence/objects.go", "repeatable: k != kindPlain || b.opaque", "repeatable: true"}},
		by:    unitTest("s3fence", "^TestPlainNeedsOpaqueETags$"),
	},
	{
		name: "PUT without its condition", wrong: "whoever arrives last wins",
		edits: []edit{
			{"s3fence/sdk.go", "in.IfMatch = aws.String(string(over))", "_ = over"},
		},
		by:   unitTest("s3fence", "^TestP2WriteDuringRaise$"),
		also: theCampaign,
	},
	{
		name: "SDK retries on", wrong: "our own success comes back as a defeat",
		edits: []edit{{"s3fence/tracker.go", "o.Retryer = aws.NopRetryer{}", "_ = aws.NopRetryer{}"}},
		by:    unitTest("s3fence", "^TestCallersRetriesStayOff$"),
	},
	{
		name: "admission that does not raise", wrong: "an older request is admitted after a newer one",
		edits: []edit{{"sqlfence/store.go", "\tif err := sqlkit.Interrupted(ctx, d.raise(ctx, claim, true)); err != nil {\n\t\treturn markOf(claim, err), err\n\t}\n", ""}},
		by:    suite("sqlfence", "^TestStore$"),
	},
	{
		name: "refusal ignored", wrong: "the middleware raises the mark, and admits whom the store refused",
		edits: []edit{{"httpfence/middleware.go", "mark, err = m.store.Admit(ctx, *claim)", "mark, _ = m.store.Admit(ctx, *claim)"}},
		by:    unitTest("httpfence", "^TestP1NoStaleRequest$"),
	},
	{
		name: "lease ID not read", wrong: "over HTTP two holders of one token look the same",
		edits: []edit{{"httpfence/claim.go", "claim.LeaseID = lease\n", "_ = lease\n"}},
		by:    unitTest("httpfence", "^TestP1NoStaleRequest$"),
	},
	{
		name: "no resource named", wrong: "a claim sent to the wrong route raises the mark there if a proxy drops a field",
		edits: []edit{{"httpfence/claim.go", "len(named) == 0 && !m.opts.InsecureAnyResource", "false"}},
		by:    unitTest("httpfence", "^TestResourceField$"),
	},
	{
		name: "second token not seen", wrong: "a proxy in front decides by one line, the fence by another",
		edits: []edit{{"httpfence/claim.go", "lines := r.Header[TokenHeader]\n\tif len(lines) != 1 {", "lines := r.Header[TokenHeader]\n\tif len(lines) == 0 {"}},
		by:    unitTest("httpfence", "^FuzzParseHeader$"),
	},
	{
		name: "resource by the client's word", wrong: "a claim for one resource writes to another",
		edits: []edit{{"httpfence/claim.go", "claim.Resource = resource\n", "if len(named) == 1 {\n\t\tresource, _ = url.PathUnescape(named[0])\n\t}\n\tclaim.Resource = resource\n"}},
		by:    unitTest("httpfence", "^TestMisdirected$"),
	},
	{
		name: "joined lease is another lease", wrong: "a proxy that joins two lines makes the true holder a conflict",
		edits: []edit{{"httpfence/claim.go", "c < 0x7f && c != ',' && c", "c < 0x7f && c"}},
		by:    unitTest("httpfence", "^TestBadInputNeverReachesTheHandler$"),
	},
	{
		name: "another service's word", wrong: "a holder whose token is current is told that it is stale, and stops",
		edits: []edit{{"guard/reason.go", "case errors.As(err, &elsewhere), reason == ReasonMissing", "case elsewhere != nil, reason == ReasonMissing"}},
		by:    unitTest("httpfence", "^TestVotes$"),
	},
	{
		name: "COMMIT behind a 4xx", wrong: "what the handler refused is written",
		edits: []edit{{"httpfence/intx.go", "case h.response.status >= 400:", "case h.response.status >= 500:"}},
		by:    unitTest("httpfence", "^TestInTx$"),
	},
	{
		name: "request after the lease", wrong: "a holder whose lease is over sends its writes",
		edits: []edit{{"httpfence/transport.go", "lost := guard.Lost(ctx); lost != nil", "lost := guard.Lost(ctx); lost != nil && false"}},
		by:    unitTest("httpfence", "^TestTransportFailsLocally$"),
	},
	{
		name: "body that net/http can send again", wrong: "a write that was handled is repeated, and admitted twice",
		edits: []edit{{"httpfence/transport.go", "\tr.GetBody = nil\n", ""}},
		by:    unitTest("httpfence", "^TestTransportIsNotReplayed$"),
	},
	{
		name: "lost response called a refusal", wrong: "an unknown outcome looks like a write that was not made",
		edits: []edit{{"httpfence/status.go", "guard.ReasonSetup, guard.ReasonOutcomeUnknown:", "guard.ReasonSetup:"}},
		by:    unitTest("httpfence", "^TestStatusTable$"),
	},
	{
		name: "proof of another resource", wrong: "whoever may lock one resource may lock out the holders of all",
		edits: []edit{{"guard/proof/verifier.go", "case said.Resource != claim.Resource:", "case false:"}},
		by:    unitTest("guard/proof", "^TestRefused$"),
	},
}
