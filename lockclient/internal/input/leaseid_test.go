package input

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

func TestNewLeaseID(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 10_000 {
		before := time.Now().UnixMilli()
		id := NewLeaseID()
		after := time.Now().UnixMilli()
		if !form.MatchString(id) || guard.ValidateLeaseID(id) != nil || seen[id] {
			t.Fatalf("bad or repeated %q", id)
		}
		seen[id] = true
		ms, err := strconv.ParseInt(strings.ReplaceAll(id, "-", "")[:12], 16, 64)
		if err != nil || ms < before || ms > after {
			t.Fatalf("%q has the time %d, made from %d to %d", id, ms, before, after)
		}
	}
}
