package s3fence

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"strconv"

	"github.com/fencepost-go/fencepost/guard"
)

// The trailer is what follows the body of a sealed object:
//
//	version   1 byte    trailerVersion
//	kind      1 byte    what the body is
//	flags     1 byte    bit 0: the list of recent writes is not complete
//	count     1 byte    how many recent writes
//	key      32 bytes   SHA-256 of the object's key
//	token     8 bytes   big endian, as all numbers
//	write    16 bytes   the ID of the write that made this object
//	length    8 bytes   of the body
//	body      4 bytes   CRC-32C of the body
//	lease     1 byte    length of the lease ID, which follows
//	recent   16 bytes   for each recent write its ID, newest first
//	sum      16 bytes   of SHA-256 over all of the above
//	size      4 bytes   of all of the above
//	magic    12 bytes
//
// It is at the end, so that a range request for the last few KiB reads the
// mark of an object of any size, and so that what reads the body from its
// start finds it where it was.
const (
	trailerVersion = 1
	trailerMagic   = "fencepost/s3"
	trailerFixed   = 4 + 32 + 8 + 16 + 8 + 4 + 1
	trailerSum     = 16
	trailerEnd     = 4 + len(trailerMagic)

	// maxRecent is how many writes are remembered in an object. It bounds how
	// many may follow between a write and the reading that resolves it.
	maxRecent = 32

	maxTrailer = trailerFixed + guard.MaxLeaseIDLen + maxRecent*len(writeID{}) + trailerSum + trailerEnd
	// tailSize is how much of an object is read to know its state: the trailer
	// and, of what is small, the body too.
	tailSize = 4 << 10

	flagCut = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// writeID identifies one write, so that its author recognises it and so that
// no two objects have the same bytes.
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

// seal is what a trailer says.
type seal struct {
	kind   kind
	key    [sha256.Size]byte
	token  guard.Token
	lease  string
	id     writeID
	recent []writeID
	cut    bool
	length uint64
	crc    uint32
}

// size is the length of the encoded trailer.
func (s *seal) size() int {
	return trailerFixed + len(s.lease) + len(s.recent)*len(writeID{}) + trailerSum + trailerEnd
}

// append encodes s behind body.
func (s *seal) append(body []byte) []byte {
	start := len(body)
	flags := byte(0)
	if s.cut {
		flags |= flagCut
	}
	out := append(body, trailerVersion, byte(s.kind), flags, byte(len(s.recent)))
	out = append(out, s.key[:]...)
	out = binary.BigEndian.AppendUint64(out, uint64(s.token))
	out = append(out, s.id[:]...)
	out = binary.BigEndian.AppendUint64(out, s.length)
	out = binary.BigEndian.AppendUint32(out, s.crc)
	out = append(out, byte(len(s.lease)))
	out = append(out, s.lease...)
	for _, id := range s.recent {
		out = append(out, id[:]...)
	}
	sum := sha256.Sum256(out[start:])
	out = append(out, sum[:trailerSum]...)
	out = binary.BigEndian.AppendUint32(out, uint32(len(out)-start))
	return append(out, trailerMagic...)
}

// hasTrailer reports whether tail, the end of an object, ends as a trailer does.
func hasTrailer(tail []byte) bool { return bytes.HasSuffix(tail, []byte(trailerMagic)) }

// parseSeal reads the trailer at the end of tail, which is the end of an object
// of the given total length, and checks it against itself and against the
// object's key and length, not against the body.
func parseSeal(key string, tail []byte, total int64) (*seal, error) {
	if !hasTrailer(tail) {
		return nil, damaged(key, "its trailer is missing: the end was cut off or something was appended")
	}
	rest := tail[:len(tail)-len(trailerMagic)]
	if len(rest) < 4 {
		return nil, damaged(key, "its trailer is cut")
	}
	size := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	rest = rest[:len(rest)-4]
	if size < trailerFixed+trailerSum || size > int64(len(rest)) {
		return nil, damaged(key, "its trailer is cut or its length is wrong")
	}
	rest = rest[int64(len(rest))-size:]
	payload, sum := rest[:size-trailerSum], rest[size-trailerSum:]
	if want := sha256.Sum256(payload); !bytes.Equal(sum, want[:trailerSum]) {
		return nil, damaged(key, "its trailer does not match its own checksum")
	}
	if payload[0] != trailerVersion || payload[2]&^flagCut != 0 {
		return nil, damaged(key, "its trailer has version "+strconv.Itoa(int(payload[0]))+", flags "+strconv.Itoa(int(payload[2]))+
			", which this build does not know")
	}
	s := &seal{kind: kind(payload[1]), cut: payload[2]&flagCut != 0}
	count := int(payload[3])
	payload = payload[4:]
	payload = payload[copy(s.key[:], payload):]
	s.token = guard.Token(binary.BigEndian.Uint64(payload))
	payload = payload[8:]
	payload = payload[copy(s.id[:], payload):]
	s.length = binary.BigEndian.Uint64(payload)
	s.crc = binary.BigEndian.Uint32(payload[8:])
	lease := int(payload[12])
	payload = payload[13:]
	if len(payload) != lease+count*len(writeID{}) {
		return nil, damaged(key, "the lengths in its trailer do not add up")
	}
	s.lease, payload = string(payload[:lease]), payload[lease:]
	for ; len(payload) > 0; payload = payload[len(writeID{}):] {
		s.recent = append(s.recent, writeID(payload))
	}
	switch {
	case s.key != keySum(key):
		return nil, damaged(key, "its trailer belongs to another key: the bytes were copied here")
	case s.length != uint64(total-int64(s.size())):
		return nil, damaged(key, "its body has "+strconv.FormatInt(total-int64(s.size()), 10)+
			" bytes, its trailer says "+strconv.FormatUint(s.length, 10))
	case !s.kind.sealed():
		return nil, damaged(key, "its trailer has the unknown kind "+strconv.Itoa(int(s.kind)))
	case !s.token.Valid() && (s.kind != kindBlank || s.token != guard.NoToken):
		return nil, damaged(key, "its trailer has the invalid token "+s.token.String())
	case guard.ValidateLeaseID(s.lease) != nil:
		return nil, damaged(key, "its trailer has an invalid lease ID")
	}
	return s, nil
}

// checkBody compares a body with what the trailer says of it.
func (s *seal) checkBody(key string, body []byte) error {
	if crc32.Checksum(body, castagnoli) != s.crc {
		return damaged(key, "its body does not match the checksum in its trailer")
	}
	return nil
}
