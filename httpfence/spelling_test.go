package httpfence

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/guard"
)

// TestOneRowOneKey: token 11 was admitted for account 7; no other spelling of 7
// may let a request under 10 through. Without Integer, which is the control,
// the first of them does.
func TestOneRowOneKey(t *testing.T) {
	stale := func(t *testing.T, resource ResourceFunc, spelling string) (status int, wrote bool) {
		fence := New(guard.NewMemory(nil), resource, nil)
		router := chi.NewRouter()
		router.With(fence.Admit).Post("/accounts/{id}/close", func(w http.ResponseWriter, r *http.Request) {
			// As PostgreSQL reads the text of a bigint.
			n, err := strconv.ParseInt(strings.TrimSpace(chi.URLParam(r, "id")), 10, 64)
			wrote = err == nil && n == 7
		})
		post := func(id, token string) int {
			r := httptest.NewRequest("POST", "/accounts/"+id+"/close", nil)
			r.Header.Set(TokenHeader, token)
			w := httptest.NewRecorder()
			router.ServeHTTP(w, r)
			return w.Code
		}
		if status := post("7", "11"); status != 200 || !wrote {
			t.Fatalf("the plain spelling: %d, wrote %v", status, wrote)
		}
		wrote = false
		return post(spelling, "10"), wrote
	}
	for _, spelling := range []string{"07", "+7", "007", "%2B7", "7%20", "%207", "%0a7"} {
		if status, wrote := stale(t, Integer(ChiParam("id")), spelling); wrote || status != 400 {
			t.Errorf("%q under a stale token: %d, wrote %v", spelling, status, wrote)
		}
	}
	if status, wrote := stale(t, Integer(ChiParam("id")), "7"); wrote || status != 412 {
		t.Errorf("the plain spelling under a stale token: %d, wrote %v", status, wrote)
	}
	if status, wrote := stale(t, ChiParam("id"), "07"); !wrote || status != 200 {
		t.Errorf("the control stood by itself: %d, wrote %v", status, wrote)
	}
}

// TestSpellingOfIntegers: what is accepted is what strconv writes, and nothing
// else that it reads.
func TestSpellingOfIntegers(t *testing.T) {
	accepts := func(s string) bool {
		got, err := Integer(func(*http.Request) (string, error) { return s, nil })(nil)
		if err != nil && (!errors.Is(err, guard.ErrInvalid) || got != "") || err == nil && got != s {
			t.Errorf("%q: %q, %v", s, got, err)
		}
		return err == nil
	}
	const alphabet = "0123456789+- _x\u0663"
	random := rand.New(rand.NewPCG(1, 2))
	numbers := 0
	for range 200_000 {
		var b strings.Builder
		for range random.IntN(6) {
			b.WriteByte(alphabet[random.IntN(len(alphabet))])
		}
		s := b.String()
		n, err := strconv.ParseInt(s, 10, 64)
		canonical := err == nil && strconv.FormatInt(n, 10) == s
		if accepts(s) != canonical {
			t.Fatalf("%q: accepted %v, canonical %v", s, !canonical, canonical)
		}
		if canonical {
			numbers++
		}
	}
	if numbers < 1000 {
		t.Errorf("only %d numbers were tried", numbers)
	}
	for s, want := range map[string]bool{
		"9223372036854775807": true, "-9223372036854775808": true, "18446744073709551616": true, // numeric has no end
		"": false, "-": false, "-0": false, "1e3": false, "0x7": false, "1.0": false, "1_000": false, "\u0667": false,
	} {
		if accepts(s) != want {
			t.Errorf("%q: accepted %v", s, !want)
		}
	}
}

func TestSpellingOfUUIDs(t *testing.T) {
	const id = "01970e2c-6a41-7abc-9def-0123456789ab"
	for s, want := range map[string]string{
		id: id, strings.ToUpper(id): id, "01970E2c-6a41-7abc-9DEF-0123456789aB": id,
		"{" + id + "}": "", "urn:uuid:" + id: "", strings.ReplaceAll(id, "-", ""): "", id + " ": "", id[1:]: "", "": "",
		"01970e2c6-a41-7abc-9def-0123456789ab": "", "01970e2c-6a41-7abc-9def-0123456789ag": "", "01970e2c-6a41-7abc-9def-0123456789a-": "",
		"--------------------" + id[20:]: "",
	} {
		got, err := UUID(func(*http.Request) (string, error) { return s, nil })(nil)
		if got != want || (want == "") != errors.Is(err, guard.ErrInvalid) {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
}

// The part's own error comes through, for its status.
func TestSpellingKeepsTheError(t *testing.T) {
	part := func(*http.Request) (string, error) { return "7", guard.ErrNotFound }
	for name, f := range map[string]ResourceFunc{"Integer": Integer(part), "UUID": UUID(part)} {
		if _, err := f(nil); !errors.Is(err, guard.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, f := range map[string]func(ResourceFunc) ResourceFunc{"Integer": Integer, "UUID": UUID} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s(nil) does not panic", name)
				}
			}()
			f(nil)
		}()
	}
}
