// Package s3fence makes objects in S3 refuse the writes of a stale lock holder,
// on every store that enforces preconditions.
//
// A write carries a claim: resource, fencing token, lease ID. The object itself
// carries its mark, the highest claim it admitted. A write compares the two and
// replaces both, body and mark, in one conditional PUT.
//
//	bucket, err := s3fence.Open(ctx, s3.NewFromConfig(cfg), "invoices", nil)
//	exports, err := bucket.Objects(s3fence.Sealed, nil)
//	err = exports.Raise(ctx, claim, key)          // take over, before reading
//	object, err := exports.Get(ctx, key)          // then read
//	err = exports.Put(ctx, claim, key, s3fence.Bytes(csv), nil)
//	if errors.Is(err, guard.ErrStale) {
//		return err // succeeded by a newer holder: stop
//	}
//
// # Why not a token in the metadata and If-Match on the ETag
//
// Because most stores make an ETag of the body alone. Let the object be at
// token 9 with content X. Writer 10 reads that and pauses. Writer 11 writes X
// once more: token 11, the same ETag. Writer 10's If-Match still matches, and
// a stale write has been accepted. Amazon's documentation says as much: "The
// ETag reflects changes only to the contents of an object, not its metadata"
// (API reference, Object). Versioning does not help, nor does an empty
// tombstone, since all empty bodies have one ETag.
//
// # Three modes
//
// [Sealed] appends a trailer with token, lease ID, a random write ID and
// checksums, so that no two writes ever have the same bytes, nor the same ETag.
// [Plain] leaves the body alone and is refused where that is not safe.
// [Pointer] puts bodies of any length, from any reader, under keys of their own
// and a sealed pointer under the key. All three, and [Store], run over one
// compare-and-swap loop. Metadata (fencing-token, fencing-lease, fencing-write,
// fencing-mode) repeats for people and tools what the trailer says; a reader
// refuses an object where the two disagree.
//
// # What it guarantees
//
//   - P1: once an object's mark is T, no write under a lower token takes effect,
//     whatever was paused, repeated or lost on the way. Deleting leaves the mark.
//   - P2: after [Objects.Raise] no write of an older holder takes effect, so
//     what is read then is not overtaken.
//   - P4: the same token under another lease ID is a conflict.
//   - P5: what could not be learned is ErrOutcomeUnknown, never success and
//     never stale; an object that cannot be verified is not touched; a store
//     that does not enforce preconditions is refused by [Open].
//   - P6: stale, spent, conflict, not found, unfenced, invalid and unavailable
//     are told apart, with the token and the mark.
//   - A pointer's data is there as long as the pointer names it, and for a grace
//     period longer.
//
// # What it does not
//
//   - Writers, lifecycle rules and replication that do not go through it are
//     not stopped; what they leave is found to be unfenced or damaged, unless it
//     is an older state of the same object brought back whole.
//   - In a bucket with versioning every write leaves a version, and what
//     Collect, Retire and InsecureDelete delete stays as one. Whoever deletes
//     the latest version brings the one before back, with its older mark.
//   - Nothing holds across a failover to a replica bucket that lags behind.
//   - [Objects.InsecureDelete] forgets the mark.
//   - A raise or an adoption rewrites the object: its tags, access list and lock
//     are those that the bucket gives to a new one.
//
// # How a write works
//
// The writer knows a state of the object: its ETag E, its mark, and the IDs of
// its last writes. It decides by [guard.Decide], and sends PUT If-Match: E (or
// If-None-Match: * for an object that is not there) with new bytes whose
// trailer has a new write ID. Two things make that sound. The store compares
// and writes in one step, which the probe has seen. And an ETag that was
// replaced never comes back, because nobody sends the same bytes on another
// condition. So the PUT takes effect only on the very state that was decided
// on, and at most once, however often it is sent and however late it arrives.
//
// What may come of it:
//
//   - 200: done.
//   - 412, or 404 for an object that is gone: another write came first. The
//     object is read, and the claim decided on what is there now.
//   - 409, 5xx, no answer: not known. The object is read. If its last writes
//     name this one, it is done, even if others have followed. If the ETag still
//     is E, the same bytes are sent again; whichever copy arrives first makes
//     the other fail. If the ETag has changed and the list of writes reaches
//     back to E's without naming ours, it never took effect and never will, and
//     the claim is decided anew. Otherwise the outcome is unknown.
//   - 4xx: refused, with the store's reason.
//
// The SDK's own retries are off for these writes, since they would turn a lost
// answer into a 412, and our own success into a defeat.
//
// The writer may stop at any point. Before the PUT nothing has happened. After
// it the object is whole, with either mark. A PUT that is still on its way when
// its writer has died lands on E or nowhere: if a raise or a newer write has
// come in between, nowhere.
//
// Two writers with one E: one PUT matches, the other reads and decides. A
// writer and a raise: if the raise is first, the writer's PUT fails, it reads
// the new mark and is stale; if the writer is first, the raise's PUT fails, it
// reads the new body and carries that over, so what the raising holder reads
// next includes it. Either way no acknowledged write is lost.
//
// # How a pointer works
//
// Data is stored first, under a key with the write's token and ID; then the
// pointer is swapped as above. A writer that stops in between leaves data that
// nothing names. [Objects.Collect] deletes data only if no pointer can come to
// name it: its token is below the pointer's mark, so that its writer, should it
// wake up, is stale; or the pointer lists its write as replaced, and no write
// takes effect twice. Hence no order of writing, pausing and collecting leaves
// a pointer to nothing. The grace period is for readers alone.
//
// Set a lifecycle rule that aborts incomplete multipart uploads: a process that
// is killed cannot abort its own.
//
// # Requests
//
// A write takes one request if this [Bucket] knows the object's state, two if
// not, and Pointer one more for the data. Raising a Sealed or Plain object takes
// two, as it is read and written whole.
//
// # Permissions
//
// s3:GetObject, s3:PutObject, s3:DeleteObject (for the probe, Collect, Retire
// and InsecureDelete), s3:AbortMultipartUpload (Pointer), and s3:ListBucket,
// without which Amazon answers 403 for an object that is not there.
//
// # Sources
//
// Amazon S3 User Guide: "How to prevent object overwrites with conditional
// writes" (412, 409 and 404), "How to perform conditional deletes", "Data
// consistency model"; API reference: PutObject, Object (ETag). AWS SDK for Go
// v2, aws/retry (what the SDK repeats).
//
// # Compatibility
//
// Until version 1 exported names may change between minor versions. What is
// stored will not change its meaning: the trailer has a version, and a build
// refuses one that it does not know.
package s3fence
