package s3fence

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// Names that are internal objects, and names that are not.
func TestInternalKeys(t *testing.T) {
	b := &Bucket{opts: Options{Prefix: "p/.fencepost/"}}
	id := newWriteID()
	for _, token := range []guard.Token{1, 10, 1234567890, guard.MaxToken} {
		name := strings.TrimPrefix(b.dataKey("k", token, id), b.dataPrefix("k"))
		if got, gotID, ok := parseDataKey(name); !ok || got != token || gotID != id || len(name) != 19+1+32 {
			t.Errorf("%q is %d, %v, %v", name, got, gotID, ok)
		}
	}
	if !slices.IsSorted([]string{b.dataKey("k", 9, id), b.dataKey("k", 10, id), b.dataKey("k", guard.MaxToken, id)}) {
		t.Error("the keys of data are not in the order of tokens")
	}
	digits := strings.Repeat("0", 18)
	for _, name := range []string{
		"", "-", digits + "1", digits + "1-", digits + "-" + id.String(), digits + "11-" + id.String(), digits + "x-" + id.String(),
		digits + "0-" + id.String(), digits + "1-" + id.String()[1:], digits + "1-" + strings.ToUpper(strings.Repeat("a", 32)), digits + "1-" + strings.Repeat("g", 32),
	} {
		if token, _, ok := parseDataKey(name); ok {
			t.Errorf("%q is taken for token %d", name, token)
		}
	}
	for key, want := range map[string]bool{".fencepost/x": true, "a/.fencepost/x": true, ".fencepost": false, "a.fencepost/x": false, "a/.fencepostx": false, "x": false} {
		if got := internal(key); got != want {
			t.Errorf("%q is internal: %v", key, got)
		}
	}
}

// The state after a write: which writes it lists, and whether these are all.
func TestFollow(t *testing.T) {
	ids := make([]writeID, maxRecent+2)
	for i := range ids {
		ids[i] = newWriteID()
	}
	mine := newWriteID()
	claim := guard.Claim{Resource: "r", Token: 5, LeaseID: "a"}
	for _, c := range []struct {
		base   version
		to     kind
		recent []writeID
		cut    bool
	}{
		{version{}, kindSealed, nil, false},
		{version{kind: kindUnfenced, id: ids[0]}, kindSealed, nil, true},
		{version{kind: kindSealed, id: ids[0]}, kindSealed, ids[:1], false},
		{version{kind: kindPlain, id: ids[0]}, kindPlain, ids[:1], false},
		{version{kind: kindSealed, id: ids[0], cut: true}, kindSealed, ids[:1], true},
		{version{kind: kindSealed, id: ids[0], recent: ids[1:maxRecent]}, kindSealed, ids[:maxRecent], false},
		{version{kind: kindSealed, id: ids[0], recent: ids[1 : maxRecent+1]}, kindSealed, ids[:maxRecent], true},
		{version{kind: kindPlain, id: ids[0], recent: ids[1:maxRecentPlain]}, kindPlain, ids[:maxRecentPlain], false},
		{version{kind: kindPlain, id: ids[0], recent: ids[1 : maxRecentPlain+1]}, kindPlain, ids[:maxRecentPlain], true},
		{version{kind: kindPlain, id: ids[0], recent: ids[1:maxRecentPlain]}, kindTombstone, ids[:maxRecentPlain], false},
	} {
		next := c.base.follow(c.to, claim, mine)
		if next.kind != c.to || next.id != mine || next.mark != (guard.Mark{Token: 5, LeaseID: "a"}) || !slices.Equal(next.recent, c.recent) || next.cut != c.cut {
			t.Errorf("%+v\nmakes %+v", c.base, next)
		}
		for _, id := range append(slices.Clone(c.recent), mine) {
			if !next.made(id) {
				t.Error("a write that is listed did not make it")
			}
		}
		if next.made(newWriteID()) || (&version{kind: kindUnfenced, id: mine}).made(mine) || (&version{}).made(writeID{}) {
			t.Error("a write that is not listed made it")
		}
	}
}

