// Package sqladmin sets up and looks after a PostgreSQL database that package
// sqlfence fences: schema fencepost, triggers, roles, checks, repairs.
//
//	admin := sqladmin.Pgx(pool)
//	err := admin.Migrate(ctx)   // once per deployment, as the owner of schema fencepost
//	err = admin.InstallTrigger(ctx, sqladmin.Trigger{
//		Table:    []string{"invoices"},
//		Resource: guard.Must(guard.NewTemplate("{tenant}:invoices")),
//		Columns:  map[string]string{"tenant": "tenant_id"},
//	})
//	found, err := admin.Verify(ctx, sqladmin.Verification{Role: "billing"})
//
// Writers need none of it.
//
// # What it guarantees
//
// Every call that changes something takes effect whole or not at all. [Admin.Migrate],
// [Admin.InstallTrigger] and [Admin.MigrateRoles] are idempotent, and safe when several
// replicas start at once. A mark is lowered only by [Admin.Reset] and a floor only by
// [Admin.ResetFloor], each by compare-and-set and with a record of who did it and why.
//
// # What it does not
//
//   - Triggers do not stop the owner of a table or a role with the privilege TRIGGER on
//     it, as by GRANT ALL: the application's role must be neither. A session that sets
//     fencepost.guard_... or makes up claims gets past them: triggers protect against
//     mistakes, not against attackers.
//   - A partition that was detached has no triggers, and a child that inherits later has none
//     until they are installed again.
//   - What a logical subscription copies, applies and truncates was checked on the
//     publisher, and nothing checks it again: guard the publisher. pg_restore
//     --disable-triggers fires no triggers.
//   - [Admin.Verify] says what it does not look at.
//   - A Go program only migrates the schema forward; [DownSQL] is for people.
//
// # Use
//
// [MigrationSQL], [TriggerSQL] (and for the way back [DownSQL] and
// [RemoveTriggerSQL]) and [RolesSQL] return the SQL of [Admin.Migrate],
// [Admin.InstallTrigger] and [Admin.MigrateRoles], for goose, atlas or golang-migrate.
// pgadmin.Migrate makes the leases' part of the schema as well.
//
// [Admin.Verify] compares a database with what the promises need, for start-up and for
// users' own tests; [Admin.Triggers] lists the guarded tables. [Admin.Marks] lists marks.
// [Admin.Reset] repairs a mark that is ahead of its issuer, [Admin.ResetFloor] a floor,
// and [Admin.Resets] lists the repairs. [Admin.Retire] removes the marks of resources
// that are gone.
//
// Calls that wait for writers or holders wait until their context ends, and without a
// deadline for 20 s; for a lock on a table never longer than 5 s.
//
// # Errors
//
// ErrInvalid: malformed input, or a table that cannot be guarded. ErrSetup: the schema,
// a right or the server is not what is needed. ErrUnavailable: nothing was changed.
// ErrOutcomeUnknown: no response to the COMMIT came; call again or look.
//
// # Where to read on
//
// admin.go runs a call's transaction; migrate.go and migrations/ have the schema, whose
// files begin with a reading order, and probe.go looks whether a server can hold it;
// trigger.go, roles.go, marks.go, holders.go and verify.go with verifysql.go have the calls.
package sqladmin
