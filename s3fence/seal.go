package s3fence

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// The trailer is what follows the body of a sealed object; FORMAT.md, section 2,
// has its fields, in the order in which append writes them. It is at the end, so
// that a range request for the last few KiB reads the mark of an object of any
// size, and a reader of the body from its start finds it in place. The last 16
// bytes, and the version as the first of the size bytes before them, are the same
// in all versions.
//
// For kind gzip the body is a gzip file (RFC 1952), and the trailer is in the
// header of one more, empty member of that file, so that readers of the file read
// only the content.
const (
	trailerVersion = 1
	trailerMagic   = "fencepost/s3"
	trailerFixed   = 4 + 32 + 8 + 16 + 8 + 4 + 1
	trailerSum     = 16
	trailerEnd     = 4 + len(trailerMagic)

	// maxRecent is how many writes an object remembers. It bounds how many may
	// come between a write and the read that resolves it.
	maxRecent = 32

	gzipHead = "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff"
	gzipName = "FP"
	gzipEnd  = "\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	maxRatio = 1032 // of what deflate unpacks to
	gzipRoom = len(gzipHead) + 2 + len(gzipName) + 2 + len(gzipEnd)

	maxTrailer = trailerFixed + guard.MaxLeaseIDLen + maxRecent*len(writeID{}) + 8 + trailerSum + trailerEnd + gzipRoom
	// tailSize is how much of an object is read to learn its state: the trailer
	// and, for a small object, the body too.
	tailSize = 4 << 10

	flagCut = 1
)

// The tail holds the longest trailer.
var _ [tailSize - maxTrailer]struct{}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writeID identifies one write, so that its writer recognises it and no two
// objects have the same bytes.
type writeID [16]byte

func newWriteID() (id writeID) {
	rand.Read(id[:]) // never fails, since Go 1.24
	return id
}

func (id writeID) String() string { return hex.EncodeToString(id[:]) }

func parseWriteID(s string) (id writeID, ok bool) {
	if len(s) != 2*len(id) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil && id.String() == s
}

// trailerHead is the fixed part of a trailer.
type trailerHead struct {
	Version, Kind, Flags, Recent uint8
	Key                          [sha256.Size]byte
	Token                        guard.Token
	ID                           writeID
	Length                       uint64
	CRC                          uint32
	LeaseID                      uint8
}

// seal is what a trailer says: the version of the object, and which bytes that is about.
type seal struct {
	version
	key    [sha256.Size]byte
	length uint64 // of the body as stored
	crc    uint32
}

// size is the length of the encoded trailer, with the member that holds it.
func (s *seal) size() int {
	n := trailerFixed + len(s.mark.LeaseID) + len(s.recent)*len(writeID{}) + trailerSum + trailerEnd
	if s.kind == kindGzip {
		n += 8 + gzipRoom
	}
	return n
}

// append appends the encoding of s to the body in out.
func (s *seal) append(out []byte) []byte {
	if s.kind == kindGzip {
		out = append(out, memberHead(s.size()-gzipRoom)...)
	}
	start := len(out)
	head := trailerHead{trailerVersion, uint8(s.kind), 0, uint8(len(s.recent)), s.key, s.mark.Token, s.id, s.length, s.crc, uint8(len(s.mark.LeaseID))}
	if s.cut {
		head.Flags = flagCut
	}
	out, _ = binary.Append(out, binary.BigEndian, &head) // of fixed size, so it never fails
	out = append(out, s.mark.LeaseID...)
	for _, id := range s.recent {
		out = append(out, id[:]...)
	}
	if s.kind == kindGzip {
		out = binary.BigEndian.AppendUint64(out, uint64(s.content))
	}
	sum := sha256.Sum256(out[start:])
	out = append(out, sum[:trailerSum]...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(out)-start))
	out = append(out, trailerMagic...)
	if s.kind == kindGzip {
		out = append(out, gzipEnd...)
	}
	return out
}

