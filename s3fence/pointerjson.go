package s3fence

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"hash/crc32"
	"slices"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// pointer is the body of a pointer, and of a tombstone, which points nowhere.
type pointer struct {
	Note string `json:"note,omitempty"`
	// Data is the key of the data, "" for a tombstone.
	Data string `json:"data,omitempty"`
	// Token is the token of the write that made the data; a raise keeps it. For
	// a tombstone it is the deletion's.
	Token guard.Token `json:"token"`
	// Length and CRC, CRC-32C in hexadecimal, are the data's.
	Length int64  `json:"length,omitempty"`
	CRC    string `json:"crc32c,omitempty"`

	// Settled and Later say since when the pointer has been at data of at
	// least that token, so that a collector knows when older data was left,
	// even if the pointer never goes unchanged for a grace period. Later is
	// replaced once it is a grace period older than its successor.
	Settled *since `json:"settled,omitempty"`
	Later   *since `json:"later,omitempty"`
}

// complete reports whether p has all that a pointer must have.
func (p pointer) complete() bool {
	sum, err := hex.DecodeString(p.CRC)
	crc := err == nil && len(sum) == crc32.Size && p.CRC == hex.EncodeToString(sum)
	return p.Data != "" && p.Token.Valid() && p.Length >= 0 && crc
}

type since struct {
	Token guard.Token `json:"token"`
	At    time.Time   `json:"at"`
}

// pointer returns the pointer in v; the zero value if s is none.
func (v *version) pointer() (p pointer) {
	if v.kind != kindPointer && v.kind != kindTombstone {
		return p
	}
	if json.Unmarshal(v.body, &p) != nil { // parse has checked that a pointer can be read
		return pointer{}
	}
	return p
}

// encodeJSON encodes what this package stores. Markup stays unescaped, so that
// no key makes a pointer longer than the tail that readers fetch.
func encodeJSON(v any) []byte {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic("s3fence: encode: " + err.Error()) // it is text, numbers and times
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

// after returns p with what is known when base is about to be replaced: the
// pointer has been at base's data since base was stored.
func (p pointer) after(base *version, grace time.Duration) pointer {
	if p.Token == guard.NoToken || base.modified.IsZero() {
		return p
	}
	now := since{Token: p.Token, At: base.modified.UTC().Truncate(time.Millisecond)}
	switch {
	case p.Later == nil:
		p.Later = &now
	case now.Token > p.Later.Token && now.At.Sub(p.Later.At) >= grace:
		p.Settled, p.Later = p.Later, &now
	}
	return p
}

// pointing makes the write of p over base.
func (v version) pointing(key string, base *version, p pointer, grace time.Duration) *update {
	old := base.pointer().after(base, grace)
	p.Note, p.Settled, p.Later = "fenced pointer; the object's bytes are under the key in data", old.Settled, old.Later
	return v.sealed(key, Headers{ContentType: "application/json"}, encodeJSON(p))
}

// tombstoneSize is the length of every tombstone as stored, so that a listing
// shows by the length which few objects may be one.
const tombstoneSize = 1277

// tombstone makes the write of a tombstone over base. It is sealed in every mode: empty
// bodies would all have the same ETag.
func (v *version) tombstone(key string, claim guard.Claim, id writeID, grace time.Duration) *update {
	next := v.follow(kindTombstone, claim, id)
	p := v.pointer().after(v, grace)
	p.Data, p.Token, p.Length, p.CRC = "", claim.Token, 0, ""
	p.Note = "deleted under a fencing token; this object holds the mark"
	body := encodeJSON(p)
	if pad := tombstoneSize - (&seal{version: next}).size() - len(body); pad > 0 {
		body = append(body, bytes.Repeat([]byte{' '}, pad)...)
	}
	return next.sealed(key, Headers{ContentType: "application/json"}, body)
}

// left reports whether the pointer has not been at the data for a grace period
// and never will be again. Nothing that happens between reading the pointer and
// the deletion changes that: marks only grow, and no write of a pointer takes
// effect twice. All times are the store's.
func (v *version) left(p pointer, token guard.Token, id writeID, grace time.Duration) bool {
	old := func(at time.Time) bool { return !at.IsZero() && !v.seen.IsZero() && v.seen.Sub(at) >= grace }
	switch {
	case token == v.mark.Token:
		return id != v.id && slices.Contains(v.recent, id) && old(v.modified)
	case token > v.mark.Token:
		return false
	case old(v.modified):
		return true
	}
	for _, at := range []*since{p.Settled, p.Later} {
		if at != nil && token < at.Token && old(at.At) {
			return true
		}
	}
	return false
}
