package s3fence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

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

// TestTellingNobodyAllocatesNothing: without an observer an event costs no
// allocation; with one, neither does an event of a success.
func TestTellingNobodyAllocatesNothing(t *testing.T) {
	ctx, start := context.Background(), time.Now()
	claim := guard.Claim{Resource: "r", Token: 1, LeaseID: "l"}
	told := 0
	for name, observer := range map[string]guard.Observer{
		"nobody": nil, "an observer": guard.ObserverFunc(func(context.Context, guard.Event) { told++ }),
	} {
		b := &Bucket{}
		b.opts.Observer = observer
		if n := testing.AllocsPerRun(1000, func() { b.observe(ctx, guard.OpWrite, claim, guard.Mark{Token: 1}, start, nil) }); n != 0 {
			t.Errorf("told to %s: %v allocations", name, n)
		}
	}
	if told == 0 {
		t.Error("the observer was not told")
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
