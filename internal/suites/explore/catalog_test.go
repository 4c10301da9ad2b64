package explore

import "github.com/fencepost-go/fencepost/guard"

// The workers' claims where another model covers leasing. Workers with one
// claim are one holder with several transactions, requests or writers.
var (
	holders = [4]claim{{1, 1}, {1, 1}, {2, 2}, {3, 3}}
	twins   = [4]claim{{1, 1}, {2, 2}, {2, 3}, {3, 4}} // one token under two leases
)

// The real protocols; a mutant changes one field.
var (
	rowBase     = rowConfig{rule: guard.SameOrNewer, takeover: true}
	onceBase    = rowConfig{rule: guard.OncePerToken}
	restoreBase = rowConfig{rule: guard.SameOrNewer, takeover: true, restored: true}
	txBase      = txConfig{claims: holders}
	twinBase    = txConfig{claims: twins}
	tokenBase   = issuerConfig{workers: 3, faults: 1, purges: 1, crashes: 1}
	crowdBase   = issuerConfig{workers: 4, purges: 1, crashes: 1}
	timedBase   = issuerConfig{workers: 2, faults: 1, crashes: 1, timed: true}
)

// correct lists the protocols as they are built.
var correct = []func() runnable{
	func() runnable { return newRow("row, takeover", rowBase) },
	func() runnable { return newRow("row, once per token", onceBase) },
	func() runnable { return newRow("row, restored issuer", restoreBase) },
	func() runnable { return newTx("transaction", txBase) },
	func() runnable { return newTx("transaction, one token twice", twinBase) },
	func() runnable { return newIssuer("issuer, tokens", tokenBase) },
	func() runnable { return newIssuer("issuer, tokens, no faults", crowdBase) },
	func() runnable { return newIssuer("issuer, deadlines", timedBase) },
}

// with returns a changed copy of a protocol.
func with[C any](c C, change func(*C)) C {
	change(&c)
	return c
}
