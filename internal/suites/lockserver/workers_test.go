package lockserver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/guard/proof"
	"github.com/fencepost-go/fencepost/httpfence"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
	"github.com/fencepost-go/fencepost/sqlfence"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"
)

// wrote is a worker's report of one round.
type wrote struct {
	Token, LeaseID string
	Held           bool
	HTTP, SQL, S3  string
}

// worker is a program that holds a lease.
type worker struct {
	in  io.WriteCloser
	out *bufio.Reader
	cmd *exec.Cmd
}

func (w *worker) next(t *testing.T) (got wrote) {
	t.Helper()
	line, err := w.out.ReadString('\n')
	if err != nil || json.Unmarshal([]byte(line), &got) != nil {
		t.Fatalf("%v %s", err, line)
	}
	return got
}

// TestWorkers: a worker in Python and one in Node hold the same lease in turn,
// write to a service that verifies their proofs, a table and an object, and are refused by all three once
// the other has taken over. Go reads what they stored.
func TestWorkers(t *testing.T) {
	url, handler, pool, _ := serve(t)
	db, err := sqlfence.Pgx(pool, nil)
	testkit.Must(t, err)
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA billing; CREATE TABLE billing.closes (tenant text, period text, note text NOT NULL, PRIMARY KEY (tenant, period))`); err != nil {
		t.Fatal(err)
	}
	if err := sqladmin.Pgx(pool).InstallTrigger(t.Context(), sqladmin.Trigger{
		Table: []string{"billing", "closes"}, Resource: closes, Columns: map[string]string{"tenant": "tenant", "period": "period"},
	}); err != nil {
		t.Fatal(err)
	}
	resource := func(r *http.Request) (string, error) { return closes.Name("demo", r.PathValue("period")) }
	keys, err := proof.NewKeys(t.Context(), proof.Static(signingKey.Public()), nil)
	testkit.Must(t, err)
	verify := proof.NewVerifier(keys).Hook(func(*http.Request) (string, error) { return "demo", nil })
	fence, err := httpfence.New(db, resource, &httpfence.Options{Verify: verify})
	testkit.Must(t, err)
	service := http.NewServeMux()
	service.Handle("PUT /demo/closes/{period}", fence.Admit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	service.Handle("/", handler)
	web := httptest.NewServer(service)
	defer web.Close()
	store := s3test.New(t, nil)
	store.CreateBucket("bucket")
	format, err := filepath.Abs("../../../s3fence/testdata/fencepost_s3.py")
	testkit.Must(t, err)
	start := func(owner string, args ...string) *worker {
		path, err := exec.LookPath(args[0])
		if err != nil {
			t.Fatalf("this test needs %s, which .ci/setup servers installs: %v", args[0], err)
		}
		cmd := exec.CommandContext(t.Context(), path, args[1:]...)
		cmd.Stderr = os.Stderr
		cmd.Env = append(os.Environ(), "URL="+web.URL, "TOKEN=demo-worker", "RESOURCE=demo:billing-close:2026-04", "PERIOD=2026-04", "OWNER="+owner,
			"DATABASE_URL="+pool.Config().ConnString(), "S3_URL="+store.URL()+"/bucket/closes/2026-04", "FENCEPOST_S3="+format, "TTL=600", "PYTHONDONTWRITEBYTECODE=1")
		in, err := cmd.StdinPipe()
		testkit.Must(t, err)
		out, err := cmd.StdoutPipe()
		testkit.Must(t, err)
		testkit.Must(t, cmd.Start())
		return &worker{in, bufio.NewReader(out), cmd}
	}
	expect := func(what string, got wrote, word string) {
		t.Helper()
		if got.HTTP != word || got.SQL != word || got.S3 != word {
			t.Errorf("%s: %+v, want %s", what, got, word)
		}
	}
	programs := map[string][]string{
		"python": {"python3", "../../../examples/lockserver/workers/worker.py"},
		"node":   {"node", "../../../examples/lockserver/workers/worker.mjs"},
	}
	var last guard.Token
	for _, order := range [][2]string{{"python", "node"}, {"node", "python"}} {
		old := start(order[0], programs[order[0]]...)
		first := old.next(t)
		expect(order[0], first, "written")
		fmt.Fprintln(old.in, "second")
		expect(order[0]+" again", old.next(t), "written")
		// The lease is lost, as if it had expired during a pause.
		post(t, url, "demo-worker", "/v1/locks/release", fmt.Sprintf(`{"resource":"demo:billing-close:2026-04","leaseId":%q,"fencingToken":%q}`, first.LeaseID, first.Token))
		young := start(order[1], programs[order[1]]...)
		next := young.next(t)
		expect(order[1], next, "written")
		fmt.Fprintln(old.in, "late")
		expect(order[0]+" after its successor", old.next(t), "stale")
		fmt.Fprintln(young.in, "on")
		expect(order[1]+" goes on", young.next(t), "written")
		for _, w := range []*worker{old, young} {
			w.in.Close()
			testkit.Check(t, w.cmd.Wait())
		}
		older, newer := guard.Must(guard.ParseToken(first.Token)), guard.Must(guard.ParseToken(next.Token))
		if older <= last || newer <= older {
			t.Errorf("tokens %v, %v, %v", last, older, newer)
		}
		last = newer
		want := "on of " + order[1]
		var note string
		if err := pool.QueryRow(t.Context(), `SELECT note FROM billing.closes`).Scan(&note); err != nil || note != want {
			t.Errorf("the table has %q, %v", note, err)
		}
		if got := stored(t, store); got != want {
			t.Errorf("the object has %q", got)
		}
	}
}

// stored is what s3fence reads from the object.
func stored(t *testing.T, store *s3test.Server) string {
	t.Helper()
	bucket, err := s3fence.Open(t.Context(), store.Client(), "bucket", nil)
	testkit.Must(t, err)
	objects, err := bucket.Objects(s3fence.Sealed, &s3fence.ObjectsOptions{InsecureAnyResource: true})
	testkit.Must(t, err)
	got, err := objects.Get(t.Context(), "closes/2026-04")
	testkit.Must(t, err)
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	testkit.Must(t, err)
	return string(text)
}
