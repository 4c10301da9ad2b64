package s3probe

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// What a read during writes must not show. ETags "1" and "2" are of versions 1 and 2.
func TestSightingsAreJudged(t *testing.T) {
	of := func(version int64, etag string, acked int64) sighting {
		w := numbered(version)
		return sighting{acked: acked, o: &Object{ETag: etag, Content: w.Body, Metadata: w.Metadata}}
	}
	torn := of(2, "2", 1)
	torn.o.Content = numbered(1).Body
	foreign := of(2, "2", 1)
	foreign.o.Metadata = maps.Clone(foreign.o.Metadata)
	clear(foreign.o.Metadata)
	tail := of(1, "1", 1)
	tail.last, tail.o.Content = 10, tail.o.Content[len(tail.o.Content)-10:]
	for says, s := range map[string]sighting{
		"": of(2, "2", 2), "an older ETag with a newer version, which does no harm": of(2, "1", 1), "the end of a version does no harm": tail,
		"version 1 after 2 was acknowledged": of(1, "1", 2), "the ETag of version 2 with version 1": of(1, "2", 1), "which no write had": of(2, "3", 1),
		"404 for an object that exists": {acked: 1, err: ErrAbsent}, "no strong ETag": {err: ErrETag},
		"version 2 with the body of another": torn, "version 0 with the body of another": foreign,
	} {
		p := New("probe/", nil)
		err := p.judge(slices.Repeat([]sighting{s}, raceWrites), map[string]int64{"1": 1, "2": 2})
		if harmless := says == "" || strings.Contains(says, "no harm"); harmless != (err == nil) || !harmless && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
