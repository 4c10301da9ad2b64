// Package s3fence makes objects in S3 refuse the writes of a stale lock holder,
// on every store that enforces preconditions.
//
// A write carries a claim: resource, fencing token, lease ID. The object itself
// carries its mark, the highest claim it admitted. A write compares the two and
// replaces both, body and mark, in one conditional PUT.
//
// # What it guarantees
//
//   - P1: once an object's mark is T, no write under a lower token takes effect,
//     whatever was paused, repeated or lost on the way. Deleting leaves the mark.
//   - P2: after [Objects.Raise] no write of an older holder takes effect, so
//     what is read then is not overtaken.
//   - P4: the same token under another lease ID is a conflict.
//   - P5: an object exists or not by the store's explicit word; what cannot be
//     read to a mark is an error that says what was seen. An answer without a
//     strong ETag is no base for a write, and no condition is ever empty. What
//     could not be learned is ErrOutcomeUnknown, never success, never stale.
//   - P6: every reason is told apart, with the token and the mark.
//   - P9: with [ObjectsOptions].Resource a claim for another resource than the
//     key's is refused before anything is sent. Without it any claim is believed.
//   - A pointer's data is there as long as the pointer names it, and for a grace
//     period longer.
//
// # What it does not
//
//   - Writers, lifecycle rules and replication that do not go through it are not
//     stopped. What they write is found to be unfenced or damaged, unless it is
//     an older state of the same object brought back whole. What they delete has
//     forgotten its mark and admits anybody: exempt fenced keys, and everything
//     below ".fencepost/", from rules that expire objects.
//   - In a bucket with versioning every write leaves a version, and what
//     Collect, Retire and InsecureDelete delete stays as one. Whoever deletes
//     the latest version brings the one before back, with its older mark.
//   - Nothing holds across a failover to a replica bucket that lags behind.
//   - [Objects.InsecureDelete] forgets the mark.
//   - A raise or an adoption rewrites the object: its tags, access list and lock
//     are those of a new one.
//   - The checksums find damage, not forgery: who may write to the bucket
//     directly can make a seal.
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
// Because most stores make an ETag of the body alone. Let the object be at
// token 9 with content X. Writer 10 reads that and pauses. Writer 11 writes X
// once more: token 11, the same ETag. Writer 10's If-Match still matches, and
// a stale write has been accepted. "The ETag reflects changes only to the
// contents of an object, not its metadata" (Amazon, API reference, Object).
// Versioning does not help, nor does an empty tombstone: all empty bodies have
// one ETag.
//
// # Four modes
//
// What a foreign reader sees of an object is the first line of each mode's
// documentation. [Sealed] appends a trailer with token, lease ID, a random write
// ID and checksums, so that no two writes ever have the same bytes, nor the same
// ETag. [SealedGzip] stores a gzip file and puts the trailer into the header of
// a last, empty member, so that whatever reads gzip reads the content alone.
// [Plain] leaves the body as it is and is refused where that is not safe.
// [Pointer] puts bodies of any length under keys of their own and a sealed
// pointer under the key. All, and [Store], run over one compare-and-swap loop.
// Metadata (fencing-token, -lease, -write, -mode) repeats for people and tools
// what the trailer says; a reader refuses an object where the two disagree.
// FORMAT.md has every byte.
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
// answer into a 412, and our own success into a defeat. An HTTP client below
// the SDK may still repeat by itself. So only a request that never reached it
// counts as unsent; a refused connection, for one, is "not known".
//
// The writer may stop at any point: a PUT that is still on its way when its
// writer has died lands on E or, if another write came in between, nowhere.
//
// A writer and a raise with one E: if the raise is first, the writer's PUT fails,
// it reads the new mark and is stale; if the writer is first, the raise's PUT
// fails, reads the new body and carries that over. No acknowledged write is lost.
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
// A process that is killed cannot abort its upload: a lifecycle rule does that.
//
// # Which stores
//
// [Open] asks the store with a [Probe], whose result can be kept, and refuses it
// with [ErrUnsuitableStore] and the property that it lacks. What the probe has
// seen it shows; that nothing else is wrong it cannot.
//
// # Requests and permissions
//
// A write takes one request if this [Bucket] knows the object's state, two if
// not, and Pointer one more for the data. Raising takes two where the body is
// written along. An empty Plain or foreign object takes one more to be read.
//
// s3:GetObject, s3:PutObject, s3:DeleteObject (the probe, Collect, Retire and
// InsecureDelete), s3:AbortMultipartUpload (Pointer), and s3:ListBucket, without
// which Amazon answers 403 for an object that is not there.
//
// # Where to read on
//
// swap.go is the loop above, state.go what became of a write, seal.go the trailer;
// objects.go, put.go and pointer.go build the writes of the modes. Sources: Amazon
// S3 User Guide, "How to prevent object overwrites with conditional writes", "How to
// perform conditional deletes", "Data consistency model"; AWS SDK, aws/retry.
//
// Until version 1 exported names may change. What is stored keeps its meaning.
package s3fence
