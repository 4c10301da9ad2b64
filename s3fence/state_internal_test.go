package s3fence

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
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
		base   state
		to     kind
		recent []writeID
		cut    bool
	}{
		{state{}, kindSealed, nil, false},
		{state{kind: kindUnfenced, id: ids[0]}, kindSealed, nil, true},
		{state{kind: kindSealed, id: ids[0]}, kindSealed, ids[:1], false},
		{state{kind: kindPlain, id: ids[0]}, kindPlain, ids[:1], false},
		{state{kind: kindSealed, id: ids[0], cut: true}, kindSealed, ids[:1], true},
		{state{kind: kindSealed, id: ids[0], recent: ids[1:maxRecent]}, kindSealed, ids[:maxRecent], false},
		{state{kind: kindSealed, id: ids[0], recent: ids[1 : maxRecent+1]}, kindSealed, ids[:maxRecent], true},
		{state{kind: kindPlain, id: ids[0], recent: ids[1:maxRecentPlain]}, kindPlain, ids[:maxRecentPlain], false},
		{state{kind: kindPlain, id: ids[0], recent: ids[1 : maxRecentPlain+1]}, kindPlain, ids[:maxRecentPlain], true},
		{state{kind: kindPlain, id: ids[0], recent: ids[1:maxRecentPlain]}, kindTombstone, ids[:maxRecentPlain], false},
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
		if next.made(newWriteID()) || (&state{kind: kindUnfenced, id: mine}).made(mine) || (&state{}).made(writeID{}) {
			t.Error("a write that is not listed made it")
		}
	}
}

// What is remembered of an object, and which others make room for it.
func TestRemember(t *testing.T) {
	b := &Bucket{opts: Options{CacheSize: 2}, cache: map[string]state{}}
	good := state{kind: kindSealed, etag: `"e"`, body: []byte("body"), headers: &Headers{}}
	b.remember("k", good)
	if s, ok := b.cached("k"); !ok || s.etag != `"e"` || s.body != nil || s.headers != nil {
		t.Errorf("remembered is %+v, %v", s, ok)
	}
	for name, change := range map[string]func(*state){
		"no ETag": func(s *state) { s.etag = "" }, "a weak ETag": func(s *state) { s.etag = `W/"e"` },
		"absent": func(s *state) { s.kind = kindAbsent }, "unfenced": func(s *state) { s.kind = kindUnfenced },
	} {
		s := good
		change(&s)
		b.remember("k", good)
		b.remember("k", s)
		if _, ok := b.cached("k"); ok {
			t.Errorf("%s is remembered", name)
		}
	}
	for _, k := range []kind{kindPlain, kindSealed, kindGzip, kindPointer, kindTombstone} {
		s := good
		s.kind = k
		b.remember("k", s)
		if s, ok := b.cached("k"); !ok || (s.body != nil) != (k == kindPointer || k == kindTombstone) {
			t.Errorf("kind %s: %v, %q", kindNames[k], ok, s.body)
		}
	}
	b.forget("k")
	if _, ok := b.cached("k"); ok {
		t.Error("what is forgotten is remembered")
	}
	for i := range 5 {
		b.remember(fmt.Sprint(i), good)
		b.remember(fmt.Sprint(i), good) // what is there takes no room
		if _, ok := b.cached(fmt.Sprint(i)); !ok || len(b.cache) != min(i+1, 2) {
			t.Errorf("%d are remembered after %d", len(b.cache), i+1)
		}
	}
	none := &Bucket{opts: Options{CacheSize: -1}, cache: map[string]state{}}
	none.remember("k", good)
	if len(none.cache) != 0 {
		t.Error("a cache that is turned off remembers")
	}
}

