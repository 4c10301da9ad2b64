package oracle

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// call is what a caller did and was told. begin and end are how many changes the store had
// seen before and after.
type call struct {
	verb, key  string
	claim      guard.Claim
	attempt    string // of a put: what its content begins with
	begin, end int64
	err        error
	// read is what a get has shown: content and mark.
	content string
	mark    guard.Mark
}

func (c *call) String() string {
	return fmt.Sprintf("%s %s under %d %s, [%d, %d], told %v, %.30q at %d", c.verb, c.key, c.claim.Token, c.attempt, c.begin, c.end, c.err, c.content, c.mark.Token)
}

// version is a change of an object, read by the oracle.
type version struct {
	seq int64
	*stored
	content string
	again   bool // an earlier version had this content: it was raised
}

func (v *version) gone() bool { return v == nil || v.kind == "tombstone" }

// history reads every version of a key that the store has had.
func history(server *s3test.Server, key string, content func(s *stored) string) (versions []*version, bad []string) {
	for _, m := range server.History(s3test.DefaultBucket, key) {
		if m.Op != s3test.PutObject {
			bad = append(bad, fmt.Sprintf("%s: change %d is a %s", key, m.Seq, m.Op))
			continue
		}
		s, err := read(key, m.Body, m.Metadata)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: change %d: %v", key, m.Seq, err))
			continue
		}
		v := &version{seq: m.Seq, stored: s, content: content(s)}
		v.again = slices.ContainsFunc(versions, func(b *version) bool { return b.content == v.content })
		versions = append(versions, v)
	}
	return versions, bad
}

// chain checks that each version follows from the one before: P1, P4, and section 6.
func chain(key string, versions []*version) (bad []string) {
	known := map[string]bool{}
	for i, v := range versions {
		fault := ""
		limit := 32
		if v.kind == "plain" {
			limit = 8
		}
		if known[v.write] {
			fault = "its write took effect twice"
		}
		known[v.write] = true
		if i == 0 {
			if len(v.recent) > 0 || v.cut {
				fault = "it lists writes, and is the first"
			}
		} else {
			b := versions[i-1]
			want := append([]string{b.write}, b.recent...)
			cut := b.cut || len(want) > limit
			want = want[:min(len(want), limit)]
			switch {
			case v.token < b.token:
				fault = fmt.Sprintf("token %d follows %d", v.token, b.token)
			case v.token == b.token && v.lease != b.lease:
				fault = fmt.Sprintf("token %d has the leases %q and %q", v.token, b.lease, v.lease)
			case !slices.Equal(v.recent, want) || v.cut != cut:
				fault = "it does not list the writes before it"
			}
		}
		if fault != "" {
			bad = append(bad, fmt.Sprintf("%s: change %d: %s", key, v.seq, fault))
		}
	}
	return bad
}

// during returns the versions that were there at some time during a call; nil is no object.
func (c *call) during(versions []*version) (out []*version) {
	i, _ := slices.BinarySearchFunc(versions, c.begin+1, func(v *version, seq int64) int { return int(v.seq - seq) })
	if i == 0 {
		out = append(out, nil)
	} else {
		out = append(out, versions[i-1])
	}
	for ; i < len(versions) && versions[i].seq <= c.end; i++ {
		out = append(out, versions[i])
	}
	return out
}

// judge compares what callers were told with what the store has had.
func judge(calls []*call, versions map[string][]*version) (bad []string) {
	for _, c := range calls {
		all := versions[c.key]
		times := 0
		for _, v := range all {
			if c.attempt != "" && !v.again && strings.HasPrefix(v.content, c.attempt+" ") {
				times++
			}
		}
		seen := func(ok func(*version) bool) bool { return slices.ContainsFunc(c.during(all), ok) }
		ok := false
		switch reason := guard.ReasonOf(c.err); {
		case errors.Is(c.err, guard.ErrUnavailable), reason == guard.ReasonUnavailable:
			ok = times == 0
		case reason == guard.ReasonOutcomeUnknown:
			ok = times <= 1 && c.attempt != ""
			ok = ok || c.verb == "raise" || c.verb == "delete"
		case reason == guard.ReasonStale:
			ok = times == 0 && seen(func(v *version) bool { return v != nil && v.token > int64(c.claim.Token) })
		case c.verb == "put":
			ok = reason == guard.ReasonNone && times == 1
		case c.verb == "raise", c.verb == "delete": // at some time the object had its mark
			ok = reason == guard.ReasonNone && seen(func(v *version) bool {
				return v != nil && v.token == int64(c.claim.Token) && v.lease == c.claim.LeaseID
			})
		case c.verb == "get" && reason == guard.ReasonNotFound:
			ok = seen((*version).gone)
		case c.verb == "get":
			ok = reason == guard.ReasonNone && seen(func(v *version) bool {
				return !v.gone() && v.content == c.content && v.token == int64(c.mark.Token) && v.lease == c.mark.LeaseID
			})
		case c.verb == "mark":
			ok = reason == guard.ReasonNone && seen(func(v *version) bool {
				return v == nil && c.mark == guard.Mark{} || v != nil && v.token == int64(c.mark.Token) && v.lease == c.mark.LeaseID
			})
		}
		if !ok {
			bad = append(bad, fmt.Sprintf("%v; it took effect %d times", c, times))
		}
	}
	return bad
}

// marked checks raises and deletions, whose versions have no content of their own: a claim has
// made no more of them than it was told of.
func marked(calls []*call, versions map[string][]*version) (bad []string) {
	told, made := map[string]int{}, map[string]int{}
	for _, c := range calls {
		if reason := guard.ReasonOf(c.err); (c.verb == "raise" || c.verb == "delete") && (reason == guard.ReasonNone || reason == guard.ReasonOutcomeUnknown) {
			told[c.key+" "+c.claim.LeaseID]++
		}
	}
	for key, all := range versions {
		for _, v := range all {
			if v.again || v.gone() {
				made[key+" "+v.lease]++
			}
		}
	}
	for claim, n := range made {
		if n > told[claim] {
			bad = append(bad, fmt.Sprintf("%s: %d raises and deletions took effect, of %d", claim, n, told[claim]))
		}
	}
	return bad
}

// lists checks listings: what was there all the time is in it, and what never was is not.
func lists(calls []*listing, versions map[string][]*version) (bad []string) {
	for _, l := range calls {
		if l.err != nil {
			continue // it says so
		}
		for key, all := range versions {
			during := (&call{begin: l.begin, end: l.end}).during(all)
			always := !slices.ContainsFunc(during, (*version).gone)
			never := !slices.ContainsFunc(during, func(v *version) bool { return !v.gone() })
			if listed := slices.Contains(l.keys, key); always && !listed || never && listed {
				bad = append(bad, fmt.Sprintf("%s is listed: %v, in [%d, %d]", key, listed, l.begin, l.end))
			}
		}
	}
	return bad
}

// listing is what a caller was shown of all keys.
type listing struct {
	begin, end int64
	keys       []string
	err        error
}
