package layout

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// tested lists what the module was tested with: a test in a directory proves
// each line.
var tested = []struct{ with, result, directory, test string }{
	{"PostgreSQL 13 to 18", "all of it", ".ci", "matrix"},
	{"PgBouncer 1.18, transaction pooling", "all of it, pgx in exec mode; waiters poll", "sqlfence", "TestPgBouncer"},
	{"PgBouncer 1.18, session pooling", "fenced", "sqlfence", "TestPgBouncerModes"},
	{"PgBouncer 1.18, statement pooling", "refused: fences need transactions", "sqlfence", "TestPgBouncerModes"},
	{"a pooler that keeps prepared statements (PgBouncer from 1.21 on, `max_prepared_statements`)", "fenced; after a column changed its type a process has one statement refused", "sqlfence", "TestOutdatedPlan"},
	{"PGlite", "refused: it has one session", "sqlfence", "TestPGlite"},
	{"logical replication", "subscribers' triggers let through what the publisher's have checked", "sqlfence", "TestSubscription"},
	{"a blue/green switch-over", "[`examples/adopt`](../examples/adopt)", "examples/adopt", "TestBlueGreen"},
	{"logins whose sessions take another role (`SET ROLE`, NOINHERIT, Vault's recipe)", "fenced; several logins of one role need `pg_read_all_stats` and `pg_signal_backend` to end each other's sessions", "sqlfence", "TestOtherLogin"},
	{"pgx, `database/sql`, sqlc, GORM, ent, Bun", "fenced", "examples/thirdparty/fits", "TestFits"},
	{"River 0.51", "`examples/thirdparty/river`", "examples/thirdparty/river", "TestRiver"},
	{"nginx 1.22, HAProxy 2.6", "a replay may write twice: `httpfence/PROXIES.md`", "internal/suites/http", "TestReplays"},
	{"[chi, echo, gin, fiber, huma, Go kit](../examples/thirdparty/frameworks)", "fenced", "examples/thirdparty/frameworks", "TestFrameworks"},
	{"[Connect, grpc-go, grpc-gateway](../examples/thirdparty/rpc)", "fenced", "examples/thirdparty/rpc", "TestGateway"},
	{"client-go 0.37, its leader election on its fake clientset", "`examples/thirdparty/kubernetes`", "examples/thirdparty/kubernetes", "TestKubernetes"},
	{"Python 3 and Node 20, standard libraries", "workers by HTTP, SQL and S3", "internal/suites/lockserver", "TestWorkers"},
	{"Python 3, WSGI", "a service by `httpfence/FORMAT.md`, with Go's client", "internal/suites/http", "TestGoClientOfPython"},
	{"psycopg2 2.9, psql", "a worker by `sqlfence/SQL.md`", "internal/suites/sql", "TestPythonWorker"},
	{"versitygw 1.8, MinIO", "accepted", "internal/suites/s3", "TestRace"},
	{"versitygw 1.7, rclone, gofakes3", "refused: they break conditional writes", "internal/suites/s3", "TestProbe"},
	{"versitygw 1.8 with versioning", "refused: it does not compare with a delete marker", "internal/suites/s3", "TestStoresAndRefusals"},
	{"any store that refuses every `If-Match`, or takes it only without the quotes of its ETags", "refused, and the error says so", "s3fence", "TestProbeNamesTheQuotes"},
	{"Squid 5.7, nginx 1.22, HAProxy 2.6 before S3", "accepted; what caches or unpacks is refused, and so is Varnish 7.1", "internal/suites/s3", "TestBoxesInBetween"},
	{"Amazon S3 itself", "not tried here: what it documents is relied on", "s3fence", "TestAmazonIsKnown"},
	{"etcd 3.7", "`lockclient/etcdlock`", "internal/suites/issuers/etcd", "TestConformance"},
	{"ZooKeeper 3.8", "`lockclient/zklock`", "internal/suites/issuers/zk", "TestConformance"},
	{"Redis 7.0, Sentinel", "`lockclient/redislock`", "internal/suites/issuers/redis", "TestConformance"},
}

// testedPage has the table of the list above.
const testedPage = ".github/TESTED.md"

// The page is made from the list above:
//
//	FENCEPOST_UPDATE=1 go test -run TestTestedPage ./internal/layout
func TestTestedPage(t *testing.T) {
	table := "| with | result |\n|---|---|\n"
	for _, row := range tested {
		table += fmt.Sprintf("| %s | %s |\n", row.with, row.result)
		if err := checkTested(filepath.Join(root(t), row.directory), row.test); err != nil {
			t.Error(err)
		}
	}
	page := readPage(t, testedPage)
	between := regexp.MustCompile(`(?s)(<!-- tested -->\n).*(<!-- end -->)`)
	want := between.ReplaceAllString(page, "${1}\n"+table+"\n${2}")
	if want == page && strings.Contains(page, table) {
		return
	}
	if os.Getenv("FENCEPOST_UPDATE") == "" {
		t.Error(testedPage + " does not have the table of what was tested; FENCEPOST_UPDATE=1 writes it")
	} else if err := os.WriteFile(filepath.Join(root(t), testedPage), []byte(want), 0o644); err != nil {
		t.Error(err)
	}
}

// The check must be able to fail.
func TestTestedPageControl(t *testing.T) {
	if checkTested(filepath.Join(root(t), "sqlfence"), "TestNobodyWroteThis") == nil {
		t.Error("a test that does not exist was not noticed")
	}
}

// checkTested reports whether a directory has a test or a file of that name.
func checkTested(dir, test string) error {
	if _, err := os.Stat(filepath.Join(dir, test)); err == nil {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && strings.Contains(string(b), "\nfunc "+test+"(") {
			return nil
		}
	}
	return fmt.Errorf("%s has no %s", dir, test)
}