// Since when a pointer has been at its data, and when data may go.
func TestPointerAges(t *testing.T) {
	const grace = time.Hour
	at := func(d time.Duration) time.Time { return time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC).Add(d) }
	base := func(d time.Duration) *version { return &version{modified: at(d)} }
	settled, later := since{3, at(0)}, since{5, at(grace)}
	for name, c := range map[string]struct {
		p              pointer
		base           *version
		settled, later *since
	}{
		"no data":          {pointer{}, base(0), nil, nil},
		"not known since":  {pointer{Token: 7}, &version{}, nil, nil},
		"the first":        {pointer{Token: 7}, base(time.Microsecond), nil, &since{7, at(0)}},
		"soon":             {pointer{Token: 7, Settled: &settled, Later: &later}, base(2*grace - 1e6), &settled, &later},
		"a grace later":    {pointer{Token: 7, Settled: &settled, Later: &later}, base(2 * grace), &later, &since{7, at(2 * grace)}},
		"of one token":     {pointer{Token: 5, Settled: &settled, Later: &later}, base(9 * grace), &settled, &later},
		"of a lower token": {pointer{Token: 4, Settled: &settled, Later: &later}, base(9 * grace), &settled, &later},
	} {
		got := c.p.after(c.base, grace)
		if string(encodeJSON(got)) != string(encodeJSON(pointer{Token: c.p.Token, Settled: c.settled, Later: c.later})) {
			t.Errorf("%s: %s", name, encodeJSON(got))
		}
	}
	mine, old := newWriteID(), newWriteID()
	now := at(10 * grace)
	for name, c := range map[string]struct {
		modified time.Duration // the pointer's age
		settled  *since
		later    *since
		token    guard.Token
		id       writeID
		want     bool
	}{
		"a lower token, old":               {grace, nil, nil, 6, old, true},
		"a lower token, young":             {grace - 1, nil, nil, 6, old, false},
		"a higher token":                   {9 * grace, nil, nil, 8, old, false},
		"the same token, replaced":         {grace, nil, nil, 7, old, true},
		"the same token, just replaced":    {grace - 1, nil, nil, 7, old, false},
		"the same token, not listed":       {9 * grace, nil, nil, 7, newWriteID(), false},
		"the write itself":                 {9 * grace, nil, nil, 7, mine, false},
		"left long ago":                    {0, &since{6, at(9 * grace)}, nil, 5, old, true},
		"left a moment ago":                {0, &since{6, at(9*grace + 1)}, nil, 5, old, false},
		"left by another's record":         {0, nil, &since{6, at(9 * grace)}, 5, old, true},
		"of the token that it was left by": {0, &since{6, at(9 * grace)}, nil, 6, old, false},
	} {
		s := &version{kind: kindPointer, mark: guard.Mark{Token: 7}, id: mine, recent: []writeID{old}, modified: now.Add(-c.modified), seen: now}
		if got := s.left(pointer{Settled: c.settled, Later: c.later}, c.token, c.id, grace); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a time that cannot be written is stored as nothing")
		}
	}()
	encodeJSON(since{At: at(0).AddDate(9000, 0, 0)})
}

