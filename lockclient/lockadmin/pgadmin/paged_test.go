package pgadmin

import (
	"slices"
	"testing"
)

// TestPagedStops: no page is read after the caller has enough.
func TestPagedStops(t *testing.T) {
	reads := 0
	rows := paged(0, nil, func(after, limit int) ([]int, int, bool, error) {
		reads++
		return []int{after, limit}, after + 1, true, nil
	})
	var got []int
	for n, err := range rows {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, n); len(got) == 3 {
			break
		}
	}
	if want := []int{0, firstPage, 1}; !slices.Equal(got, want) || reads != 2 {
		t.Errorf("got %v in %d pages, want %v", got, reads, want)
	}
}
