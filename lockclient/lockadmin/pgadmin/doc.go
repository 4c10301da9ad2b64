// Package pgadmin is PostgreSQL's lockadmin.Admin: list the leases of package lockclient,
// force-unlock one, read the audit, raise the epoch, purge, inspect the server. It also
// migrates the schema and makes the database's roles.
//
// # What it guarantees
//
// No call lowers a token. What changes a lease leaves a record or keeps every
// token.
//
// # What it does not
//
// ForceUnlock does not stop the cut holder from writing. Raising the resource's mark to
// the invalidated claim does.
//
// # Use
//
//	op, err := pgadmin.New(pool, nil)
//	for lease, err := range op.List(ctx, "tenant_123:billing-close:*", nil) { ... }
//	cut, err := op.ForceUnlock(ctx, resource, "ada", "worker-7 hangs since 02:10",
//		&lockadmin.ForceUnlockOptions{ExpectedLeaseID: lease.LeaseID})
//	err = marks.Raise(ctx, cut.Invalidated) // until then the cut holder still writes
//
// The command fencectl offers these calls on the command line, and "fencectl
// help runbook" is the runbook: symptoms, what to look at, what to do.
//
// # Rights
//
// [RolesSQL] makes three roles. An issuer acquires, renews and releases. The
// database refuses it everything else: the floor (the token that every later
// grant is above), a token that skips others, an expiry later than the longest
// TTL, the epoch, the audit. An operator reads everything and changes leases only
// through functions that leave a record or keep every token. A reader reads.
// These calls need an operator, or the owner of the schema.
//
// # Failover and restore
//
// A server that lost the last grants must not issue their tokens again. So a
// token's bits from 40 up are an epoch ([lockadmin.Epoch]): a stored base plus the WAL
// timeline less one. Tokens are small numbers (1, 2, 3) on a server that never
// failed over, and 1,099,511,627,777 and up after the first promotion. Before a
// client is granted anything on a server it makes the server enter its epoch,
// durably; every statement that grants checks that it is still on that server, so
// a failover behind a pooler is noticed too. These are noticed without a call:
//
//   - the promotion of a standby, and recovery to a point in time: each begins
//     a timeline;
//   - a dump that is restored in another cluster, in another database or over
//     itself, and an upgrade by pg_upgrade: the recorded system identifier or
//     object numbers differ, and the base becomes the highest epoch recorded in
//     the leases plus one.
//
// The server cannot detect these. Call [Operator.RaiseEpoch] after them, before the
// applications are started again:
//
//   - a snapshot or file copy of the server's disk was started in its place:
//     the timeline is the same;
//   - two standbys were promoted without a common WAL archive: both are on one
//     timeline;
//   - only the rows were copied into a schema that was migrated before, by a
//     dump of the data only or by logical replication;
//   - a dump was restored that is older than a failover, an earlier restore or a
//     call of RaiseEpoch: it does not contain the epochs since. Call it until
//     the epoch is above that of the highest token at the resources, or use
//     [Operator.AdvanceFloor] with that token;
//   - a failover or restore of a server that hides its timeline or its
//     identifier. By default, ordinary PostgreSQL roles see both. Where that
//     was changed, only the stored base counts: [lockadmin.Epoch].Hidden says why, and
//     each client logs lock_epoch_hidden once.
//
// An [Operator.Advance] that was acknowledged by a lost server is lost with it:
// repeat it. Once leases are held on the new server, nobody may use the old one
// any longer; its tokens are lower, so the fences refuse its holders once a new
// holder has written.
//
// # Rows
//
// The table keeps a row for every resource name that was ever leased, until
// [Operator.Purge] deletes those that have been free for long. A purge raises the floor, the token that every later
// grant is above. [Operator.AdvanceFloor] only raises the floor, and must be
// called before guard.Store.Retire.
//
// # Where to read on
//
// operator.go has the handle and its options; leases.go, forceunlock.go, audit.go, epoch.go,
// purge.go and inspect.go one call or two each (paged.go reads lists in pages), objects.go what Inspect expects of the schema;
// marks.go compares the issuer with sqlfence's marks; roles.go has the roles and Migrate.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions.
package pgadmin