// Each field of a Plain object's metadata, malformed on its own.
func TestParsePlainFields(t *testing.T) {
	body := []byte("body")
	id, other := newWriteID(), newWriteID()
	s := version{kind: kindPlain, mark: guard.Mark{Token: 7, LeaseID: "a b%é"}, id: id, recent: []writeID{other, id}, cut: true, md5: md5.Sum(body)}
	h := &object{etag: `"e"`, size: 4, modified: time.Unix(1, 0)}
	parsed := func(change func(map[string]string), tail []byte, size int64) (version, error) {
		h.headers.Metadata, h.fencing = split(s.metadata(map[string]string{"User": "x"}))
		if change != nil {
			change(h.fencing)
		}
		h.size, h.content = size, tail
		return parse("k", h)
	}
	for _, cut := range []bool{true, false} {
		for _, recent := range [][]writeID{nil, {other}, {other, id}} {
			s.cut, s.recent = cut, recent
			got, err := parsed(nil, body, 4)
			if err != nil || got.mark != s.mark || got.id != id || !slices.Equal(got.recent, recent) || got.cut != cut || got.md5 != s.md5 || got.kind != kindPlain ||
				got.etag != `"e"` || !got.modified.Equal(h.modified) {
				t.Errorf("parse = %+v, %v", got, err)
			}
		}
	}
	if _, err := parsed(nil, []byte("tail of another"), 100); err != nil { // it is not all of it
		t.Error(err)
	}
	for says, change := range map[string]func(map[string]string){
		"the token": func(m map[string]string) { m[metaToken] = "07" }, "the lease ID": func(m map[string]string) { m[metaLease] = "%" },
		`lease ID "\n"`: func(m map[string]string) { m[metaLease] = "\n" }, "the write ID": func(m map[string]string) { m[metaWrite] += "0" },
		"malformed list": func(m map[string]string) { m[metaRecent] = other.String() + ",+" }, `the MD5 "zz`: func(m map[string]string) { m[metaMD5] = strings.Repeat("z", 32) },
		`the MD5 ""`: func(m map[string]string) { delete(m, metaMD5) }, `the MD5 "AB`: func(m map[string]string) { m[metaMD5] = strings.Repeat("AB", 16) },
		"does not match":  func(m map[string]string) { m[metaMD5] = strings.Repeat("0", 32) },
		"no fencing-mode": func(m map[string]string) { delete(m, metaMode) }, "trailer is missing": func(m map[string]string) { m[metaMode] = "sealed" },
	} {
		if _, err := parsed(change, body, 4); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", says, err)
		}
	}
	if got := h.headers.Metadata; len(got) != 1 || got["user"] != "x" {
		t.Errorf("the user's metadata is %v", got)
	}
}

func sealOf(key, body, lease string, recent int) *seal {
	s := &seal{
		version: version{kind: kindSealed, mark: guard.Mark{Token: guard.MaxToken, LeaseID: lease}, id: newWriteID(), cut: recent%2 == 1},
		key:     keySum(key), length: uint64(len(body)), crc: crc32.Checksum([]byte(body), castagnoli),
	}
	for range recent {
		s.recent = append(s.recent, newWriteID())
	}
	return s
}

var eleven = version{kind: kindSealed, mark: guard.Mark{Token: 11, LeaseID: "a"}, id: writeID{1}, recent: []writeID{{2}}}

// The format is stored: every later build must read what is written today.
func TestTrailerIsStable(t *testing.T) {
	s := &seal{version: eleven, key: keySum("k"), length: 4, crc: 0xfeedface}
	got := hex.EncodeToString(s.append([]byte("body")))
	const want = "626f6479010300018254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a000000000000000b010000000000000000000000000000000000000000000004feedface016102000000000000000000000000000000a78c6533f5e4c47798d36425aba6fc260000006a66656e6365706f73742f7333"
	if got != want {
		t.Errorf("the trailer is\n%s, want\n%s", got, want)
	}
}

