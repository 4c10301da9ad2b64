package s3fence

import (
	"bytes"
	"context"

	"github.com/fencepost-go/fencepost/guard"
)

// tombstoneSize is the length of every tombstone as stored, so that a listing
// tells by the length alone which few objects may be one.
const tombstoneSize = 1277

// Delete deletes an object under claim. What stays is a tombstone, an object of
// about 1 KiB with the mark and nothing else, because a resource that forgets
// its mark admits a stale writer; reading it gives ErrNotFound, and listing
// hides it. An object that does not exist gets one all the same. A tombstone
// that has the claim already is left alone under SameOrNewer.
//
// Tombstones stay until [Objects.InsecureDelete].
// Errors: as [Objects.Put].
func (o *Objects) Delete(ctx context.Context, claim guard.Claim, key string) error {
	c, err := o.begin("delete", claim, key)
	if err != nil {
		return err
	}
	c.next = func(_ context.Context, base *state) (*write, error) {
		if err := o.admit(claim, key, base); err != nil {
			return nil, err
		}
		if base.kind == kindTombstone && base.mark.Token == claim.Token {
			return nil, nil
		}
		return o.tombstone(key, base, claim, c.id), nil
	}
	_, err = o.swap(ctx, guard.OpWrite, c)
	return err
}

// tombstone builds the write of a tombstone. It is sealed in every mode: empty
// bodies would all have one ETag.
func (o *Objects) tombstone(key string, base *state, claim guard.Claim, id writeID) *write {
	next := base.follow(kindTombstone, claim, id)
	p := base.pointer().after(base, o.b.opts.GracePeriod)
	p.Data, p.Token, p.Length, p.CRC = "", claim.Token, 0, ""
	p.Note = "deleted under a fencing token; this object holds the mark"
	body := p.encode()
	s := seal{lease: claim.LeaseID, recent: next.recent}
	if pad := tombstoneSize - s.size() - len(body); pad > 0 {
		body = append(body, bytes.Repeat([]byte{' '}, pad)...)
	}
	return o.b.sealedWrite(key, next, Headers{ContentType: "application/json"}, body)
}

// InsecureDelete deletes an object, or its tombstone, with its mark and whatever
// it is. It is the unfenced way out: for an object that is damaged, or one that
// no lease will ever be taken on again. A holder of an old token may write
// again afterwards. The data of a [Pointer] stays below the key's data prefix.
//
// Errors: ErrInvalid, ErrUnavailable, ErrOutcomeUnknown; deleting what is not
// there is none.
func (o *Objects) InsecureDelete(ctx context.Context, key string) error {
	if err := validateKey("key", key, maxKey); err != nil {
		return err
	}
	op, claim := opName("delete", key), guard.Claim{}
	if err := ended(ctx, op, claim); err != nil {
		return err
	}
	o.b.forget(key)
	way := &tracker{}
	err := o.b.remove(ctx, key, way.option)
	switch outcome := classify(err); {
	case outcome == outcomeApplied, outcome == outcomeNotMatched:
		return nil
	case outcome == outcomeUnknown && way.handed(err), way.repeated():
		return guard.OutcomeUnknown(op, claim, o.b.explain(err))
	}
	return guard.Unavailable(op, claim, o.b.explain(err))
}
