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
		case r.status == http.StatusOK:
			granted = append(granted, i)
		case r.status == http.StatusPreconditionFailed, r.status == http.StatusConflict:
		default:
			fatal("got %s", r)
		}
	}
	return granted, replies
}

// writers makes one conditional PUT for each writer.
func (k *trial) writers(key string, round int, pairs ...string) []ask {
	var asks []ask
	for w := range k.Writers {
		asks = append(asks, ask{method: http.MethodPut, key: k.prefix + key, header: headers(pairs), body: fmt.Appendf(nil, "round %d, writer %d", round, w)})
	}
	return asks
}

// rounds races in each round, and fails unless each has exactly one winner, whose
// write is there.
func (k *trial) rounds(race func(round int) (key string, asks []ask)) {
	bad, most, first := 0, 0, -1
	for round := range k.Rounds {
		key, asks := race(round)
		granted, replies := k.race(asks)
		if len(granted) == 1 {
			k.holds(key, string(asks[granted[0]].body), replies[granted[0]].etag())
			continue
		}
		if bad++; bad == 1 {
			first = round
		}
		most = max(most, len(granted))
	}
	if bad > 0 {
		fatal("%d of %d rounds did not have one winner, at most %d; the first was round %d", bad, k.Rounds, most, first)
	}
}

var raceCases = []testCase{
	{"race to create has one winner", func(k *trial) {
		k.rounds(func(round int) (string, []ask) {
			key := fmt.Sprint(round)
			return key, k.writers(key, round, "If-None-Match", "*")
		})
	}},
	{"race to replace has one winner", func(k *trial) {
		k.put("a", "first").want(http.StatusOK, "")
		k.rounds(func(round int) (string, []ask) {
			return "a", k.writers("a", round, "If-Match", k.get("a").want(http.StatusOK, "").etag())
		})
	}},
}
