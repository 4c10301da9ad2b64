package s3fence

import (
	"crypto/md5"
	"encoding/hex"
	"maps"
	"net/url"
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// The metadata of everything that this package writes. For sealed kinds it
// repeats the trailer, for people and tools; Plain has nothing else.
const (
	metaPrefix = "fencing-"
	metaMode   = "fencing-mode"
	metaToken  = guard.CarrierToken // "fencing-token"
	metaLease  = guard.CarrierLease // "fencing-lease", percent-encoded
	metaWrite  = "fencing-write"
	metaRecent = "fencing-recent" // Plain only
	metaMD5    = "fencing-md5"    // Plain only: of the body

	// maxMetadata is how many bytes of names and values S3 takes.
	maxMetadata = 2048
	// maxRecentPlain is small, because the user's metadata shares that limit.
	maxRecentPlain = 8
)

// rewritable returns the headers of an object that is to be written back, or says what of
// them, in another program's object, cannot be.
func (v *version) rewritable() (Headers, error) {
	if v.expires != "" {
		return Headers{}, guard.Invalid("Headers.Expires", v.expires, "is the object's and no date, so it would be lost: remove it first")
	}
	return v.headers.validate()
}

// maxReserved is the maximum length of the reserved metadata.
const maxReserved = len(metaMode+metaToken+metaLease+metaWrite+metaRecent+metaMD5) + len("tombstone") + 19 + 2*md5.Size +
	3*guard.MaxLeaseIDLen + 2*len(writeID{}) + maxRecentPlain*(2*len(writeID{})+1) + 1

// metadata returns the reserved metadata of v together with the user's.
func (v *version) metadata(user map[string]string) map[string]string {
	m := make(map[string]string, len(user)+5)
	maps.Copy(m, user)
	m[metaMode] = kindNames[v.kind]
	m[metaToken] = v.mark.Token.String()
	m[metaWrite] = v.id.String()
	if v.mark.LeaseID != "" {
		m[metaLease] = url.PathEscape(v.mark.LeaseID)
	}
	if v.kind == kindPlain {
		m[metaMD5] = hex.EncodeToString(v.md5[:])
		ids := make([]string, len(v.recent))
		for i, id := range v.recent {
			ids[i] = id.String()
		}
		list := strings.Join(ids, ",")
		if v.cut {
			list += "+"
		}
		if list != "" { // some servers lose empty values
			m[metaRecent] = list
		}
	}
	return m
}

// split returns the user's and the reserved part of stored metadata.
func split(metadata map[string]string) (user, reserved map[string]string) {
	user, reserved = make(map[string]string, len(metadata)), map[string]string{}
	for name, value := range metadata {
		if name = strings.ToLower(name); strings.HasPrefix(name, metaPrefix) {
			reserved[name] = value
		} else {
			user[name] = value
		}
	}
	return user, reserved
}

// parsePlain reads the version of a Plain object from its reserved metadata.
func parsePlain(key string, o *object) (version, error) {
	s, m := version{kind: kindPlain}, o.fencing
	var err error
	if s.mark.Token, err = guard.ParseToken(m[metaToken]); err != nil {
		return s, damaged(key, "its metadata has the token "+strconv.QuoteToASCII(m[metaToken]))
	}
	if s.mark.LeaseID, err = url.PathUnescape(m[metaLease]); err != nil || guard.ValidateLeaseID(s.mark.LeaseID) != nil {
		return s, damaged(key, "its metadata has the lease ID "+strconv.QuoteToASCII(m[metaLease]))
	}
	var ok bool
	if s.id, ok = parseWriteID(m[metaWrite]); !ok {
		return s, damaged(key, "its metadata has the write ID "+strconv.QuoteToASCII(m[metaWrite]))
	}
	list, cut := strings.CutSuffix(m[metaRecent], "+")
	s.cut = cut
	for text := range strings.SplitSeq(list, ",") {
		if list == "" {
			break
		}
		id, ok := parseWriteID(text)
		if !ok {
			return s, damaged(key, "its metadata has a malformed list of writes")
		}
		s.recent = append(s.recent, id)
	}
	if text := m[metaMD5]; len(text) == 2*md5.Size {
		hex.Decode(s.md5[:], []byte(text)) // text that is not hexadecimal fails the check below
	}
	if m[metaMD5] != hex.EncodeToString(s.md5[:]) {
		return s, damaged(key, "its metadata has the MD5 "+strconv.QuoteToASCII(m[metaMD5]))
	}
	if o.whole() && md5.Sum(o.content) != s.md5 {
		return s, damaged(key, "its body does not match the MD5 in its metadata")
	}
	return s, nil
}
