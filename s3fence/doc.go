// Package s3fence makes S3 objects refuse the writes of a stale lock holder, on
// every store that enforces preconditions.
//
// A write carries a claim: resource, fencing token, lease ID. The object itself
// carries its mark, the highest claim it admitted. A write compares the two and
// replaces both, body and mark, in one conditional PUT:
//
//	bucket, err := s3fence.Open(ctx, s3.NewFromConfig(cfg), "invoices", nil)
//	exports, err := bucket.Objects(s3fence.Sealed, &s3fence.ObjectsOptions{
//		Resource: closes, KeyPattern: "{tenant}/{period}.csv"})
//	err = exports.Raise(ctx, claim, key)    // take over, before reading
//	object, err := exports.Get(ctx, key)    // then read
//	err = exports.Put(ctx, claim, key, csv, nil)
//	if errors.Is(err, guard.ErrStale) {
//		return err // superseded by a newer holder: stop
//	}
//
// # What it guarantees
//
//   - P1: once an object's mark is T, no write under a lower token takes effect,
//     whatever was paused, repeated or lost on the way. Deleting leaves the mark.
//   - P2: after a raise no write of an older holder takes effect, so no older
//     holder can overtake what is read then.
//   - P4: the same token under another lease ID is a conflict.
//   - P5: only the store's own NoSuchKey says that there is no object; any other 404,
//     and any page of something in between, is an error. No write is based on a
//     response without a strong ETag, and no condition is ever empty.
//     A write whose outcome is unknown is ErrOutcomeUnknown, never success,
//     never stale. A body is stored whole or not at all.
//   - P6: every reason is reported separately, with the token and the mark.
//   - P9: a claim for another resource than the key's is refused before anything
//     is sent, unless [ObjectsOptions].InsecureAnyResource is set.
//   - A pointer's data exists while the pointer names it and a grace period more, by the
//     store's clock.
//
// # What it does not
//
//   - Writers, lifecycle rules and replication that bypass it are not stopped.
//     What they write is reported as unfenced or damaged, unless it is an older state of the
//     object restored whole, a sealed object of the same key of another bucket, or a plain
//     one of any key with its metadata, which lowers the mark to that one's. What they delete loses its mark and admits anybody: exempt fenced keys, and
//     everything below ".fencepost/", from rules that expire objects. A bucket
//     policy that denies PUT without a condition stops most of them; this package
//     sends none.
//   - In a bucket with versioning every write leaves a version, and what Collect
//     and InsecureDelete delete stays as one. Deleting the latest version brings
//     back the one before, with its older mark.
//   - Nothing holds across buckets that replicate each other, nor across a failover to a
//     replica that lags behind. Names of several buckets (Multi-Region Access Points) are
//     refused. Several gateways over one store are one store only if they compare
//     there: give the probe a client for each ([Options].ProbeClients).
//   - InsecureDelete forgets the mark.
//   - A raise or an adoption rewrites the object: it drops tags, access list, lock and encryption.
//   - The checksums detect damage, not forgery: anyone who may write to the
//     bucket directly can make a seal.
//
// # Stores
//
// Tried: versitygw 1.8 and MinIO are accepted. Refused are versitygw 1.7, which races;
// rclone and gofakes3, which break conditions, ranges or metadata; versitygw with versioning,
// which does not compare with a delete marker; and any store that refuses every If-Match, or
// takes it only without the quotes of its ETags. Amazon was not tried here; what it
// documents is relied on.
//
// # Use
//
// [Open] checks the store and the way to it. [Objects] are single objects, in one of three modes;
// [Pointers] put bodies of up to 5 GiB, from files, under keys of their own. A [Reader]
// reads all of them and needs no right to write. Metadata (fencing-token, -lease, -write,
// -mode) repeats the trailer for people and tools; a reader refuses an object where the
// two disagree. FORMAT.md specifies every byte.
//
// # Why not a token in the metadata and If-Match on the ETag
//
// Because most stores derive the ETag from the body only. Let the object be at
// token 9 with content X. Writer 10 reads that and pauses. Writer 11 writes X
// again: token 11, the same ETag. Writer 10's If-Match still matches, and a stale
// write has been accepted. Versioning does not help, nor does an empty tombstone:
// all empty bodies have the same ETag.
//
// # How a write works
//
// The writer knows a version of the object: its ETag E, its mark, and the IDs of
// its last writes. It decides by [guard.Decide], and sends PUT If-Match: E (or
// If-None-Match: * for an object that is not there) with new bytes whose trailer
// has a new write ID. The store compares and writes in one step, and an ETag that
// was replaced never comes back, because nobody sends the same bytes on another
// condition. So the PUT takes effect only on the exact version it was decided on,
// and at most once, however often it is sent and however late it arrives. After
// any response but 200 the object is read, and its last writes show what happened;
// FORMAT.md, section 6, has each case. The SDK's own retries are off for these
// writes, because they turn a lost response into a 412.
//
// A pointer's data is stored first, under a key with the write's token and ID;
// then the pointer is swapped in the same way. [Pointers.Collect] deletes data only
// if no pointer can ever name it: its token is below the pointer's mark, so that
// its writer, should it wake up, is stale; or the pointer lists its write as
// replaced, and no write takes effect twice.
//
// # Requests and permissions
//
// A write takes one request if this [Bucket] knows the object's version, two if not,
// and a pointer one more for the data. A raise that rewrites the body takes
// two. Reading an empty Plain or foreign object takes one more. Reads ask for the
// store's own response, so no cache or compressing proxy may be between.
//
// s3:GetObject, s3:PutObject, s3:DeleteObject (the probe, Collect, InsecureDelete,
// and Pointers after a failed upload), and s3:ListBucket, without which Amazon
// responds with 403, not 404, where there is no object.
//
// Until version 1 exported names may change. What is stored keeps its meaning.
//
// # Where to read on
//
// objects.go, pointers.go and reader.go are what users call; arguments.go checks what they give.
// verbs.go decides, then writes; plain.go is what only Plain needs. register.go reads a version
// and replaces one by another. The codec is version.go, seal.go, metadata.go, pointerjson.go.
// driver.go is what is needed of a store; sdk.go, sdkwire.go and tracker.go are it over Amazon's
// SDK. bucket.go opens, probe.go reports what internal/s3probe finds.
package s3fence