// Since when a pointer has been at its data, and when data may go.
func TestPointerAges(t *testing.T) {
	const grace = time.Hour
	at := func(d time.Duration) time.Time { return time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC).Add(d) }
	base := func(d time.Duration) *state { return &state{modified: at(d)} }
	settled, later := since{3, at(0)}, since{5, at(grace)}
	for name, c := range map[string]struct {
		p              pointer
		base           *state
		settled, later *since
	}{
		"no data":          {pointer{}, base(0), nil, nil},
		"not known since":  {pointer{Token: 7}, &state{}, nil, nil},
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
	b := &Bucket{opts: Options{GracePeriod: grace}}
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
		s := &state{kind: kindPointer, mark: guard.Mark{Token: 7}, id: mine, recent: []writeID{old}, modified: now.Add(-c.modified)}
		if got := b.left(s, pointer{Settled: c.settled, Later: c.later}, c.token, c.id, now); got != c.want {
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
	s := state{kind: kindPlain, mark: guard.Mark{Token: 7, LeaseID: "a b%é"}, id: id, recent: []writeID{other, id}, cut: true, md5: md5.Sum(body)}
	h := head{etag: `"e"`, size: 4, modified: time.Unix(1, 0)}
	parsed := func(change func(map[string]string), tail []byte, size int64) (state, error) {
		h.headers.Metadata, h.fencing = split(s.metadata(map[string]string{"User": "x"}))
		if change != nil {
			change(h.fencing)
		}
		h.size = size
		return parse("k", h, tail)
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

// A pointer, and the tombstone that takes its place, is stored with when it was at
// which data.
func TestPointersAreStored(t *testing.T) {
	at := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	settled, later := since{3, at.Add(-3 * time.Hour)}, since{5, at.Add(-2 * time.Hour)}
	base := &state{kind: kindPointer, mark: guard.Mark{Token: 7, LeaseID: "a"}, id: newWriteID(), modified: at}
	base.body = encodeJSON(pointer{Note: "n", Data: "d", Token: 7, Length: 4, CRC: "00000001", Settled: &settled, Later: &later})
	claim := guard.Claim{Resource: "r", Token: 9, LeaseID: "b"}
	o := &fenced{b: &Bucket{opts: Options{GracePeriod: time.Hour}}, kind: kindPointer}
	id := newWriteID()
	made := pointer{Data: "e", Token: 9, Length: 5, CRC: "00000002"}
	for name, c := range map[string]struct {
		w    *write
		kind kind
		want pointer
	}{
		"written": {o.b.pointerWrite("k", base, base.follow(kindPointer, claim, id), made), kindPointer, made},
		"raised":  {o.rewrite("k", base, claim, id), kindPointer, pointer{Data: "d", Token: 7, Length: 4, CRC: "00000001"}},
		"deleted": {o.tombstone("k", base, claim, id), kindTombstone, pointer{Token: 9}},
	} {
		c.want.Settled, c.want.Later = &later, &since{7, at}
		got := c.w.state.pointer()
		if got.Note == "" || got.Note == "n" {
			t.Errorf("%s: the note is %q", name, got.Note)
		}
		got.Note = ""
		if string(encodeJSON(got)) != string(encodeJSON(c.want)) {
			t.Errorf("%s: %s, want %s", name, encodeJSON(got), encodeJSON(c.want))
		}
		size := int64(len(c.w.body) + len(c.w.trailer))
		if c.w.state.kind != c.kind || c.w.state.id != id || c.w.state.mark != (guard.Mark{Token: 9, LeaseID: "b"}) ||
			*c.w.in.ContentType != "application/json" {
			t.Errorf("%s: %+v", name, c.w.state)
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
	if w := o.tombstone("k", base, claim, id); len(w.body)+len(w.trailer) != tombstoneSize {
		t.Errorf("the longest tombstone has %d bytes, the others %d", len(w.body)+len(w.trailer), tombstoneSize)
	}
}

// The cases of the format's table, and of modes that must not be mixed.
func TestFormatCases(t *testing.T) {
	text, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	type side struct {
		ETag  string
		State *struct {
			Write  string
			Recent []string
			Cut    bool
		}
	}
	var cases []struct {
		Name, Do, Write, Verdict, Writer, Object string
		Base, Now                                side
		Doubt, Mixed                             bool
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 30 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	id := func(text string) writeID {
		id, ok := parseWriteID(text)
		if !ok {
			t.Fatalf("write ID %q", text)
		}
		return id
	}
	stateOf := func(s side) *state {
		out := &state{etag: s.ETag}
		if s.State == nil {
			return out
		}
		out.kind, out.id, out.cut = kindSealed, id(s.State.Write), s.State.Cut
		for _, text := range s.State.Recent {
			out.recent = append(out.recent, id(text))
		}
		return out
	}
	kinds := map[string]kind{}
	for k, name := range kindNames {
		kinds[name] = k
	}
	for _, c := range cases {
		if c.Do == "mixed" {
			o := &fenced{kind: kinds[c.Writer]}
			if err := o.writable(guard.Claim{}, "k", &state{kind: kinds[c.Object]}); (err != nil) != c.Mixed {
				t.Errorf("%s: %v", c.Name, err)
			}
			continue
		}
		verdict := map[fate]string{fateApplied: "written", fatePending: "contradiction", fateLost: "decide", fateUnknown: "decide"}
		if c.Doubt {
			verdict[fatePending], verdict[fateUnknown] = "again", "unknown"
		}
		if got := verdict[fateOf(id(c.Write), stateOf(c.Base), stateOf(c.Now))]; got != c.Verdict {
			t.Errorf("%s: %s, want %s", c.Name, got, c.Verdict)
		}
	}
}

func sealOf(key, body, lease string, recent int) *seal {
	s := &seal{
		state: state{kind: kindSealed, mark: guard.Mark{Token: guard.MaxToken, LeaseID: lease}, id: newWriteID(), cut: recent%2 == 1},
		key:   keySum(key), length: uint64(len(body)), crc: crc32.Checksum([]byte(body), castagnoli),
	}
	for range recent {
		s.recent = append(s.recent, newWriteID())
	}
	return s
}

var eleven = state{kind: kindSealed, mark: guard.Mark{Token: 11, LeaseID: "a"}, id: writeID{1}, recent: []writeID{{2}}}

// The format is stored: every later build must read what is written today.
func TestTrailerIsStable(t *testing.T) {
	s := &seal{state: eleven, key: keySum("k"), length: 4, crc: 0xfeedface}
	got := hex.EncodeToString(s.append([]byte("body")))
	const want = "626f6479010300018254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a000000000000000b010000000000000000000000000000000000000000000004feedface016102000000000000000000000000000000a78c6533f5e4c47798d36425aba6fc260000006a66656e6365706f73742f7333"
	if got != want {
		t.Errorf("the trailer is\n%s, want\n%s", got, want)
	}
}

func TestGzipTrailerIsStable(t *testing.T) {
	body := append([]byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01\x04\x00\xfb\xff"), "body\x1a\x9d\x4c\x6b\x04\x00\x00\x00"...)
	s := &seal{state: eleven, key: keySum("k"), length: uint64(len(body)), crc: 0xfeedface}
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

func TestFate(t *testing.T) {
	a, b, c := newWriteID(), newWriteID(), newWriteID()
	absent := state{}
	made := func(id writeID, etag string, recent ...writeID) state {
		return state{kind: kindSealed, etag: etag, id: id, recent: recent}
	}
	cut := made(c, "3", b)
	cut.cut = true
	for name, x := range map[string]struct {
		base, now state
		want      fate
	}{
		"ours is there":                {absent, made(b, "1"), fateApplied},
		"ours was there":               {made(a, "1"), made(c, "3", b, a), fateApplied},
		"nothing happened":             {made(a, "1"), made(a, "1"), fatePending},
		"still absent":                 {absent, absent, fatePending},
		"another over the base":        {made(a, "1"), made(c, "2", a), fateLost},
		"another created it":           {absent, made(c, "1"), fateLost},
		"created, but long ago":        {absent, state{kind: kindSealed, etag: "9", id: c, cut: true}, fateUnknown},
		"the list does not go so far":  {made(a, "1"), made(c, "9"), fateUnknown},
		"deleted unfenced":             {made(a, "1"), absent, fateUnknown},
		"overwritten unfenced":         {made(a, "1"), state{kind: kindUnfenced, etag: "7"}, fateUnknown},
		"ours, and a list that is cut": {absent, cut, fateApplied},
	} {
		if got := fateOf(b, &x.base, &x.now); got != x.want {
			t.Errorf("%s: %d, want %d", name, got, x.want)
		}
	}
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

// No bit of a stored object can change unnoticed.
func TestEveryBit(t *testing.T) {
	b := &Bucket{}
	w := b.sealedWrite("k", state{kind: kindSealed, mark: guard.Mark{Token: 7, LeaseID: "a"}, id: newWriteID(), recent: []writeID{newWriteID()}}, Headers{}, []byte("body"))
	object := append(w.body, w.trailer...)
	_, fencing := split(w.in.Metadata)
	h := head{fencing: fencing, size: int64(len(object))}
	if _, err := parse("k", h, object); err != nil {
		t.Fatal(err)
	}
	for i := range 8 * len(object) {
		object[i/8] ^= 1 << (i % 8)
		if _, err := parse("k", h, object); !errors.As(err, new(*DamagedError)) {
			t.Errorf("bit %d: %v", i, err)
		}
		object[i/8] ^= 1 << (i % 8)
	}
}
