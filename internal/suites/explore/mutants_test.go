package explore

// mutant is a protocol with one thing taken away.
type mutant struct {
	name   string
	what   string // was taken away
	breaks Promise
	part   string // of the invariant's words, where a promise has several invariants
	model  runnable
}

// run explores the mutant up to its first violation.
func (m mutant) run() result { return m.model.only(m.breaks, m.part).run() }

func row(base rowConfig, change func(*rowConfig)) runnable {
	return newRow("row", with(base, change))
}
func tx(base txConfig, change func(*txConfig)) runnable {
	return newTx("transaction", with(base, change))
}
func tokens(change func(*issuerConfig)) runnable { return newIssuer("issuer", with(tokenBase, change)) }
func timed(change func(*issuerConfig)) runnable  { return newIssuer("issuer", with(timedBase, change)) }

// mutants are those of all protocols.
var mutants = []mutant{
	{"row-no-claim", "UPDATE without the comparison", P1, "", row(rowBase, func(c *rowConfig) { c.noClaim = true })},
	{"row-check-first", "compared in the client, then written", P1, "", row(rowBase, func(c *rowConfig) { c.checkFirst = true })},
	{"row-async-raise", "a takeover that does not wait for the disk", P1, "", row(rowBase, func(c *rowConfig) { c.asyncRaise = true })},
	{"row-async-raise-read", "the same: what was read is lost", P2, "survives", row(rowBase, func(c *rowConfig) { c.asyncRaise = true })},
	{"row-read-before-raise", "read, then raise", P2, "between", row(rowBase, func(c *rowConfig) { c.readFirst = true })},
	{"row-no-takeover", "compared only in the write, never raised before the read", P2, "between", row(rowBase, func(c *rowConfig) { c.takeover = false })},
	{"row-greater-for-same", "> where >= belongs", P6, "", row(rowBase, func(c *rowConfig) { c.strict = true })},
	{"row-same-for-greater", ">= where > belongs", Once, "", row(onceBase, func(c *rowConfig) { c.spentWrites = true })},
	{"row-async-write", "OncePerToken under synchronous_commit = off", P1, "", row(onceBase, func(c *rowConfig) { c.asyncWrite = true })},
	{"row-no-lease-column", "a table that does not keep the lease ID", P4, "", row(restoreBase, func(c *rowConfig) { c.noLease = true })},
	{"lease-token-not-raised", "an UPDATE that leaves the token", P3, "", row(rowBase, func(c *rowConfig) { c.sameToken = true })},
	{"lease-row-deleted", "release deletes the lease's row", P3, "", row(rowBase, func(c *rowConfig) { c.deleteRow = true })},

	{"tx-one-snapshot", "enter locks and reads the mark in one snapshot", P1, "", tx(txBase, func(c *txConfig) { c.oneSnapshot = true })},
	{"tx-enter-without-lock", "enter reads the mark and takes no lock", P1, "", tx(txBase, func(c *txConfig) { c.noShared = true })},
	{"tx-enter-compares-nothing", "enter takes the lock and compares nothing", P1, "", tx(txBase, func(c *txConfig) { c.noDecision = true })},
	{"tx-raise-without-lock", "raise takes no lock: it passes a transaction", P1, "", tx(txBase, func(c *txConfig) { c.noExclusive = true })},
	{"tx-raise-without-lock-race", "the same: two raises cross", P3, "", tx(txBase, func(c *txConfig) { c.noExclusive = true })},
	{"tx-raise-without-lock-read", "the same: a predecessor commits after the read", P2, "between", tx(txBase, func(c *txConfig) { c.noExclusive = true })},
	{"tx-raise-decides-before-lock", "raise does not compare again under its lock", P3, "", tx(txBase, func(c *txConfig) { c.noRecheck = true })},
	{"tx-raise-in-work", "raise in the work's transaction, which rolls back", P2, "between", tx(txBase, func(c *txConfig) { c.inWork = true })},
	{"tx-savepoint", "enter in a savepoint, which is rolled back", P1, "", tx(txBase, func(c *txConfig) { c.savepoint = true })},
	{"tx-async-raise", "raise under synchronous_commit = off", P3, "", tx(txBase, func(c *txConfig) { c.asyncRaise = true })},
	{"tx-async-raise-read", "the same: what was read is lost", P2, "survives", tx(txBase, func(c *txConfig) { c.asyncRaise = true })},
	{"tx-retire-without-floor", "retire deletes marks and raises no floor", P3, "", tx(txBase, func(c *txConfig) { c.noFloor = true })},
	{"tx-retire-without-floor-write", "the same: a stale transaction commits", P1, "", tx(txBase, func(c *txConfig) { c.noFloor = true })},
	{"tx-floor-equal-admitted", "a claim equal to the floor is admitted", P4, "", tx(twinBase, func(c *txConfig) { c.equalFloor = true })},
	{"tx-greater-for-same", "enter with > where >= belongs", P6, "", tx(txBase, func(c *txConfig) { c.strict = true })},
	{"tx-no-timeout", "nobody ends the transaction of a stopped client", Progress, "", tx(txBase, func(c *txConfig) { c.noTimeout = true })},

	{"issuer-token-not-raised", "an UPDATE that leaves the token", P4, "", tokens(func(c *issuerConfig) { c.sameToken = true })},
	{"issuer-sequence", "the token drawn from a sequence before the wait", P3, "", tokens(func(c *issuerConfig) { c.sequence = true })},
	{"issuer-row-deleted", "release deletes the row", P3, "", tokens(func(c *issuerConfig) { c.deleteRow = true })},
	{"issuer-async-acquire", "acquire under synchronous_commit = off", P4, "", tokens(func(c *issuerConfig) { c.asyncAcquire = true })},
	{"issuer-purge-without-floor", "purge deletes the row and raises no floor", P3, "", tokens(func(c *issuerConfig) { c.noFloor = true })},
	{"issuer-purge-without-lock", "purge concurrent with an acquire that has read the floor and inserts", P3, "", tokens(func(c *issuerConfig) { c.noTableLock = true })},
	{"issuer-release-any-lease", "release does not compare the lease ID", P7, "", timed(func(c *issuerConfig) { c.anyLease = true })},
	{"issuer-async-renew", "renew under synchronous_commit = off", P7, "", timed(func(c *issuerConfig) { c.asyncRenew = true })},
	{"issuer-deadline-from-answer", "the deadline counts from the response", P7, "", timed(func(c *issuerConfig) { c.fromAnswer = true })},
	{"issuer-no-drift-margin", "the deadline gives nothing away for drift", P7, "", timed(func(c *issuerConfig) { c.noMargin = true })},
}
