package sqlfence

import (
	"fmt"
	"testing"
)

// BenchmarkTrigger: an UPDATE of 1 and of 1,000 rows of one resource inside a
// fenced transaction, on a guarded table against the same on a table without
// triggers: with the triggers as they are, once a statement, and with one that
// checks every row.
func BenchmarkTrigger(b *testing.B) {
	server, err := benchServer()
	if err != nil {
		b.Fatal(err)
	}
	for _, rows := range []int{1, 1000} {
		for _, shape := range []string{"statement", "row"} {
			b.Run(fmt.Sprintf("%s/rows=%d", shape, rows), func(b *testing.B) {
				url, drop, err := server.NewDatabase(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { drop() })
				e := newEnvAt(b, 0, url)
				for _, table := range []string{"plain", "guarded"} {
					e.exec("CREATE TABLE " + table + " (id int PRIMARY KEY, tenant text NOT NULL, v bigint NOT NULL) WITH (fillfactor = 50)")
					e.exec("INSERT INTO "+table+" SELECT g, 'tenant_123', 0 FROM generate_series(1, $1::int) g", rows)
				}
				if shape == "statement" {
					e.guardBy("guarded", `{tenant}:jobs`)
				} else {
					e.defaults.PresentClaims = true
					e.exec(`CREATE FUNCTION each_row() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN
							PERFORM fencepost.require(fencepost.join_resource(OLD.tenant, 'jobs'), 'guarded');
							IF NEW.tenant <> OLD.tenant THEN PERFORM fencepost.require(fencepost.join_resource(NEW.tenant, 'jobs'), 'guarded'); END IF;
							RETURN NULL; END $$;
						CREATE TRIGGER each_row AFTER UPDATE ON guarded FOR EACH ROW EXECUTE FUNCTION each_row()`)
				}
				claim := claimOf("tenant_123:jobs", 5)
				must(b, e.db.Raise(b.Context(), claim))
				db := e.serverDefault("synchronous_commit", "off")
				update := func(table string) func(client, i int) error {
					return func(_, i int) error {
						return db.fenced(b.Context(), claim, running("UPDATE "+table+" SET v = $1", i))
					}
				}
				paired(b, 1, update("guarded"), update("plain"))
			})
		}
	}
}
