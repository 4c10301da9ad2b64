package s3fence_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// The vectors of FORMAT.md. internal/suites/s3/format has the tests of a reader and
// writer in Python that was made from that page.
func TestFormatVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/vectors.json")
	must(t, err)
	var vectors []struct {
		Name, Key, Damaged, Resource string
		Object, Body, Content        []byte
		Metadata                     map[string]string
		State                        struct {
			Kind, Lease string
			Token       int64
		}
		Data *struct {
			Key    string
			Object []byte
		}
	}
	must(t, json.Unmarshal(text, &vectors))
	if len(vectors) < 70 {
		t.Errorf("%d vectors", len(vectors))
	}
	modes := map[string]s3fence.Mode{
		"sealed": s3fence.Sealed, "gzip": s3fence.SealedGzip, "plain": s3fence.Plain, "pointer": s3fence.Pointer,
		"tombstone": s3fence.Sealed, "unfenced": s3fence.Sealed,
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			server := newServer(t, &s3test.Options{ETags: s3test.ETagOpaque})
			bypass(t, server, v.Key, v.Object, v.Metadata)
			if v.Data != nil {
				bypass(t, server, v.Data.Key, v.Data.Object, nil)
			}
			b := open(t, server, nil)
			b.SetOpaque(true)
			o := objects(t, b, modes[v.State.Kind], nil)
			mark, err := o.Mark(t.Context(), v.Key)
			if v.Damaged != "" {
				// What only the body shows is seen only by those who read it.
				if err == nil {
					_, err = o.Get(t.Context(), v.Key)
				}
				t.Logf("%v", damage(t, err))
				return
			}
			if v.State.Kind == "unfenced" {
				refused(t, err, guard.ReasonUnfenced)
				return
			}
			if want := (guard.Mark{Token: guard.Token(v.State.Token), LeaseID: v.State.Lease}); err != nil || mark != want {
				t.Fatalf("the mark is %+v, %v; want %+v", mark, err, want)
			}
			if v.State.Kind == "tombstone" {
				_, err := o.Get(t.Context(), v.Key)
				refused(t, err, guard.ReasonNotFound)
				return
			}
			want := v.Body
			if v.Data != nil {
				want = v.Data.Object
			} else if v.State.Kind == "gzip" {
				want = v.Content
			}
			if got, _ := content(t, o, v.Key); got != string(want) {
				t.Errorf("the content is %.40q, want %.40q", got, want)
			}
		})
	}
}
