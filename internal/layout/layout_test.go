// Package layout holds the tests of the module's shape: which package may
// import which, what the module may depend on, what may be at its top level.
package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/fencepost-go/fencepost"

// allowed lists what the packages of this module may import besides the
// standard library: this module's packages by path below it, others by module
// path. A package that is not listed must not exist.
var allowed = map[string][]string{
	"guard":                          {},
	"guard/guardtest":                {"guard"},
	"guard/proof":                    {"guard"},
	"httpfence":                      {"guard", "guard/proof", "github.com/go-chi/chi/v5"},
	"sqlfence":                       {"guard", "sqlfence/internal/sqlkit", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"sqlfence/internal/scratch":      {"internal/pgtest", "github.com/jackc/pgx/v5"},
	"sqlfence/internal/sqlkit":       {"guard", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"sqlfence/sqladmin":              {"guard", "sqlfence/sqlrow", "sqlfence/internal/sqlkit", "internal/migrate", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"sqlfence/sqlrow":                {"guard", "sqlfence/internal/sqlkit", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"sqlfence/sqltest":               {"internal/pgtest", "sqlfence/sqladmin", "github.com/jackc/pgx/v5"},
	"lockclient":                     {"guard", "lockclient/driver", "lockclient/internal/inflight", "lockclient/internal/input", "lockclient/internal/pause", "lockclient/internal/report", "lockclient/internal/waiting"},
	"lockclient/driver":              {"guard"},
	"lockclient/driver/drivertest":   {"guard", "lockclient/driver", "internal/faultproxy"},
	"lockclient/driver/memory":       {"guard", "lockclient/driver"},
	"lockclient/lockadmin":           {"guard", "lockclient/internal/input", "lockclient/internal/wire"},
	"lockclient/lockadmin/admintest": {"guard", "lockclient/driver", "lockclient/lockadmin"},
	"lockclient/lockadmin/pgadmin":   {"guard", "lockclient", "lockclient/pglock", "lockclient/driver", "lockclient/lockadmin", "lockclient/internal/input", "lockclient/internal/pattern", "lockclient/internal/pause", "lockclient/internal/pglease", "lockclient/internal/report", "sqlfence/sqladmin", "internal/migrate", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"lockclient/lockhttp":            {"guard", "lockclient/driver", "lockclient/lockadmin", "lockclient/internal/inflight", "lockclient/internal/input", "lockclient/internal/pattern", "lockclient/internal/pause", "lockclient/internal/report", "lockclient/internal/waiting", "lockclient/internal/wire", "github.com/go-chi/chi/v5"},
	"lockclient/internal/leasetest":  {"guard", "internal/faultproxy", "internal/migrate", "internal/pgtest", "internal/testkit", "lockclient/driver", "lockclient/internal/pglease", "github.com/jackc/pgx/v5"},
	"lockclient/internal/inflight":   {},
	"lockclient/internal/input":      {"guard"},
	"lockclient/internal/pause":      {},
	"lockclient/internal/pglease":    {"guard", "lockclient/driver", "lockclient/internal/input", "lockclient/internal/pause", "lockclient/internal/report", "internal/migrate", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"lockclient/internal/pattern":    {"guard", "lockclient/internal/input"},
	"lockclient/internal/wire":       {"guard"},
	"lockclient/internal/sequence":   {"guard", "lockclient/driver", "lockclient/lockadmin", "lockclient/internal/input", "lockclient/internal/pattern"},
	"lockclient/internal/report":     {},
	"lockclient/internal/waiting":    {"lockclient/driver", "lockclient/internal/pause"},
	"lockclient/pglock":              {"guard", "lockclient/driver", "lockclient/internal/input", "lockclient/internal/pause", "lockclient/internal/pglease", "internal/migrate", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"lockclient/redislock":           {"guard", "lockclient/driver", "lockclient/lockadmin", "lockclient/internal/input", "lockclient/internal/pattern"},
	"lockclient/locktest":            {"guard", "lockclient", "lockclient/driver/memory"},
	"internal/migrate":               {"guard", "internal/pgerr", "github.com/jackc/pgx/v5"},
	"internal/faultproxy":            {},
	"internal/process":               {},
	"internal/pgerr":                 {"guard", "github.com/jackc/pgx/v5"},
	"internal/pgtest":                {"internal/faultproxy", "internal/process", "internal/testkit", "github.com/jackc/pgx/v5"},
	"internal/layout":                {},
	"internal/longtest":              {},
	"internal/testkit":               {},
	"s3fence/s3test":                 {"github.com/aws/aws-sdk-go-v2"},
	"s3fence/internal/s3probe":       {},
	"s3fence":                        {"guard", "s3fence/internal/s3probe", "github.com/aws/aws-sdk-go-v2", "github.com/aws/smithy-go/middleware"},
	"examples/billingclose":          {"guard", "httpfence", "sqlfence", "sqlfence/sqladmin", "sqlfence/sqlrow", "s3fence", "lockclient", "lockclient/pglock", "internal/pgtest", "s3fence/s3test", "github.com/aws/aws-sdk-go-v2", "github.com/go-chi/chi/v5", "github.com/jackc/pgx/v5"},
	"examples/adopt":                 {"guard", "lockclient", "lockclient/pglock", "sqlfence", "sqlfence/sqladmin", "examples/internal/demo", "github.com/jackc/pgx/v5"},
	"examples/internal/demo":         {"internal/pgtest", "github.com/jackc/pgx/v5"},
	"examples/backfill":              {"guard", "lockclient", "lockclient/lockadmin/pgadmin", "lockclient/pglock", "sqlfence", "examples/internal/demo", "github.com/jackc/pgx/v5"},
	"examples/effects":               {"guard", "httpfence", "sqlfence", "sqlfence/sqladmin", "examples/internal/demo", "github.com/jackc/pgx/v5"},
	"examples/jobtable":              {"guard", "sqlfence", "sqlfence/sqladmin", "sqlfence/sqlrow", "examples/internal/demo", "github.com/jackc/pgx/v5"},
	"examples/lockserver":            {"guard", "guard/proof", "httpfence", "lockclient", "lockclient/pglock", "lockclient/driver", "lockclient/lockadmin/pgadmin", "lockclient/lockhttp", "sqlfence", "examples/internal/demo", "github.com/go-chi/chi/v5", "github.com/jackc/pgx/v5"},
	"examples/service":               {"guard", "httpfence", "sqlfence", "sqlfence/sqladmin", "examples/internal/demo", "github.com/go-chi/chi/v5", "github.com/jackc/pgx/v5"},
	"examples/quickstart":            {"guard", "httpfence", "lockclient", "lockclient/pglock", "lockclient/lockadmin/pgadmin", "sqlfence", "github.com/jackc/pgx/v5"},
}

// direct is what the root module may require itself. aws-sdk-go-v2 is the S3
// client's own core: its types are in the client's signatures.
var direct = []string{
	"github.com/DATA-DOG/go-sqlmock",
	"github.com/aws/aws-sdk-go-v2",
	"github.com/aws/aws-sdk-go-v2/service/s3",
	"github.com/aws/smithy-go", // the SDK's own core, whose types its options have
	"github.com/go-chi/chi/v5",
	"github.com/jackc/pgx/v5",
}

// top lists what may be at the top level of the repository, besides dot files.
var top = []string{"README.md", "examples", "go.mod", "go.sum", "guard", "httpfence", "internal", "lockclient", "s3fence", "sqlfence"}

func TestImportEdges(t *testing.T) {
	seen := 0
	for _, p := range listed(t) {
		if !p.ours() {
			continue
		}
		seen++
		if err := checkEdges(p, allowed); err != nil {
			t.Error(err)
		}
	}
	if seen < len(allowed) {
		t.Errorf("%d packages were found, %d are listed: the list is out of date or the search is broken", seen, len(allowed))
	}
}

// The check must be able to fail.
func TestImportEdgesControl(t *testing.T) {
	for name, p := range map[string]listedPackage{
		"a fence imports another":  {ImportPath: module + "/httpfence", Imports: []string{module + "/sqlfence"}},
		"a fence imports the lock": {ImportPath: module + "/sqlfence", Imports: []string{module + "/lockclient"}},
		"guard imports a module":   {ImportPath: module + "/guard", Imports: []string{"github.com/jackc/pgx/v5"}},
		"look-alike module":        {ImportPath: module + "/sqlfence", Imports: []string{"github.com/jackc/pgx/v55"}},
		"an unlisted package":      {ImportPath: module + "/util"},
	} {
		if checkEdges(p, allowed) == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

func checkEdges(p listedPackage, allowed map[string][]string) error {
	name := strings.TrimPrefix(p.ImportPath, module+"/")
	may, listed := allowed[name]
	if !listed {
		return fmt.Errorf("package %s is not listed in this test", name)
	}
	for _, path := range p.Imports {
		if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
			continue // the standard library
		}
		local, ours := strings.CutPrefix(path, module+"/")
		ok := slices.ContainsFunc(may, func(m string) bool {
			return ours && local == m || !ours && (path == m || strings.HasPrefix(path, m+"/"))
		})
		if !ok {
			return fmt.Errorf("package %s may not import %s", name, path)
		}
	}
	return nil
}

func TestDirectDependencies(t *testing.T) {
	out := run(t, "go", "mod", "edit", "-json")
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	if len(mod.Require) == 0 {
		t.Fatal("go.mod requires nothing: the check is broken")
	}
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains(direct, r.Path) {
			t.Errorf("go.mod requires %s directly; heavy or test-only dependencies belong into a nested module", r.Path)
		}
	}
}

func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(top, e.Name()) {
			t.Errorf("%s does not belong at the top of the repository", e.Name())
		}
	}
}

func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%s: %v: %s", cmd, err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return out
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestSizes: a file can be read in one sitting, and a package's promises fit on
// one page.
func TestSizes(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); strings.HasPrefix(name, ".") && name != ".." || name == "node_modules" {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains([]string{".go", ".sql", ".py", ".js"}, filepath.Ext(path)) {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		most := 600
		if d.Name() == "doc.go" {
			most = 150
		}
		if n := strings.Count(string(content), "\n"); n > most && !strings.HasPrefix(string(content), "// Code generated ") {
			t.Errorf("%s has %d lines, the most is %d", path, n, most)
		}
		return nil
	})
	if err != nil || seen < 100 {
		t.Errorf("%d files were read: %v", seen, err)
	}
}
