package input

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// NewLeaseID returns a UUID of version 7 (RFC 9562, section 5.7): 48 bits of
// the time, so that IDs sort roughly by age in a log, and 74 random bits.
func NewLeaseID() string {
	var u [16]byte
	binary.BigEndian.PutUint64(u[:], uint64(time.Now().UnixMilli())<<16)
	rand.Read(u[6:]) // never fails since Go 1.24
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	s := hex.EncodeToString(u[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
