package etcd_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/faultproxy"
)

// TestRepeatedAcquireUnderALongerTTL: the lease keeps the TTL that it was granted
// with, and the answer says so: otherwise its holder would rely on it after the
// cluster had granted it to another.
func TestRepeatedAcquireUnderALongerTTL(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	i := issuer(t, addr)
	r := ask("r", "a")
	r.TTL = 5 * time.Second
	first, err := i.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.TTL = time.Hour
	again, err := i.Acquire(t.Context(), r)
	if err != nil || again.Token != first.Token {
		t.Fatalf("%+v, %v; want the same lease as %+v", again, err, first)
	}
	if again.TTL == 0 || again.TTL > 5*time.Second {
		t.Errorf("the lease of 5s is said to last %v (0 is what was asked, an hour)", again.TTL)
	}
}

// TestRaiseEpochBehindTheBase: the base was set by a process whose clock was
// ahead; RaiseEpoch raises it anyway.
func TestRaiseEpochBehindTheBase(t *testing.T) {
	addr, _ := startNode(t, t.TempDir())
	ahead := time.Now().Add(time.Hour).UnixMilli() << 20
	if _, err := connect(t, addr).Put(t.Context(), "fencepost/base", fmt.Sprint(ahead)); err != nil {
		t.Fatal(err)
	}
	before := acquire(t, issuer(t, addr), "r", "a")
	if _, err := issuer(t, addr).RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	const lost = 1 << 30 // revisions that the restore may have lost
	if after := acquire(t, issuer(t, addr), "other", "a"); after.Token < before.Token+lost {
		t.Errorf("token %v after %v and RaiseEpoch, which said that it raised them", after.Token, before.Token)
	}
}

// TestRestoreOfAFewRevisions: an issuer that keeps running during a restore that
// lost only the last few writes notices, and issues no token twice.
func TestRestoreOfAFewRevisions(t *testing.T) {
	dir := t.TempDir()
	data, backup := filepath.Join(dir, "data"), filepath.Join(dir, "backup")
	addr, stop := startNode(t, data)
	proxy, err := faultproxy.New("tcp", addr, nil) // one address for a server that comes back under another
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	i := issuer(t, proxy.Addr())
	for n := range 20 { // so that what is lost is a small part
		acquire(t, i, fmt.Sprint("before", n), "a")
	}
	stop()
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	addr, stop = startNode(t, data)
	proxy.Backend("tcp", addr)
	lost := acquire(t, i, "r", "a")
	stop()
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		t.Fatal(err)
	}
	addr, _ = startNode(t, data)
	proxy.Backend("tcp", addr)
	r := ask("r", "b")
	r.Timeout = time.Minute
	g, err := i.Acquire(t.Context(), r)
	if !errors.Is(err, guard.ErrMarkAhead) {
		t.Errorf("after %v was lost: %+v, %v; want ErrMarkAhead", lost.Token, g, err)
	}
	if _, err := i.RaiseEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := acquire(t, i, "r", "c"); next.Token <= lost.Token {
		t.Errorf("token %v after %v and RaiseEpoch", next.Token, lost.Token)
	}
}

// TestP3BaseOfARestoredSnapshot: a base is lost with a restored snapshot, and RaiseEpoch
// replaces it by another at the same revision. A process that has the lost one in memory
// grants nothing from it: it refuses, or grants above what others were granted since.
func TestP3BaseOfARestoredSnapshot(t *testing.T) {
	for name, above := range map[string]guard.Token{
		"raised above the lost one": 1 << 36,
		"raised below the lost one": 1 << 50,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			data, backup := filepath.Join(dir, "data"), filepath.Join(dir, "backup")
			addr, stop := startNode(t, data)
			proxy, err := faultproxy.New("tcp", addr, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Close)
			running := issuer(t, proxy.Addr())
			first := acquire(t, running, "r", "a")
			if _, err := running.Release(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			revision := func() int64 {
				resp, err := connect(t, addr).Get(t.Context(), "fencepost/base")
				if err != nil {
					t.Fatal(err)
				}
				return resp.Kvs[0].ModRevision
			}
			stop()
			if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
				t.Fatal(err)
			}
			addr, stop = startNode(t, data)
			proxy.Backend("tcp", addr)
			if _, err := issuer(t, addr).Advance(t.Context(), "other", first.Token+above); err != nil {
				t.Fatal(err)
			}
			lost := revision()
			if _, err := running.Release(t.Context(), acquire(t, running, "r", "b")); err != nil { // it learns the base
				t.Fatal(err)
			}
			stop()
			if err := errors.Join(os.RemoveAll(data), os.CopyFS(data, os.DirFS(backup))); err != nil {
				t.Fatal(err)
			}
			addr, _ = startNode(t, data)
			proxy.Backend("tcp", addr)
			fresh := issuer(t, addr)
			if _, err := fresh.RaiseEpoch(t.Context()); err != nil {
				t.Fatal(err)
			}
			if is := revision(); is != lost {
				t.Errorf("control: the base that was lost has revision %d, the other one %d", lost, is)
			}
			var last guard.Claim
			for range 3 { // so that the revision is above what the running process saw
				last = acquire(t, fresh, "r", "c")
				if _, err := fresh.Release(t.Context(), last); err != nil {
					t.Fatal(err)
				}
			}
			g, err := running.Acquire(t.Context(), ask("r", "d"))
			if err == nil && g.Token <= last.Token || err != nil && !errors.Is(err, guard.ErrMarkAhead) {
				t.Errorf("the running process: token %v after %v, %v", g.Token, last.Token, err)
			}
			if above > 1<<40 && err == nil {
				t.Errorf("the base went back, and the running process is granted token %v", g.Token)
			}
		})
	}
}
