package s3fence_test

import (
	"io"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
)

// Data that is not what the pointer says is found out while it is read, or at
// once if it is gone.
func TestDamagedData(t *testing.T) {
	for name, change := range map[string]func(body []byte) []byte{
		"altered": func(b []byte) []byte { b[3] ^= 1; return b },
		"cut":     func(b []byte) []byte { return b[:len(b)-1] },
		"longer":  func(b []byte) []byte { return append(b, 'x') },
		"emptied": func([]byte) []byte { return nil },
		"gone":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			server, b, o := setup(t, s3fence.Pointer, 0)
			put(t, o, claim(5, "a"), "the body of the object")
			data := dataKeys(server)[0]
			if change == nil {
				// As somebody with a broom would.
				if err := b.RemoveForTest(t.Context(), data); err != nil {
					t.Fatal(err)
				}
			} else {
				bypass(t, server, data, change([]byte("the body of the object")), nil)
			}
			object, err := o.Get(t.Context(), key)
			if err == nil {
				_, err = io.ReadAll(object.Body)
				object.Body.Close()
				if !strings.Contains(err.Error(), "its data") {
					t.Errorf("reading: %v", err)
				}
				return
			}
			damage(t, err)
			// The mark is whole, and a writer can put things right.
			put(t, o, claim(5, "a"), "again")
			want(t, o, "again", guard.Mark{Token: 5, LeaseID: "a"})
		})
	}
}

// Objects of one mode are not touched by the others.
func TestModesDoNotMix(t *testing.T) {
	for _, wrote := range allModes {
		for _, mode := range allModes {
			if mode == wrote {
				continue
			}
			t.Run(wrote.String()+" by "+mode.String(), func(t *testing.T) {
				server, b, _ := setup(t, s3fence.Plain, 0) // all are possible here
				put(t, objects(t, b, wrote, nil), claim(5, "a"), "body")
				o := objects(t, b, mode, nil)
				for call, err := range everyCall(t, server, o) {
					if guard.ReasonOf(err) != guard.ReasonInvalid || !strings.Contains(err.Error(), wrote.String()) {
						t.Errorf("%s: %v", call, err)
					}
				}
				// A tombstone is every mode's.
				if err := objects(t, b, wrote, nil).Delete(t.Context(), claim(6, "a"), key); err != nil {
					t.Fatal(err)
				}
				refused(t, o.Put(t.Context(), claim(5, "a"), key, nil, nil), guard.ReasonStale)
				put(t, o, claim(6, "a"), "reborn")
				want(t, o, "reborn", guard.Mark{Token: 6, LeaseID: "a"})
			})
		}
	}
}
