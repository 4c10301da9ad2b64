package s3fence

import (
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// head is what an answer's headers say of an object.
type head struct {
	etag     string
	size     int64 // of the whole object, as stored
	modified time.Time
	metadata map[string]string
	headers  Headers // without metadata
}

// parse makes a state of an object's headers and of its last bytes, all of it
// if it is that short. The error is a [*DamagedError].
func parse(key string, h head, tail []byte) (state, error) {
	m := reserved(h.metadata)
	s, err := parseKind(key, h, m, tail)
	s.etag, s.size, s.modified = h.etag, h.size, h.modified
	return s, err
}

func parseKind(key string, h head, m map[string]string, tail []byte) (state, error) {
	mode := m[metaMode]
	switch {
	case mode == "" && len(m) > 0:
		return state{}, damaged(key, "its metadata has fencing fields but no "+metaMode+": another program wrote it")
	case mode == "" && hasTrailer(tail):
		return state{}, damaged(key, "its trailer is there and its metadata is gone: the bytes were copied here")
	case mode == "":
		return state{kind: kindUnfenced}, nil
	case mode == kindNames[kindPlain]:
		return parsePlain(key, m)
	}
	sl, err := parseSeal(key, tail, h.size)
	if err != nil {
		return state{}, err
	}
	s := state{kind: sl.kind, mark: guard.Mark{Token: sl.token, LeaseID: sl.lease}, id: sl.id, recent: sl.recent, cut: sl.cut}
	if problem := disagreement(&s, m); problem != "" {
		return state{}, damaged(key, problem)
	}
	if int64(len(tail)) == h.size {
		s.body = tail[:len(tail)-sl.size()]
		if err := sl.checkBody(key, s.body); err != nil {
			return state{}, err
		}
	}
	if s.kind == kindPointer && s.pointer().Data == "" {
		return state{}, damaged(key, "its pointer cannot be read: another version wrote it")
	}
	return s, nil
}

// disagreement compares the trailer with the metadata that repeats it.
func disagreement(s *state, m map[string]string) string {
	want := s.metadata(nil)
	for _, name := range []string{metaMode, metaToken, metaLease, metaWrite} {
		if m[name] != want[name] {
			return "its trailer and its metadata disagree about " + strings.TrimPrefix(name, metaPrefix) + ": " +
				quoteShort(want[name]) + " and " + quoteShort(m[name])
		}
	}
	return ""
}
