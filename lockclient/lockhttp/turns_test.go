package lockhttp

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// TestPlaceIsForgotten: the place of a client that does not come back is kept for
// some seconds, and then nothing is left of it.
func TestPlaceIsForgotten(t *testing.T) {
	t.Parallel()
	for away, order := range map[time.Duration]string{placeFor - time.Second: "[1 2]", placeFor + time.Second: "[2 1]"} {
		synctest.Test(t, func(t *testing.T) {
			var all turns
			first := all.join("r", "s", "1")
			second := all.join("r", "s", "2")
			first.leave()
			time.Sleep(away)
			first = all.join("r", "s", "1")
			var got []string
			for _, one := range second.queue.tickets {
				got = append(got, one.leaseID)
			}
			if fmt.Sprint(got) != order || !second.queue.tickets[0].first || second.queue.tickets[1].first {
				t.Errorf("away for %v: the order is %v, want %s", away, got, order)
			}
			first.leave()
			second.leave()
			time.Sleep(placeFor + time.Second)
			synctest.Wait()
			if len(all.by) != 0 || len(all.left) != 0 {
				t.Errorf("%d queues and places of %d subjects are left", len(all.by), len(all.left))
			}
		})
	}
}

// TestPlacesAreBounded: a subject that watches for a moment under ever new names
// leaves no more than placesMost places, and takes none from another subject.
func TestPlacesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all turns
		for n := range 3 * placesMost {
			all.join(fmt.Sprint("r", n), "churns", "1").leave()
		}
		first := all.join("r", "s", "1")
		second := all.join("r", "s", "2")
		first.leave()
		first = all.join("r", "s", "1")
		if len(all.by) != placesMost+1 || all.left["churns"] != placesMost || !first.first || second.first {
			t.Errorf("%d queues, %d places, first: %t, %t", len(all.by), all.left["churns"], first.first, second.first)
		}
		first.leave()
		second.leave()
		time.Sleep(placeFor + time.Second)
		synctest.Wait()
		if len(all.by) != 0 || len(all.left) != 0 {
			t.Errorf("%d queues and places of %d subjects are left", len(all.by), len(all.left))
		}
	})
}
