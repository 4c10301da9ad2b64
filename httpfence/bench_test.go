package httpfence

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
)

// discard is a ResponseWriter that costs nothing, so that only the route and
// the guard are measured.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// bench is a chi route with one parameter for each way to guard it, the same
// resources and the same request.
type bench struct {
	b       *testing.B
	fence   *Middleware
	paths   string // all of one length, one after the other: no pointers to follow
	length  int    // of one
	r       *http.Request
	w       *discard
	named   []string // the value of ResourceHeader
	handled int
	next    int
}

func newBench(b *testing.B, resources int, token string) *bench {
	store := guard.NewMemory()
	x := &bench{b: b, fence: guard.Must(New(store, ChiParam("id"), nil)), r: newRequest("", token, "b"), w: &discard{h: http.Header{}}}
	var paths strings.Builder
	for i := range resources {
		id := fmt.Sprintf("acct-%06d", i)
		paths.WriteString("/acct/" + id + "/close")
		if _, err := store.Admit(b.Context(), guard.Claim{Resource: id, Token: 5, LeaseID: "b"}); err != nil {
			b.Fatal(err)
		}
	}
	x.named = []string{""}
	x.r.Header[ResourceHeader] = x.named
	x.paths, x.length = paths.String(), paths.Len()/resources
	return x
}

func (x *bench) route(guarded func(http.HandlerFunc) http.Handler) http.Handler {
	router := chi.NewRouter()
	router.Method("POST", "/acct/{id}/close", guarded(func(http.ResponseWriter, *http.Request) {
		x.handled++
	}))
	return router
}

func (x *bench) bare(next http.HandlerFunc) http.Handler { return next }

func (x *bench) check(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := x.fence.Check(r); err != nil {
			x.fence.Reject(w, r, err)
			return
		}
		next(w, r)
	})
}

func (x *bench) admit(next http.HandlerFunc) http.Handler { return x.fence.Admit(next) }

// run sends n requests to the resources in turn.
func (x *bench) run(h http.Handler, n int) {
	for range n {
		x.r.URL.Path = x.paths[x.next : x.next+x.length]
		x.named[0] = x.paths[x.next+len("/acct/") : x.next+x.length-len("/close")]
		if x.next += x.length; x.next == len(x.paths) {
			x.next = 0
		}
		clear(x.w.h)
		h.ServeHTTP(x.w, x.r)
	}
}

// compare runs a and b in turn in blocks too small for the machine to change
// much between them, and returns the time per request of each block.
func (x *bench) compare(a, b http.Handler) (of [2][]float64) {
	const block = 500
	for i := 0; x.b.Loop(); i++ {
		for j, h := range [2]http.Handler{a, b} {
			if i%2 == 1 { // neither always runs second
				j = 1 - j
				h = [2]http.Handler{a, b}[j]
			}
			start := time.Now()
			x.run(h, block)
			of[j] = append(of[j], float64(time.Since(start).Nanoseconds())/block)
		}
	}
	for j := range of {
		slices.Sort(of[j])
	}
	return of
}

func median(sorted []float64) float64 { return sorted[len(sorted)/2] }

// BenchmarkOverhead reports what Check and Admit cost over the bare route: the
// difference of the fastest blocks and of the medians.
func BenchmarkOverhead(b *testing.B) {
	for _, resources := range []int{1, 100_000} {
		for _, name := range []string{"check", "admit"} {
			b.Run(fmt.Sprintf("%s/resources=%d", name, resources), func(b *testing.B) {
				x := newBench(b, resources, "5")
				guarded := map[string]func(http.HandlerFunc) http.Handler{"check": x.check, "admit": x.admit}[name]
				of := x.compare(x.route(x.bare), x.route(guarded))
				b.ReportMetric(0, "ns/op") // of two blocks: means nothing
				b.ReportMetric(of[0][0], "ns/bare-min")
				b.ReportMetric(of[1][0]-of[0][0], "ns/"+name+"-min")
				b.ReportMetric(median(of[1])-median(of[0]), "ns/"+name+"-median")
				if x.handled == 0 || len(x.w.h) != 0 {
					b.Fatalf("%d handled, header %v", x.handled, x.w.h)
				}
			})
		}
	}
}

// BenchmarkProof compares Admit with Admit that verifies a proof which it has
// verified before: the ratio of their rates.
func BenchmarkProof(b *testing.B) {
	x := newBench(b, 1, "5")
	key := proof.NewPrivateKey()
	keys := guard.Must(proof.NewKeys(b.Context(), proof.Static(key.Public()), nil))
	verify := proof.NewVerifier(keys).Hook(func(*http.Request) (string, error) { return "bench", nil })
	claim := guard.Claim{Resource: "acct-000000", Token: 5, LeaseID: "b"}
	x.r.Header.Set(proof.Header, guard.Must(guard.Must(proof.NewSigner(key, nil)).Sign(claim, "bench", time.Now().Add(time.Hour))))
	verified := guard.Must(New(x.fence.store, ChiParam("id"), &Options{Verify: verify}))
	of := x.compare(x.route(x.admit), x.route(func(next http.HandlerFunc) http.Handler { return verified.Admit(next) }))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(of[0]), "ns/admit")
	b.ReportMetric(median(of[1]), "ns/proved")
	b.ReportMetric(of[0][0]/of[1][0], "admit/proved-min")
	b.ReportMetric(median(of[0])/median(of[1]), "admit/proved")
}

// TestAllocations holds the promise of the documentation: a Check that succeeds
// allocates nothing, Admit a context and a request.
func TestAllocations(t *testing.T) {
	const runs = 200
	store := guard.NewMemory()
	claim := guard.Claim{Resource: "acme", Token: 5, LeaseID: "b"}
	if _, err := store.Admit(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	told := 0
	observer := guard.ObserverFunc(func(context.Context, guard.Event) { told++ })
	var perCheck, perObserved, perAdmit, perPathValue float64
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	router := chi.NewRouter()
	router.Post("/acct/{id}/close", func(w http.ResponseWriter, r *http.Request) {
		count := func(resource ResourceFunc, opts *Options) float64 {
			fence := guard.Must(New(store, resource, opts))
			return testing.AllocsPerRun(runs, func() {
				if c, err := fence.Check(r); err != nil || c != claim {
					t.Errorf("%+v, %v", c, err)
				}
			})
		}
		perCheck, perPathValue = count(ChiParam("id"), nil), count(PathValue("id"), nil)
		perObserved = count(ChiParam("id"), &Options{Observer: observer})
		admit := newFence(store, ChiParam("id"), nil).Admit(next)
		perAdmit = testing.AllocsPerRun(runs, func() { admit.ServeHTTP(w, r) })
	})
	r := newRequest("acct/acme/close", "5", "b")
	r.Header.Set(ResourceHeader, "acme")
	router.ServeHTTP(&discard{h: http.Header{}}, r)
	if perCheck != 0 || perPathValue != 0 || perObserved != 0 || told == 0 {
		t.Errorf("Check allocates: ChiParam %v, PathValue %v, with an observer %v, which was told %d times", perCheck, perPathValue, perObserved, told)
	}
	if perAdmit > 3 || perAdmit == 0 {
		t.Errorf("Admit allocates %v times", perAdmit)
	}
}
