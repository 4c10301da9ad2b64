//go:build long

package lockadmin

import (
	"runtime"
	"testing"
)

// TestLongListMemory: a list of any length is read page by page. It measures the
// heap, so nothing runs beside it.
func TestLongListMemory(t *testing.T) {
	const leases = 200_000
	o := newRoleOperator(t, manyRows(t, leases))
	count := 0
	var most, before uint64
	for _, err := range o.List(t.Context(), "", nil) {
		if err != nil {
			t.Fatal(err)
		}
		if count++; count%(leases/10) == 0 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if before == 0 {
				before = m.HeapAlloc
			}
			most = max(most, m.HeapAlloc)
		}
	}
	if count != leases || most > before+4<<20 {
		t.Errorf("%d leases, the heap grew from %d to %d bytes", count, before, most)
	}
}
