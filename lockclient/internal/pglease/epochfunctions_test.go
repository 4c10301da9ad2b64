package pglease_test

import (
	"strings"
	"testing"
)

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
	functions := value[string](t, f.pool, "SELECT pg_get_functiondef('fencepost.raise_epoch'::regproc)")
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
