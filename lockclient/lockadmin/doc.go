// Package lockadmin is what operators do with leases: look, cut one, read the audit,
// raise tokens. It is one interface, [Admin], and one JSON form for every engine.
//
// # What it guarantees
//
// No call lowers a token. A force unlock leaves a record in the audit.
//
// # What it does not
//
// ForceUnlock does not stop the cut holder from writing. Raising the resource's mark to
// the invalidated claim does.
//
// # Use
//
//	for lease, err := range admin.List(ctx, "tenant_123:billing-close:*", nil) { ... }
//	cut, err := admin.ForceUnlock(ctx, resource, "ada", "worker-7 hangs since 02:10",
//		&lockadmin.ForceUnlockOptions{ExpectedLeaseID: lease.LeaseID})
//	err = marks.Raise(ctx, cut.Invalidated) // until then the cut holder still writes
//
// The command fencectl offers these calls on the command line, and "fencectl help
// runbook" is the runbook: symptoms, what to look at, what to do.
//
// # Engines
//
//   - PostgreSQL: pgadmin.New. It can do everything.
//   - etcd, ZooKeeper, Redis: the issuers of etcdlock, zklock and redislock.
//   - the lock server: lockhttp.NewAdmin, with the rights of an operator's identity.
//
// What an engine cannot do is an [*UnsupportedError], which says why and matches
// errors.ErrUnsupported. Nothing is sent for it.
//
// # JSON
//
// A [LeaseInfo], an [AuditRecord] and a [ForceUnlocked] have the same members in the lock
// server's API, in "fencectl --output json" and in what encoding/json makes of them: resource,
// ownerId, leaseId, fencingToken, createdAt, expiresAt; action, actorId, reason, createdAt.
// Log lines use these names too. fencingToken is a number; token has the same
// as text, since many readers lose digits above 2^53.
//
// # Where to read on
//
// lockadmin.go has the interface and its options, records.go what it returns and the
// JSON form, errors.go the errors.
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions.
package lockadmin
