package lockclient

import (
	"fmt"
	"slices"
	"strconv"
	"time"
)

// skewWorthTelling is how far apart clocks may be before the logs of two
// machines are hard to compare.
const skewWorthTelling = time.Second

// findings says what is wrong with what was seen, the worst first.
func (in *Inspection) findings() []Finding {
	found := []Finding{}
	add := func(bad bool, severity Severity, setting, problem, remedy string) {
		if bad {
			found = append(found, Finding{severity, setting, problem, remedy})
		}
	}
	add(in.Standby, SeverityError, "standby", "the server is a standby: nothing can be granted or renewed there",
		"connect to the primary (target_session_attrs=read-write)")
	add(in.Schema == 0, SeverityError, "schema", "there is no schema of lockclient in this database, or the role may not see it", "run the migration")
	add(in.Schema > 0 && in.Schema < in.SchemaWanted, SeverityError, "schema",
		fmt.Sprintf("the schema has version %d, this build needs %d", in.Schema, in.SchemaWanted), "run the migration, then roll out")
	add(in.Schema > in.SchemaWanted, SeverityError, "schema",
		fmt.Sprintf("the schema has version %d, this build knows %d", in.Schema, in.SchemaWanted), "run a newer build")
	add(in.DefaultIsolation != "read committed", SeverityError, "default_transaction_isolation",
		"is "+strconv.Quote(in.DefaultIsolation)+": every acquire is refused",
		"set it to \"read committed\" in the connection's parameters or for the role")
	add(in.DefaultReadOnly == "on" && !in.Standby, SeverityError, "default_transaction_read_only", "is on: nothing can be written", "set it to off for the role")
	add(in.Fsync == "off", SeverityError, "fsync", "is off: after a crash of the machine tokens may be issued again", "set it to on")
	add(in.FullPageWrites == "off", SeverityWarning, "full_page_writes", "is off: a crash of the machine can damage the table",
		"set it to on, unless the file system writes whole pages")
	add(in.SynchronousCommit == "off" || in.SynchronousCommit == "local", SeverityWarning, "synchronous_commit",
		"is "+strconv.Quote(in.SynchronousCommit)+": grants and renewals lift it for themselves, the application's own writes do not",
		"nothing for leases; check that the application's writes may be lost")
	add(in.Hidden != "", SeverityWarning, "timeline", "the server does not show everything, so a failover may go unnoticed: "+in.Hidden,
		"raise the epoch after every failover and restore, or grant EXECUTE on these functions")
	add(in.Pooled, SeverityWarning, "pooler", "a pooler or proxy stands between: in transaction mode waiters poll, since notifications do not arrive",
		"let the lease client connect to the server itself, or accept hand-overs of up to Options.PollInterval")
	add(in.Blocker != 0, SeverityWarning, "blocker",
		fmt.Sprintf("server process %d has had a transaction open for more than a second, with a lock on the leases: it keeps out Purge, RaiseEpoch and AdvanceFloor", in.Blocker),
		"look at pg_stat_activity, end it if it is forgotten")
	add(in.ClockAhead.Abs() > skewWorthTelling+in.ClockError, SeverityWarning, "clock",
		fmt.Sprintf("the server's clock is %v ahead of this machine's", in.ClockAhead.Round(time.Millisecond)),
		"leases do not depend on it; set the clocks, so that logs can be compared")
	slices.SortStableFunc(found, func(a, b Finding) int { return severityOrder(a) - severityOrder(b) })
	return found
}

func severityOrder(f Finding) int {
	if f.Severity == SeverityError {
		return 0
	}
	return 1
}
