// Package lockadmin is what operators do to the leases of package lockclient on
// PostgreSQL: list them, cut one, read the audit, raise the epoch, purge, inspect
// the server, and make the database's roles.
//
//	op, err := lockadmin.New(pool, nil)
//	for lease, err := range op.List(ctx, "tenant_123:billing-close:*", nil) { ... }
//	cut, err := op.ForceUnlock(ctx, resource, "ada", "worker-7 hangs since 02:10",
//		&lockadmin.ForceUnlockOptions{ExpectedLeaseID: lease.LeaseID})
//	err = marks.Raise(ctx, cut.Burned) // until then the cut holder still writes
//
// The command fencectl is these calls for people, and "fencectl help runbook" is
// the runbook: what is seen, what to look at, what to do.
//
// # Rights
//
// [RolesSQL] makes three roles. An issuer acquires, renews and releases. The
// database refuses it everything else: the floor that every later grant is above,
// a token that skips others, an expiry further away than the longest TTL, the
// epoch, the audit. An operator reads everything and changes leases only through
// functions that leave a record or keep every token. A reader reads. These calls
// need an operator, or the owner of the schema.
//
// # What an operator cannot do
//
// No call lowers a token. ForceUnlock does not stop the cut holder from writing:
// that does the burned claim, once it is raised at the resource.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions.
package lockadmin
