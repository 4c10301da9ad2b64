package layout

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// snippetImports are the packages that the README's Go may use.
var snippetImports = map[string]string{
	"chi":        "github.com/go-chi/chi/v5",
	"context":    "context",
	"errors":     "errors",
	"guard":      module + "/guard",
	"http":       "net/http",
	"httpfence":  module + "/httpfence",
	"io":         "io",
	"lockclient": module + "/lockclient",
	"lockadmin":  module + "/lockclient/lockadmin",
	"pgadmin":    module + "/lockclient/lockadmin/pgadmin",
	"pglock":     module + "/lockclient/pglock",
	"log":        "log",
	"rand":       "math/rand/v2",
	"pgx":        "github.com/jackc/pgx/v5",
	"pgxpool":    "github.com/jackc/pgx/v5/pgxpool",
	"s3":         "github.com/aws/aws-sdk-go-v2/service/s3",
	"s3fence":    module + "/s3fence",
	"sqladmin":   module + "/sqlfence/sqladmin",
	"sqlfence":   module + "/sqlfence",
	"strings":    "strings",
	"sqlrow":     module + "/sqlfence/sqlrow",
	"time":       "time",
}

// Each snippet is the body of a function wrapped in these.
const snippetHead = `func snippet%d(ctx context.Context, pool *pgxpool.Pool, claim guard.Claim, db *sqlfence.DB[pgx.Tx], body io.Reader,
	s3Client *s3.Client, csv []byte, client *lockclient.Client, name string, closes *guard.Template, opts *lockclient.AcquireOptions,
	pause time.Duration, parts []string, work func(context.Context) error) any {
`

// tokensHead stands for the clients of locks that lockclient/TOKENS.md names, by what it
// uses of them.
const tokensHead = `func snippet%d(ctx context.Context, pool *pgxpool.Pool, db *sqlfence.DB[pgx.Tx], work func(context.Context, pgx.Tx) error, claim guard.Claim,
	name, id, node string, ttl time.Duration, options any,
	locker interface { Obtain(context.Context, string, time.Duration, any) (interface { FenceToken() int64; Token() string }, error) },
	election interface { Campaign(context.Context, string) error; Rev() int64 },
	conn interface { Get(string) ([]byte, *struct { Czxid int64 }, error) },
	kv interface { Get(string, any) (*struct { ModifyIndex uint64; Session string }, any, error) },
	lease *struct { ResourceVersion string; UID []byte },
	info struct { WorkflowNamespace, ActivityID string; WorkflowExecution struct { ID, RunID string }; Attempt int32 }) error {
`

// The Go code on these pages compiles as it is, so that it can be copied.
func TestSnippetsCompile(t *testing.T) {
	snippets := blocks(t, "README.md", "go")[1:] // TestReadmeProgram has the first
	snippets = append(snippets, blocks(t, "guard/FAILURES.md", "go")...)
	if len(snippets) < 7 {
		t.Fatalf("%d snippets found: one per surface in README.md and three in guard/FAILURES.md are promised", len(snippets))
	}
	if err := compile(t, snippetHead, snippets); err != nil {
		t.Error(err)
	}
	tokens := blocks(t, "lockclient/TOKENS.md", "go")
	if len(tokens) < 8 {
		t.Errorf("%d snippets found in lockclient/TOKENS.md", len(tokens))
	}
	for i, s := range tokens {
		if strings.Contains(s, "claim := ") {
			tokens[i] = "{\n" + s + "return db.Raise(ctx, claim)\n}\n"
		}
	}
	if err := compile(t, tokensHead, tokens); err != nil {
		t.Error(err)
	}
	// The check must be able to fail.
	if compile(t, snippetHead, []string{"return sqlfence.NoSuchThing(ctx)\n"}) == nil {
		t.Error("a snippet that does not compile was not noticed")
	}
}

