package s3fence_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/guardtest"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

func TestStore(t *testing.T) {
	for name, deletes := range map[string]bool{"deleting": true, "emptying": false} {
		t.Run(name, func(t *testing.T) {
			server := newServer(t, nil)
			probed := open(t, server, &s3fence.Options{AtomicDelete: deletes})
			cases := 0
			handle := func(context.Context, guard.Store) (guard.Store, error) {
				return probed.Handle(newClient(server), fmt.Sprint("case-", cases)).Store(), nil
			}
			guardtest.Run(t, guardtest.Harness{
				New: func(ctx context.Context) (guard.Store, error) {
					cases++
					server.CreateBucket(fmt.Sprint("case-", cases))
					return handle(ctx, nil)
				},
				Replica: handle,
				Reopen:  handle,
			})
		})
	}
}

// Retiring between a newcomer's reading of the floor and its writing must not
// let it in: the case for which the blank object exists.
func TestP1RetireOvertakesFirstClaim(t *testing.T) {
	for _, held := range []struct {
		name    string
		skip    int // which PUT of the newcomer is held
		deletes bool
	}{
		{"before the blank, deleted", 0, true}, {"before the mark, deleted", 1, true},
		{"before the blank, emptied", 0, false}, {"before the mark, emptied", 1, false},
	} {
		t.Run(held.name, func(t *testing.T) {
			server := newServer(t, nil)
			opts := &s3fence.Options{AtomicDelete: held.deletes, InsecureSkipProbe: true}
			store := open(t, server, opts).Store()
			other := open(t, server, opts).Store()
			pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Skip: held.skip, Times: 1}, s3test.BeforeApply)
			verdict := make(chan error, 1)
			go func() {
				_, err := store.Admit(context.Background(), claim(50, "old"))
				verdict <- err
			}()
			request, err := pause.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.Admit(t.Context(), claim(100, "new")); err != nil {
				t.Fatal(err)
			}
			r, err := other.Retire(t.Context(), time.Now().Add(time.Hour))
			if err != nil || r.Count != 1 || r.Floor != 100 {
				t.Fatalf("Retire = %+v, %v", r, err)
			}
			request.Release()
			if err := <-verdict; !errors.Is(err, guard.ErrStale) {
				t.Errorf("token 50 after 100 was retired: %v, want stale", err)
			}
			if m, err := other.Mark(t.Context(), resource); err != nil || m != (guard.Mark{Token: 100, Floor: true}) {
				t.Errorf("the mark is %+v, %v", m, err)
			}
		})
	}
}
