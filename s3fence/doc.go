// Package s3fence makes S3 objects refuse the writes of a stale lock holder, on
// every store that enforces preconditions.
//
// A write carries a claim: resource, fencing token, lease ID. The object itself
// carries its mark, the highest claim it admitted. A write compares the two and
// replaces both, body and mark, in one conditional PUT.
//
// # What it guarantees
//
//   - P1: once an object's mark is T, no write under a lower token takes effect,
//     whatever was paused, repeated or lost on the way. Deleting leaves the mark.
//   - P2: after [Objects.Raise] no write of an older holder takes effect, so no
//     older holder can overtake what is read then.
//   - P4: the same token under another lease ID is a conflict.
//   - P5: only the store's explicit word says whether an object exists. An object
//     whose mark cannot be read is an error that says what was seen. No write is
//     based on an answer without a strong ETag, and no condition is ever empty.
//     An outcome that could not be learned is ErrOutcomeUnknown, never success,
//     never stale.
//   - P6: every reason is reported separately, with the token and the mark.
//   - P9: with [ObjectsOptions].Resource a claim for another resource than the
//     key's is refused before anything is sent. Without it any claim is believed.
//   - A pointer's data exists while the pointer names it and a grace period more.
//
// # What it does not
//
//   - Writers, lifecycle rules and replication that bypass it are not stopped.
//     What they write is reported as unfenced or damaged, unless it is an older
//     state of the same object restored whole. What they delete loses its mark
//     and admits anybody: exempt fenced keys, and everything below ".fencepost/",
//     from rules that expire objects.
//   - In a bucket with versioning every write leaves a version, and what Collect,
//     Retire and InsecureDelete delete stays as one. Deleting the latest version
//     brings back the one before, with its older mark.
//   - Nothing holds across a failover to a replica bucket that lags behind.
//   - [Objects.InsecureDelete] forgets the mark.
//   - A raise or an adoption rewrites the object: its tags, access list and lock
//     are those of a new one.
//   - The checksums detect damage, not forgery: anyone who may write to the
//     bucket directly can make a seal.
//
// # Use
//
//	bucket, err := s3fence.Open(ctx, s3.NewFromConfig(cfg), "invoices", nil)
//	exports, err := bucket.Objects(s3fence.Sealed, &s3fence.ObjectsOptions{
//		Resource: closes, KeyPattern: "{tenant}/{period}.csv"})
//	err = exports.Raise(ctx, claim, key)          // take over, before reading
//	object, err := exports.Get(ctx, key)          // then read
//	err = exports.Put(ctx, claim, key, s3fence.Bytes(csv), nil)
//	if errors.Is(err, guard.ErrStale) {
//		return err // succeeded by a newer holder: stop
//	}
//
// # Why not a token in the metadata and If-Match on the ETag
//
// Because most stores derive the ETag from the body alone. Let the object be at
// token 9 with content X. Writer 10 reads that and pauses. Writer 11 writes X
// again: token 11, the same ETag. Writer 10's If-Match still matches, and a stale
// write has been accepted. "The ETag reflects changes only to the contents of an
// object, not its metadata" (Amazon, API reference, Object). Versioning does not
// help, nor does an empty tombstone: all empty bodies have the same ETag.
//
// # Four modes
//
// The first line of each mode's documentation says what a foreign reader sees.
// [Sealed] appends a trailer with token, lease ID, a random write ID and
// checksums, so that no two writes ever have the same bytes or the same ETag.
// [SealedGzip] stores a gzip file and puts the trailer into the header of a last,
// empty member, so that any gzip reader reads the content alone. [Plain] leaves
// the body as it is and is refused where that is not safe. [Pointer] puts bodies
// of any length under keys of their own and a sealed pointer under the key. All
// modes, and [Store], share one compare-and-swap loop. Metadata (fencing-token,
// -lease, -write, -mode) repeats the trailer for people and tools; a reader
// refuses an object where the two disagree. FORMAT.md specifies every byte.
//
// # How a write works
//
// The writer knows a state of the object: its ETag E, its mark, and the IDs of
// its last writes. It decides by [guard.Decide], and sends PUT If-Match: E (or
// If-None-Match: * for an object that is not there) with new bytes whose
// trailer has a new write ID. Two things make that sound. The store compares and
// writes in one step, which the probe has checked. And an ETag that was replaced
// never comes back, because nobody sends the same bytes on another condition. So
// the PUT takes effect only on the exact state it was decided on, and at most
// once, however often it is sent and however late it arrives.
//
// The possible answers:
//
//   - 200: done.
//   - 412, or 404 for an object that is gone: another write came first, or this
//     one did, and something on the way sent it again. The object is read. If its
//     last writes include this one, it is done. If not, the claim is decided again
//     on its current state; so a write that was sent again on the way, and followed
//     by more writes than are listed, may be made twice. If the object cannot be
//     read, the outcome is unknown.
//   - 409, 5xx, no answer: not known. The object is read. If its last writes
//     include this one, it is done, even if others have followed. If the ETag is
//     still E, the same bytes are sent again; whichever copy arrives first makes
//     the other fail. If the ETag has changed and the list of writes reaches back
//     to E's without naming ours, it never took effect and never will, and the
//     claim is decided again. Otherwise the outcome is unknown.
//   - 4xx: refused, with the store's reason.
//
// The SDK's own retries are off for these writes: they turn a lost answer into
// a 412. An HTTP client below it may still retry. So only a request that never
// reached that counts as unsent; a refused connection, for example, is "not known".
//
// The writer may stop at any point: a PUT still in flight when its writer dies
// takes effect on E or, if another write came in between, not at all.
//
// A writer and a raise with the same E: if the raise is first, the writer's PUT
// fails, it reads the new mark and is stale; if the writer is first, the raise's
// PUT fails, and the raise reads the new body and carries that over. No
// acknowledged write is lost.
//
// # How a pointer works
//
// Data is stored first, under a key with the write's token and ID; then the
// pointer is swapped as above. A writer that stops in between leaves data that no
// pointer names. [Objects.Collect] deletes data only if no pointer can ever name
// it: its token is below the pointer's mark, so that its writer, should it wake
// up, is stale; or the pointer lists its write as replaced, and no write takes
// effect twice. Hence no order of writing, pausing and collecting leaves a
// pointer without data. The grace period is for readers alone.
//
// A killed process cannot abort its upload: a lifecycle rule must do that.
//
// # Which stores
//
// [Open] tests the store with a [Probe], whose result can be kept, and refuses one
// that lacks a property ([ErrUnsuitableStore]). No probe shows that all is well.
//
// # Requests and permissions
//
// A write takes one request if this [Bucket] knows the object's state, two if
// not, and Pointer one more for the data. Raising takes two where the body is
// written too. Reading an empty Plain or foreign object takes one more.
//
// s3:GetObject, s3:PutObject, s3:DeleteObject (the probe, Collect, Retire,
// InsecureDelete, and Pointer for data of a refused write), s3:AbortMultipartUpload
// (Pointer), and s3:ListBucket, without which Amazon answers 403 for no object.
//
// # Where to read on
//
// swap.go is the loop above, state.go the outcome of a write, seal.go the trailer.
// Sources: Amazon S3 User Guide, "How to prevent object overwrites with conditional
// writes", "How to perform conditional deletes", "Data consistency model".
//
// Until version 1 exported names may change. What is stored keeps its meaning.
package s3fence
