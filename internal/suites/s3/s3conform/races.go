package s3conform

import (
	"fmt"
	"net/http"
	"sync"
)

// race sends all requests at once and returns those that were granted. Every
// other must have been refused as a condition that did not hold, or as a
// conflict.
func (k *trial) race(asks []ask) ([]int, []*reply) {
	replies := make([]*reply, len(asks))
	errs := make([]error, len(asks))
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i, a := range asks {
		a.bucket = k.bucket
		wg.Go(func() {
			<-begin
			replies[i], errs[i] = k.do(k.ctx, a)
		})
	}
	close(begin)
	wg.Wait()
	var granted []int
	for i, r := range replies {
		switch {
		case errs[i] != nil:
			fatal("%w", errs[i])
		case r.status == http.StatusOK, r.status == http.StatusNoContent:
			granted = append(granted, i)
		case r.status == http.StatusPreconditionFailed, r.status == http.StatusConflict, r.status == http.StatusNotFound:
		default:
			fatal("got %s", r)
		}
	}
	return granted, replies
}

// tally counts the rounds that did not have exactly one winner.
type tally struct {
	rounds, bad, most int
	first             string
}

func (t *tally) add(winners int) {
	t.rounds++
	if winners == 1 {
		return
	}
	t.bad++
	t.most = max(t.most, winners)
	if t.first == "" {
		t.first = fmt.Sprintf("round %d had %d winners", t.rounds, winners)
	}
}

func (t *tally) err() error {
	if t.bad == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d rounds did not have one winner, at most %d; %s", t.bad, t.rounds, t.most, t.first)
}

// writers makes one conditional PUT for each writer.
func (k *trial) writers(key string, round int, pairs ...string) []ask {
	var asks []ask
	for w := range k.Writers {
		asks = append(asks, ask{method: http.MethodPut, key: k.prefix + key, header: headers(pairs), body: fmt.Appendf(nil, "round %d, writer %d", round, w)})
	}
	return asks
}

var raceCases = []testCase{
	{"race to create has one winner", func(k *trial) error {
		var t tally
		for round := range k.Rounds {
			key := fmt.Sprint(round)
			asks := k.writers(key, round, "If-None-Match", "*")
			granted, replies := k.race(asks)
			t.add(len(granted))
			if len(granted) == 1 {
				k.holds(key, string(asks[granted[0]].body), replies[granted[0]].etag())
			}
		}
		return t.err()
	}},
	{"race to replace has one winner", func(k *trial) error {
		var t tally
		etag := k.put("a", "first").want(http.StatusOK, "").etag()
		for round := range k.Rounds {
			asks := k.writers("a", round, "If-Match", etag)
			granted, replies := k.race(asks)
			t.add(len(granted))
			if len(granted) == 1 {
				k.holds("a", string(asks[granted[0]].body), replies[granted[0]].etag())
			}
			etag = k.head("a").want(http.StatusOK, "").etag()
		}
		return t.err()
	}},
	{"race of replace and delete has one winner", func(k *trial) error {
		var t tally
		for round := range max(1, k.Rounds/5) {
			etag := k.put("a", fmt.Sprint("first of ", round)).want(http.StatusOK, "").etag()
			asks := k.writers("a", round, "If-Match", etag)
			for i := range asks {
				if i%2 == 0 {
					asks[i].method, asks[i].body = http.MethodDelete, nil
				}
			}
			granted, replies := k.race(asks)
			// A delete of a missing object may be granted, which proves
			// nothing.
			puts, deletes := 0, 0
			for _, i := range granted {
				if asks[i].method == http.MethodPut {
					puts++
				} else {
					deletes++
				}
			}
			winners := puts
			if deletes > 0 {
				winners++
			}
			t.add(winners)
			if winners != 1 {
				continue
			}
			if puts == 0 {
				k.absent("a")
			} else {
				k.holds("a", string(asks[granted[0]].body), replies[granted[0]].etag())
			}
		}
		return t.err()
	}},
	{"race of multipart uploads has one winner", func(k *trial) error {
		var t tally
		etag := k.put("a", "first").want(http.StatusOK, "").etag()
		for round := range max(1, k.Rounds/20) {
			var asks []ask
			for w := range k.Writers {
				id, parts := k.prepare("a", fmt.Sprintf("round %d, writer %d", round, w))
				asks = append(asks, k.completion("a", id, parts, "If-Match", etag))
			}
			granted, _ := k.race(asks)
			t.add(len(granted))
			if len(granted) == 1 {
				k.holds("a", fmt.Sprintf("round %d, writer %d", round, granted[0]), "")
			}
			etag = k.head("a").want(http.StatusOK, "").etag()
		}
		return t.err()
	}},
}
