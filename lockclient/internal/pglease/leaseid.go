package pglease

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// NewLeaseID returns a UUID of version 7 (RFC 9562, section 5.7): 48 bits of
// the time, so that IDs sort roughly by age in a log, and 74 random bits.
func NewLeaseID() string {
	var u [16]byte
	rand.Read(u[:]) // never fails since Go 1.24
	ms := uint64(time.Now().UnixMilli())
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	u[6] = u[6]&0x0f | 0x70
	u[8] = u[8]&0x3f | 0x80
	var s [36]byte
	hex.Encode(s[0:8], u[0:4])
	hex.Encode(s[9:13], u[4:6])
	hex.Encode(s[14:18], u[6:8])
	hex.Encode(s[19:23], u[8:10])
	hex.Encode(s[24:36], u[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}
