package main

import (
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/pgtest"
	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
)

func TestMain(m *testing.M) {
	etcdnode.Main()
	m.Run()
}

// TestStories: with each issuer the stale write is refused, without the fence it is not.
func TestStories(t *testing.T) {
	t.Setenv("FENCEPOST_DATABASE_URL", pgtest.Database(t)) // else run starts a server of its own
	for _, c := range []struct {
		issuer string
		fenced bool
		want   string
	}{
		{"etcd", true, "closed 1 times, last by worker b"},
		{"zookeeper", true, "closed 1 times, last by worker b"},
		{"redis", true, "closed 1 times, last by worker b"},
		{"redis", false, "closed 2 times, last by worker a"},
	} {
		var out strings.Builder
		if err := run(t.Context(), c.issuer, c.fenced, &out); err != nil || !strings.Contains(out.String(), c.want) {
			t.Errorf("%+v: %v\n%s", c, err, &out)
		}
	}
	if err := run(t.Context(), "chubby", true, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), `"chubby"`) {
		t.Errorf("an unknown issuer: %v", err)
	}
}
