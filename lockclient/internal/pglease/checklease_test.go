package pglease_test

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

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
