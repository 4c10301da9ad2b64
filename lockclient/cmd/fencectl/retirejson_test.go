package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/internal/opcmd"
)

// With -o json standard error has an error and nothing else, even from a
// command that tells people what it waits for; the control is the same without
// it.
func TestRetireWaitsQuietlyForPrograms(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	hold(t, pool, "worker-1", "billing", time.Minute)
	exec1(t, pool, "INSERT INTO fencepost.marks (resource, token, raised_at) VALUES ('gone', 3, '2000-01-01')")
	args := []string{"marks", "retire", "--older-than", "1h", "--wait", "300ms", "--yes"}
	if r := fencectl(t, url, args...); r.code != opcmd.ExitPartial || !strings.Contains(r.errOut, "waiting for 1 lease") {
		t.Errorf("exit code %d, people are not told what it waits for:\n%s", r.code, r.errOut)
	}
	r := fencectl(t, url, append(args, "-o", "json")...)
	var said struct {
		Code    int
		Message string
	}
	if err := json.Unmarshal([]byte(r.errOut), &said); err != nil || said.Code != opcmd.ExitPartial || r.code != opcmd.ExitPartial || !strings.Contains(said.Message, "no mark was retired") {
		t.Errorf("%v, exit code %d:\n%s", err, r.code, r.errOut)
	}
}
