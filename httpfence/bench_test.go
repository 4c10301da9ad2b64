package httpfence

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// discard is a ResponseWriter that costs nothing, so that what is measured is
// the route and the guard.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// guarded builds the three handlers that are compared. Each is on a chi route
// with one parameter.
var guarded = map[string]func(fence *Middleware, next http.HandlerFunc) http.Handler{
	"bare": func(_ *Middleware, next http.HandlerFunc) http.Handler { return next },
	"check": func(fence *Middleware, next http.HandlerFunc) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := fence.Check(r); err != nil {
				fence.Reject(w, r, err)
				return
			}
			next(w, r)
		})
	},
	"admit": func(fence *Middleware, next http.HandlerFunc) http.Handler { return fence.Admit(next) },
}

func benchmark(b *testing.B, kind string) {
	for _, resources := range []int{1, 100_000} {
		b.Run(fmt.Sprintf("resources=%d", resources), func(b *testing.B) {
			store := guard.NewMemory(nil)
			paths := make([]string, resources)
			for i := range paths {
				id := fmt.Sprintf("acct-%06d", i)
				paths[i] = "/acct/" + id + "/close"
				if _, err := store.Admit(b.Context(), guard.Claim{Resource: id, Token: 5, LeaseID: "b"}); err != nil {
					b.Fatal(err)
				}
			}
			handled := 0
			router := chi.NewRouter()
			router.Method("POST", "/acct/{id}/close", guarded[kind](New(store, ChiParam("id"), nil), func(http.ResponseWriter, *http.Request) { handled++ }))
			r := newRequest("", "5", "b")
			w := &discard{h: http.Header{}}
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				r.URL.Path = paths[n%resources]
				n++
				router.ServeHTTP(w, r)
			}
			if handled != n {
				b.Fatalf("%d of %d requests were handled", handled, n)
			}
		})
	}
}

// BenchmarkBare is the floor: the chi route and an empty handler.
func BenchmarkBare(b *testing.B) { benchmark(b, "bare") }

// BenchmarkCheck is BenchmarkBare with Check in the handler.
func BenchmarkCheck(b *testing.B) { benchmark(b, "check") }

// BenchmarkAdmit is BenchmarkBare behind Admit, with a token that is the mark.
func BenchmarkAdmit(b *testing.B) { benchmark(b, "admit") }

// TestAllocations holds the promise of the documentation: a Check that succeeds
// allocates nothing, Admit a context and a request.
func TestAllocations(t *testing.T) {
	const runs = 200
	store := guard.NewMemory(nil)
	claim := guard.Claim{Resource: "acme", Token: 5, LeaseID: "b"}
	if _, err := store.Admit(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	var perCheck, perJoined, perAdmit, perPathValue float64
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	router := chi.NewRouter()
	router.Post("/acct/{id}/close", func(w http.ResponseWriter, r *http.Request) {
		count := func(resource ResourceFunc) float64 {
			fence := New(store, resource, nil)
			return testing.AllocsPerRun(runs, func() {
				if c, err := fence.Check(r); err != nil || c != claim {
					t.Errorf("%+v, %v", c, err)
				}
			})
		}
		perCheck, perJoined, perPathValue = count(ChiParam("id")), count(Join(ChiParam("id"))), count(PathValue("id"))
		admit := New(store, ChiParam("id"), nil).Admit(next)
		perAdmit = testing.AllocsPerRun(runs, func() { admit.ServeHTTP(w, r) })
	})
	r := newRequest("acct/acme/close", "5", "b")
	router.ServeHTTP(&discard{h: http.Header{}}, r)
	if perCheck != 0 || perJoined != 0 || perPathValue != 0 {
		t.Errorf("Check allocates: ChiParam %v, Join of one %v, PathValue %v", perCheck, perJoined, perPathValue)
	}
	if perAdmit > 3 || perAdmit == 0 {
		t.Errorf("Admit allocates %v times", perAdmit)
	}
}
