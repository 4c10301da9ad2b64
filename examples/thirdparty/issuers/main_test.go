package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/internal/suites/issuers/etcdnode"
)

func TestMain(m *testing.M) {
	etcdnode.Main()
	if role := os.Getenv(roleVariable); role != "" {
		if err := work(context.Background(), role); err != nil {
			os.Exit(1)
		}
		return
	}
	m.Run()
}

// TestStories: with each issuer the stale write is refused, without the fence it
// is not, and Redlock has two holders and a number that falls.
func TestStories(t *testing.T) {
	for name, args := range map[string][]string{
		"etcd": {"-issuer", "etcd"}, "zookeeper": {"-issuer", "zookeeper"}, "redis": {"-issuer", "redis"},
		"unfenced": {"-issuer", "redis", "-unfenced"}, "redlock": {"-issuer", "redlock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs strings.Builder
			if code := tell(args, &out, &errs); code != 0 {
				t.Errorf("exit status %d: %s", code, errs.String())
			}
			t.Log(out.String())
			want := map[string]string{"unfenced": "closed 2 times, last by worker a", "redlock": "4, 2"}[name]
			if want == "" {
				want = "closed 1 times, last by worker b"
			}
			if !strings.Contains(out.String(), want) {
				t.Errorf("the story does not say %q", want)
			}
		})
	}
	var out, errs strings.Builder
	if code := tell([]string{"-issuer", "chubby"}, &out, &errs); code == 0 || !strings.Contains(errs.String(), `"chubby"`) {
		t.Errorf("an unknown issuer: exit status %d, %s", code, errs.String())
	}
}