func TestGzipTrailerIsStable(t *testing.T) {
	body := append([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01\x04\x00\xfb\xff"), "body\x1a\x9d\x4c\x6b\x04\x00\x00\x00"...)
	s := &seal{version: eleven, key: keySum("k"), length: uint64(len(body)), crc: 0xfeedface}
	s.kind, s.content = kindGzip, 4
	object := s.append(bytes.Clone(body))
	got := hex.EncodeToString(object[len(body):])
	const want = "1f8b08040000000000ff860046508200010900018254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a000000000000000b01000000000000000000000000000000000000000000001bfeedface0161020000000000000000000000000000000000000000000004c1f5a2ec5cf380610858c2176f78689e0000007266656e6365706f73742f733303000000000000000000"
	if got != want {
		t.Errorf("the trailer is\n%s, want\n%s", got, want)
	}
	if s, err := parseSeal("k", object, int64(len(object))); err != nil || s.content != 4 || s.mark.Token != 11 {
		t.Errorf("parseSeal = %+v, %v", s, err)
	}
	// A seal of this kind outside of a member, and one of another kind inside.
	if _, err := parseSeal("k", object[:len(object)-len(gzipEnd)], int64(len(object)-len(gzipEnd))); err == nil {
		t.Error("a trailer without its member is taken")
	}
	other := sealOf("k", "", "a", 0)
	inside := append(memberHead(other.size()), other.append(nil)...)
	other.length = uint64(len(inside) - other.size())
	inside = append(append(memberHead(other.size()), other.append(nil)...), gzipEnd...)
	if _, err := parseSeal("k", inside, int64(len(inside))); err == nil {
		t.Error("a member with a trailer of another kind is taken")
	}
}

// A later version is refused by its number, whatever else it holds.
func TestUnknownVersion(t *testing.T) {
	object := sealOf("k", "body", "a", 1).append([]byte("body"))
	object[4] = trailerVersion + 1
	if _, err := parseSeal("k", object, int64(len(object))); err == nil || !strings.Contains(err.Error(), "has version 2") {
		t.Errorf("parseSeal = %v", err)
	}
}

// No bytes make the parser panic, and it accepts only what it could have
// written. The sum and what follows are corrected, or nothing else would be
// checked.
func FuzzParseSeal(f *testing.F) {
	good := sealOf("k", "body", "a", 3).append([]byte("body"))
	f.Add([]byte("body"), good[4:len(good)-trailerSum-trailerEnd])
	f.Add([]byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, body, payload []byte) {
		object := append(bytes.Clone(body), payload...)
		sum := sha256.Sum256(payload)
		object = append(object, sum[:trailerSum]...)
		object = binary.BigEndian.AppendUint32(object, uint32(len(payload)+trailerSum))
		object = append(object, trailerMagic...)
		for _, bytesOf := range [][]byte{object, payload, body} {
			s, err := parseSeal("k", bytesOf, int64(len(bytesOf)))
			if err != nil {
				continue
			}
			if s.kind == kindGzip {
				t.Errorf("%x is taken for a member", bytesOf)
			} else if again := s.append(bytes.Clone(bytesOf[:len(bytesOf)-s.size()])); !bytes.Equal(again, bytesOf) {
				t.Errorf("%x is read and written as %x", bytesOf, again)
			}
		}
	})
}

// The most that deflate can pack into so many bytes.
func TestGzipRatio(t *testing.T) {
	for content, ok := range map[int64]bool{0: true, 1032 * 20: true, 1032*20 + 1: false} {
		s := sealOf("k", strings.Repeat("x", 20), "a", 0)
		s.kind, s.content = kindGzip, content
		object := s.append([]byte(strings.Repeat("x", 20)))
		if _, err := parseSeal("k", object, int64(len(object))); (err == nil) != ok {
			t.Errorf("20 bytes that unpack to %d: %v", content, err)
		}
	}
}

// Which ETags are the MD5 of the content.
func TestIsMD5(t *testing.T) {
	sum := md5.Sum([]byte("body"))
	text := hex.EncodeToString(sum[:])
	for etag, want := range map[string]bool{
		text: true, `"` + text + `"`: true, strings.ToUpper(text): true, strings.Repeat("0", 32): false, text[1:]: false, "": false,
	} {
		if isMD5(etag, sum) != want {
			t.Errorf("isMD5(%s) = %v", etag, !want)
		}
	}
}

// Metadata may be as long as S3 takes next to what this package adds, to the last byte.
func TestMetadataLimit(t *testing.T) {
	long := Headers{Metadata: map[string]string{"a": strings.Repeat("x", maxMetadata-maxReserved)}}
	if _, err := long.validate(); !errors.Is(err, guard.ErrInvalid) {
		t.Errorf("one byte too many: %v", err)
	}
	h := Headers{Metadata: map[string]string{"A": strings.Repeat("x", maxMetadata-maxReserved-1)}}
	if got, err := h.validate(); err != nil || len(got.Metadata) != 1 || got.Metadata["a"] != h.Metadata["A"] {
		t.Errorf("as much as may be: %v", err)
	}
	// With all that this package adds, it stays within S3's limit.
	s := version{kind: kindPlain, mark: guard.Mark{Token: guard.MaxToken, LeaseID: strings.Repeat("é", guard.MaxLeaseIDLen/2)}, cut: true}
	s.recent = make([]writeID, maxRecentPlain)
	total := 0
	for name, value := range s.metadata(nil) {
		total += len(name) + len(value)
	}
	if total > maxReserved || total < maxReserved-12 {
		t.Errorf("the reserved metadata can have %d bytes, maxReserved is %d", total, maxReserved)
	}
}

// A pointer, and the tombstone that takes its place, is stored with when it was at
// which data.
func TestPointersAreStored(t *testing.T) {
	at := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	settled, later := since{3, at.Add(-3 * time.Hour)}, since{5, at.Add(-2 * time.Hour)}
	base := &version{kind: kindPointer, mark: guard.Mark{Token: 7, LeaseID: "a"}, id: newWriteID(), modified: at}
	base.body = encodeJSON(pointer{Note: "n", Data: "d", Token: 7, Length: 4, CRC: "00000001", Settled: &settled, Later: &later})
	claim, id := guard.Claim{Resource: "r", Token: 9, LeaseID: "b"}, newWriteID()
	o := &fenced{b: &Bucket{opts: Options{GracePeriod: time.Hour}}, kind: kindPointer}
	rewritten, err := o.rewrite("k", base, claim, id)
	testkit.Must(t, err)
	made := pointer{Data: "e", Token: 9, Length: 5, CRC: "00000002"}
	for name, c := range map[string]struct {
		w    *update
		kind kind
		want pointer
	}{
		"written": {base.follow(kindPointer, claim, id).pointing("k", base, made, time.Hour), kindPointer, made},
		"raised":  {rewritten, kindPointer, pointer{Data: "d", Token: 7, Length: 4, CRC: "00000001"}},
		"deleted": {base.tombstone("k", claim, id, time.Hour), kindTombstone, pointer{Token: 9}},
	} {
		c.want.Settled, c.want.Later = &later, &since{7, at}
		got := c.w.next.pointer()
		if got.Note == "" || got.Note == "n" {
			t.Errorf("%s: the note is %q", name, got.Note)
		}
		got.Note = ""
		if string(encodeJSON(got)) != string(encodeJSON(c.want)) {
			t.Errorf("%s: %s, want %s", name, encodeJSON(got), encodeJSON(c.want))
		}
		size := len(c.w.body)
		if c.w.next.kind != c.kind || c.w.next.id != id || c.w.next.mark != (guard.Mark{Token: 9, LeaseID: "b"}) ||
			c.w.headers.ContentType != "application/json" {
			t.Errorf("%s: %+v", name, c.w.next)
		}
		if c.kind == kindTombstone && size != tombstoneSize {
			t.Errorf("a tombstone has %d bytes", size)
		}
	}
	// The longest tombstone has no padding, and no more than that.
	base.recent = make([]writeID, maxRecent)
	claim.LeaseID = strings.Repeat("x", guard.MaxLeaseIDLen)
	claim.Token, base.mark.Token = guard.MaxToken, guard.MaxToken
	settled.Token, later.Token = guard.MaxToken-2, guard.MaxToken-1
	base.body = encodeJSON(pointer{Data: "d", Token: guard.MaxToken, Length: 4, CRC: "00000001", Settled: &settled, Later: &later})
	if w := base.tombstone("k", claim, id, time.Hour); len(w.body) != tombstoneSize {
		t.Errorf("the longest tombstone has %d bytes, the others %d", len(w.body), tombstoneSize)
	}
}

// No bit of a stored object can change unnoticed.
func TestEveryBit(t *testing.T) {
	w := version{kind: kindSealed, mark: guard.Mark{Token: 7, LeaseID: "a"}, id: newWriteID(), recent: []writeID{newWriteID()}}.sealed("k", Headers{}, []byte("body"))
	_, fencing := split(w.metadata)
	o := &object{fencing: fencing, size: int64(len(w.body)), content: w.body}
	if _, err := parse("k", o); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(w.body) {
		w.body[i/8] ^= 1 << (i % 8)
		if _, err := parse("k", o); !errors.As(err, new(*DamagedError)) {
			t.Errorf("bit %d: %v", i, err)
		}
		w.body[i/8] ^= 1 << (i % 8)
	}
}