// exports are what the snippets may import, compiled, by path.
var exports = sync.OnceValues(func() (map[string]string, error) {
	all, err := list(append([]string{"-export", "-json=ImportPath,Export"}, slices.Collect(maps.Values(snippetImports))...)...)
	files := map[string]string{}
	for _, p := range all {
		files[p.ImportPath] = p.Export
	}
	return files, err
})

// compile checks the snippets' types as the compiler does, in one file of a package of
// their own.
func compile(t *testing.T, head string, snippets []string) error {
	t.Helper()
	var body strings.Builder
	for i, s := range snippets {
		fmt.Fprintf(&body, head+"%s}\n\n", i, s)
	}
	var b strings.Builder
	b.WriteString("package snippets\n\nimport (\n")
	for name, path := range snippetImports {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(body.String()) {
			fmt.Fprintf(&b, "\t%s %q\n", name, path)
		}
	}
	b.WriteString(")\n\n" + body.String())
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "snippets.go", b.String(), parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, &body)
	}
	compiled, err := exports()
	if err != nil {
		t.Fatal(err)
	}
	read := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
	_, err = (&types.Config{Importer: read}).Check("snippets", files, []*ast.File{file}, nil)
	if wrong, ok := errors.AsType[types.Error](err); ok {
		return fmt.Errorf("%w in %s", err, strings.Split(b.String(), "\n")[files.Position(wrong.Pos).Line-1])
	}
	return err
}

// elsewhere lists the README's commands that no line of .ci/run runs, and why
// they need none.
var elsewhere = map[string]string{
	".ci/setup && go run ./examples/billingclose": "its parts are run: setup, and the tour with -json",
	"go run ./examples/billingclose -unfenced":    "run with -json",
	".ci/run": "is the gate itself",
	"go mod edit -replace github.com/fencepost-go/fencepost=CHECKOUT && go mod tidy": "is for the reader's own module",
}

// Every command in the README is run by the gate.
func TestReadmeCommandsAreRun(t *testing.T) {
	gate, err := os.ReadFile(filepath.Join(root(t), ".ci", "run"))
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, block := range blocks(t, "README.md", "sh") {
		for line := range strings.Lines(block) {
			command := strings.TrimSpace(line)
			commands++
			if _, ok := elsewhere[command]; !ok && !strings.Contains(string(gate), "readme '"+command+"'") {
				t.Errorf(".ci/run does not run the README's command %q", command)
			}
		}
	}
	if commands < 5 {
		t.Errorf("%d commands found in README.md: the check is broken", commands)
	}
}

// The README's first Go is a part of the first program, which is tested, and its first text
// what that program prints of it.
func TestReadmeProgram(t *testing.T) {
	indent := regexp.MustCompile(`(?m)^(\t|the paused worker: )`)
	for language, file := range map[string]string{"go": "main.go", "text": "output.txt"} {
		program := readPage(t, "examples/quickstart/"+file)
		shown := blocks(t, "README.md", language)
		if len(shown) == 0 || !strings.Contains(indent.ReplaceAllString(program, ""), shown[0]) {
			t.Errorf("README.md does not show a part of examples/quickstart/%s as it is", file)
		}
		if lines := strings.Count(program, "\n"); lines > 60 {
			t.Errorf("examples/quickstart/%s has %d lines, 60 are promised", file, lines)
		}
	}
}

// The README can be read in five minutes.
func TestReadmeIsShort(t *testing.T) {
	if n := len(strings.Fields(readReadme(t))); n > 1200 {
		t.Errorf("README.md has %d words; what is above 1200 belongs into a package's documentation", n)
	}
	for _, snippet := range blocks(t, "README.md", "go") {
		if lines := strings.Count(snippet, "\n"); lines > 10 {
			t.Errorf("a snippet has %d lines:\n%s", lines, snippet)
		}
	}
}

// blocks returns a page's fenced blocks of a language.
func blocks(t *testing.T, page, language string) []string {
	t.Helper()
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(readPage(t, page), -1) {
		out = append(out, m[1])
	}
	return slices.Clip(out)
}

func readReadme(t *testing.T) string { return readPage(t, "README.md") }

func readPage(t *testing.T, page string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), page))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