// splitSeal returns what is before the trailer at the end of tail, the trailer's fields, and
// whether their checksum holds.
func splitSeal(tail []byte) (before, payload []byte, intact bool, problem string) {
	tail, _ = bytes.CutSuffix(tail, []byte(gzipEnd))
	rest, found := bytes.CutSuffix(tail, []byte(trailerMagic))
	if !found {
		return nil, nil, false, "its trailer is missing: the end was cut off or something was appended"
	}
	if len(rest) < 4 {
		return nil, nil, false, "its trailer is cut"
	}
	size := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	rest = rest[:len(rest)-4]
	if size < trailerFixed+trailerSum || size > int64(len(rest)) {
		return nil, nil, false, "its trailer is cut or its length is wrong"
	}
	before = rest[:int64(len(rest))-size]
	payload = rest[len(before) : len(rest)-trailerSum]
	sum := sha256.Sum256(payload)
	return before, payload, bytes.Equal(rest[len(rest)-trailerSum:], sum[:trailerSum]), ""
}

// parseSeal reads the trailer at the end of tail, which is the end of an object
// of the given total length, and checks it against itself and against the
// object's key and length, not against the body.
func parseSeal(key string, tail []byte, total int64) (*seal, error) {
	before, payload, intact, problem := splitSeal(tail)
	if problem != "" {
		return nil, damaged(key, problem)
	}
	size, member := len(payload)+trailerSum, bytes.HasSuffix(tail, []byte(gzipEnd))
	var head trailerHead
	_, _ = binary.Decode(payload, binary.BigEndian, &head) // splitSeal has checked the length
	if head.Version != trailerVersion {
		return nil, damaged(key, "its trailer has version "+strconv.Itoa(int(head.Version))+", which this build does not know")
	}
	if !intact {
		return nil, damaged(key, "its trailer does not match its own checksum")
	}
	if head.Flags&^flagCut != 0 {
		return nil, damaged(key, "its trailer has flags "+strconv.Itoa(int(head.Flags))+", which this build does not know")
	}
	s := &seal{
		version: version{kind: kind(head.Kind), mark: guard.Mark{Token: head.Token}, id: head.ID, cut: head.Flags == flagCut},
		key:     head.Key, length: head.Length, crc: head.CRC,
	}
	count, lease, extra, rest := int(head.Recent), int(head.LeaseID), 0, payload[trailerFixed:]
	if s.kind == kindGzip {
		extra = 8
	}
	if len(rest) != lease+count*len(writeID{})+extra {
		return nil, damaged(key, "the lengths in its trailer do not add up")
	}
	s.mark.LeaseID, rest = string(rest[:lease]), rest[lease:]
	for range count {
		s.recent, rest = append(s.recent, writeID(rest)), rest[len(writeID{}):]
	}
	if extra > 0 {
		s.content = int64(binary.BigEndian.Uint64(rest))
	}
	switch {
	case member != (s.kind == kindGzip) || member && !bytes.HasSuffix(before, memberHead(size+trailerEnd)):
		return nil, damaged(key, "its trailer stands where one of its kind does not")
	case s.key != keySum(key):
		return nil, damaged(key, "its trailer belongs to another key: the bytes were copied here")
	case s.length != uint64(total-int64(s.size())):
		return nil, damaged(key, "its body has "+strconv.FormatInt(total-int64(s.size()), 10)+
			" bytes, its trailer says "+strconv.FormatUint(s.length, 10))
	case s.kind == kindGzip && uint64(s.content) > maxRatio*s.length:
		return nil, damaged(key, "its trailer says that "+strconv.FormatUint(s.length, 10)+" bytes unpack to "+strconv.FormatUint(uint64(s.content), 10))
	case !s.kind.sealed():
		return nil, damaged(key, "its trailer has the unknown kind "+strconv.Itoa(int(s.kind)))
	case !s.mark.Token.Valid():
		return nil, damaged(key, "its trailer has the invalid token "+s.mark.Token.String())
	case guard.ValidateLeaseID(s.mark.LeaseID) != nil:
		return nil, damaged(key, "its trailer has an invalid lease ID")
	}
	return s, nil
}

// memberHead returns what precedes a trailer of n bytes in a gzip member.
func memberHead(n int) []byte {
	out := binary.LittleEndian.AppendUint16([]byte(gzipHead), uint16(len(gzipName)+2+n))
	return binary.LittleEndian.AppendUint16(append(out, gzipName...), uint16(n))
}

// pack makes a gzip file of content.
func pack(content []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	// A bytes.Buffer never fails.
	_, _ = w.Write(content)
	_ = w.Close()
	return out.Bytes()
}

// unpack reads a gzip file up to one byte more than the limit.
func unpack(file []byte, limit int64) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	return readAll(r, min(limit, 1<<20), limit)
}
