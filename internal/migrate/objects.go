package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Object is something of the schema as the migrations left it.
type Object struct {
	Kind string `json:"kind"` // function, table, column, index or trigger
	Name string `json:"name"` // a column's with its table
	On   string `json:"on"`   // a trigger's or a column's table
	// Type, Collation and NotNull are a column's. Of collations only "C" is compared, on which
	// the order of names depends.
	Type      string `json:"type"`
	Collation string `json:"collation"`
	NotNull   bool   `json:"notnull"`
	// Arguments are the types of a function's arguments but those that are OUT.
	Arguments []string `json:"arguments"`
	// What follows is a function's, as pg_proc has it.
	Body       string   `json:"body"`
	Definer    bool     `json:"definer"`
	Volatility string   `json:"volatility"`
	Settings   []string `json:"settings"`
	Guarded    bool     `json:"guarded"` // PUBLIC may not execute it
	// repair makes it again; "" where only a backup has what was in it.
	repair string
}

// objectText finds what a step does to the schema: a function that it drops; a function that it
// creates, with what stands from its arguments to its body, and its body; or anything else that
// it creates, with a trigger's table.
var objectText = regexp.MustCompile(`(?ms)^CREATE (?:OR REPLACE )?FUNCTION fencepost\.(\w+)\((.*?) AS \$\$(.*?)\$\$;?$` +
	`|^CREATE (TABLE) fencepost\.(\w+)|^CREATE (?:UNIQUE )?(INDEX) (\w+) ON[^;]*;|^CREATE (TRIGGER) (\w+) [^;]*? ON fencepost\.(\w+)[^;]*;` +
	`|^DROP FUNCTION (?:IF EXISTS )?fencepost\.(\w+)`)

// tableText finds the columns of a table that a step creates, and addedText those that it adds or
// drops; columnText is one column's definition on a line of its own.
var (
	tableText  = regexp.MustCompile(`(?ms)^CREATE TABLE fencepost\.(\w+) \((.*?)^\)`)
	addedText  = regexp.MustCompile(`(?m)^ALTER TABLE fencepost\.(\w+) (ADD|DROP) COLUMN (\w+ *[^;]*);`)
	columnText = regexp.MustCompile(`^ *([a-z]\w*) +([a-z]\w*(?:\[\])?)(.*)`)
)

// column is one column's definition; ok is false for a line that is none.
func column(table, definition string) (o Object, ok bool) {
	m := columnText.FindStringSubmatch(strings.Split(definition, "--")[0])
	if m == nil {
		return o, false
	}
	o = Object{Kind: "column", Name: table + "." + m[1], On: table, Type: m[2],
		NotNull: strings.Contains(m[3], "NOT NULL") || strings.Contains(m[3], "PRIMARY KEY")}
	if strings.Contains(m[3], `COLLATE "C"`) {
		o.Collation = "C"
	}
	return o, true
}

// columns returns those of the component's tables.
func (c Component) columns() (all []Object) {
	for _, m := range c.Migrations {
		for _, table := range tableText.FindAllStringSubmatch(m.SQL, -1) {
			for line := range strings.Lines(table[2]) {
				if o, is := column(table[1], line); is {
					all = append(all, o)
				}
			}
		}
		for _, change := range addedText.FindAllStringSubmatch(m.SQL, -1) {
			name, _, _ := strings.Cut(change[3], " ")
			all = slices.DeleteFunc(all, func(old Object) bool { return old.Name == change[1]+"."+name })
			if o, is := column(change[1], change[3]); is && change[2] == "ADD" {
				all = append(all, o)
			}
		}
	}
	return all
}

// arguments returns the types of the arguments that a call has, of what stands after a function's
// name and its first bracket.
func arguments(text string) (types []string) {
	depth, from := 1, 0
	add := func(argument string) {
		words := strings.Fields(strings.Split(argument, " DEFAULT ")[0])
		if len(words) > 0 && words[0] == "VARIADIC" {
			words = words[1:]
		}
		if len(words) > 0 && words[0] != "OUT" {
			types = append(types, strings.Join(words[min(1, len(words)-1):], " ")) // the name is first
		}
	}
	for n, r := range text {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 1:
			add(text[from:n])
			from = n + 1
		}
		if depth == 0 {
			add(text[from:n])
			break
		}
	}
	return types
}

// guardedText finds the functions that only who was granted them may execute.
var guardedText = regexp.MustCompile(`(?ms)^REVOKE ALL ON FUNCTION\s(.*?)\sFROM PUBLIC;`)

// Objects returns all objects of the component, in the order in which they are made.
func (c Component) Objects() (all []Object) {
	guarded := ""
	for _, m := range c.Migrations {
		for _, match := range guardedText.FindAllStringSubmatch(m.SQL, -1) {
			guarded += match[1] + ","
		}
		for _, match := range objectText.FindAllStringSubmatch(m.SQL, -1) {
			dropped := match[11]
			o := Object{Kind: strings.ToLower(match[4] + match[6] + match[8]), Name: match[1] + match[5] + match[7] + match[9], On: match[10]}
			switch {
			case match[1] != "":
				o.Arguments = arguments(match[2])
				head := strings.Split(strings.Join(strings.Fields(match[2]), " "), " SET ")
				o.Kind, o.Body, o.Definer, o.Volatility = "function", match[3], strings.Contains(head[0], "SECURITY DEFINER"), "v"
				switch {
				case strings.Contains(head[0], " IMMUTABLE"):
					o.Volatility = "i"
				case strings.Contains(head[0], " STABLE"):
					o.Volatility = "s"
				}
				for _, setting := range head[1:] {
					o.Settings = append(o.Settings, strings.ReplaceAll(strings.Replace(strings.TrimSpace(setting), " = ", "=", 1), "'", ""))
				}
				slices.Sort(o.Settings)
				o.repair = "CREATE OR REPLACE FUNCTION" + match[0][strings.Index(match[0], " fencepost."):]
			case o.Kind == "index":
				o.repair = match[0]
			case o.Kind == "trigger":
				o.repair = fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON fencepost.%s;\n%s\nALTER TABLE fencepost.%[2]s ENABLE ALWAYS TRIGGER %[1]s;", o.Name, o.On, match[0])
			}
			all = slices.DeleteFunc(all, func(old Object) bool {
				return old.Kind == "function" && (old.Name == dropped || o.Kind == "function" && old.Name == o.Name)
			})
			if dropped == "" {
				all = append(all, o)
			}
		}
	}
	listed := map[string]bool{}
	for name := range strings.SplitSeq(guarded, ",") {
		listed[strings.TrimSpace(name)] = true
	}
	for n, o := range all {
		if o.Kind == "function" && listed["fencepost."+o.Name] {
			all[n].Guarded = true
			all[n].repair += "\nREVOKE ALL ON FUNCTION fencepost." + o.Name + "(" + strings.Join(o.Arguments, ", ") + ") FROM PUBLIC;"
		}
	}
	return append(all, c.columns()...)
}

// ObjectsSQL finds what is wrong with the objects in $1 ([Component.ObjectsJSON]): kind, name
// and problem. It needs no rights, since everybody may read the catalog, and a search_path of
// pg_catalog.
const ObjectsSQL = `
	SELECT kind, name, problem FROM (
	WITH expected AS (SELECT *, (SELECT coalesce(string_agg(to_regtype(a)::oid::text, ' ' ORDER BY n), '') FROM unnest(x.arguments) WITH ORDINALITY u(a, n)) AS types
		FROM json_to_recordset($1::text::json) AS x(kind text, name text, "on" text, body text, definer boolean, volatility text, settings text[], guarded boolean,
			arguments text[], "type" text, "collation" text, "notnull" boolean)),
	have AS (SELECT p.*, array_to_string(p.proargtypes, ' ') AS types, has_function_privilege('public', p.oid, 'EXECUTE') AS everybody FROM pg_proc p
		WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'fencepost')),
	relations AS (SELECT c.* FROM pg_class c WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'fencepost')),
	columns AS (SELECT a.*, r.relname, (SELECT c.collname FROM pg_collation c WHERE c.oid = a.attcollation) AS collname FROM pg_attribute a
		JOIN relations r ON a.attrelid = r.oid WHERE r.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped),
	triggers AS (SELECT t.*, r.relname FROM pg_trigger t JOIN relations r ON t.tgrelid = r.oid WHERE NOT t.tgisinternal)
		SELECT e.kind, e.name, 'is missing' AS problem FROM expected e
			WHERE CASE e.kind WHEN 'function' THEN NOT EXISTS (SELECT FROM have h WHERE h.proname = e.name AND h.types = e.types)
				WHEN 'column' THEN EXISTS (SELECT FROM relations r WHERE r.relname = e."on") AND NOT EXISTS (SELECT FROM columns c WHERE c.relname || '.' || c.attname = e.name)
				WHEN 'trigger' THEN NOT EXISTS (SELECT FROM triggers t WHERE t.relname = e."on" AND t.tgname = e.name)
				ELSE NOT EXISTS (SELECT FROM relations r WHERE r.relname = e.name) END
		UNION ALL
		SELECT e.kind, e.name, CASE
			WHEN h.prosrc <> e.body THEN 'is not the one of this build'
			WHEN h.prosecdef <> e.definer THEN 'does not run with the rights that it should'
			WHEN h.provolatile::text <> e.volatility THEN 'has another volatility, and so may read a row as it was before the lock'
			WHEN 'search_path=pg_catalog, pg_temp' = ANY (e.settings) AND ('search_path=pg_catalog, pg_temp' = ANY (h.proconfig)) IS NOT TRUE THEN 'has no pinned search_path'
			WHEN coalesce((SELECT array_agg(c ORDER BY c COLLATE "C") FROM unnest(h.proconfig) c), '{}') <> coalesce(e.settings, '{}') THEN 'has other settings than this build: ' || array_to_string(h.proconfig, ', ')
			WHEN e.guarded AND h.everybody THEN 'may be executed by everybody' END
			FROM expected e JOIN have h ON h.proname = e.name AND h.types = e.types WHERE e.kind = 'function'
		UNION ALL
		SELECT e.kind, e.name || '(' || pg_get_function_identity_arguments(h.oid) || ')', 'is not of this build, which calls it with other arguments: drop it'
			FROM expected e JOIN have h ON h.proname = e.name AND h.types <> e.types WHERE e.kind = 'function'
		UNION ALL
		SELECT e.kind, e.name, CASE
			WHEN c.atttypid <> to_regtype(e."type") THEN 'has another type than in this build: ' || format_type(c.atttypid, c.atttypmod) || ', not ' || e."type"
			WHEN e."collation" = 'C' AND c.collname <> 'C' THEN 'has another collation than in this build: names come in another order'
			WHEN e."notnull" AND NOT c.attnotnull THEN 'may be null' END
			FROM expected e JOIN columns c ON c.relname || '.' || c.attname = e.name WHERE e.kind = 'column'
		UNION ALL
		SELECT 'column', c.relname || '.' || c.attname, 'is not of this build, which gives it no value' FROM columns c JOIN expected t ON t.kind = 'table' AND t.name = c.relname
			WHERE c.attnotnull AND NOT c.atthasdef AND c.attidentity = '' AND NOT EXISTS (SELECT FROM expected e WHERE e.kind = 'column' AND e.name = c.relname || '.' || c.attname)
		UNION ALL
		SELECT e.kind, e.name, 'is not enabled ALWAYS' FROM expected e JOIN triggers t ON t.relname = e."on" AND t.tgname = e.name
			WHERE e.kind = 'trigger' AND t.tgenabled <> 'A'
		UNION ALL
		SELECT 'trigger', t.tgname, 'is not of this build' FROM triggers t JOIN expected e ON e.kind = 'table' AND t.relname = e.name
			WHERE NOT EXISTS (SELECT FROM expected x WHERE x.kind = 'trigger' AND x.name = t.tgname)
		UNION ALL
		SELECT e.kind, e.name, 'is unlogged: a crash empties it' FROM expected e JOIN relations r ON r.relname = e.name
			WHERE e.kind = 'table' AND r.relpersistence <> 'p') AS wrong(kind, name, problem) WHERE problem IS NOT NULL ORDER BY kind, name, problem`

// ObjectsJSON is the parameter of [ObjectsSQL].
func (c Component) ObjectsJSON() string {
	text, _ := json.Marshal(c.Objects()) // texts can be encoded
	return string(text)
}

// VersionError says that the database does not have this build's version of a component.
type VersionError struct {
	Component  string
	Have, Know int64
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("schema fencepost has %s version %d, this build has %d: only a schema of this build's version can be repaired", e.Component, e.Have, e.Know)
}

// DamagedError says what a repair cannot make again, and left.
type DamagedError struct{ Left []string }

func (e *DamagedError) Error() string {
	return "a repair leaves, since it makes only functions, triggers and indexes: " + strings.Join(e.Left, "; ") + ": a table or column comes from a backup, and what is not of this build somebody has to drop"
}

// RepairWith says what to do about a finding of [ObjectsSQL].
const RepairWith = "run fencectl migrate --repair as the owner of schema fencepost, and then as the same what fencectl roles prints; a table or column that is missing comes from a backup, and what is not of this build somebody has to drop"

// Repair makes the functions, triggers and indexes again that are missing or differ from this
// build's, in one transaction, and returns their names; tables it leaves alone. The schema must have
// this build's version. The rights on a function that was dropped are gone with it: the
// caller says that they have to be granted again. What is left after that is a [*DamagedError].
func (c Component) Repair(ctx context.Context, conn *pgx.Conn) (repaired []string, err error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return nil, uncommitted(err)
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		tx.Rollback(ending) // says that it has ended after a COMMIT
	}()
	// The lock of migrations first, and the table locks shorter: those are in the way of writers.
	err = Pgx(conn).Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d; SELECT pg_catalog.pg_advisory_xact_lock(%d); SET LOCAL lock_timeout = '5s'", lockWait.Milliseconds(), int64(lockKey)))
	if err != nil {
		return nil, uncommitted(err)
	}
	have, err := c.version(ctx, Pgx(conn))
	if err == nil && have != int64(c.Version()) {
		return nil, &VersionError{Component: c.Name, Have: have, Know: int64(c.Version())}
	}
	if err != nil {
		return nil, uncommitted(err)
	}
	objects, wrong, left := c.Objects(), map[string]string{}, []string(nil)
	if _, err = tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err == nil {
		rows, _ := tx.Query(ctx, ObjectsSQL, pgx.QueryExecModeExec, c.ObjectsJSON()) // rows has the error too
		var kind, name, problem string
		_, err = pgx.ForEachRow(rows, []any{&kind, &name, &problem}, func() error {
			subject := kind + " fencepost." + name
			if !slices.ContainsFunc(objects, func(o Object) bool { return o.repair != "" && o.Kind+" fencepost."+o.Name == subject }) {
				left = append(left, subject+" "+problem)
			}
			wrong[subject] += problem
			return nil
		})
	}
	if err != nil {
		return nil, uncommitted(err)
	}
	// sealed takes the rights of other roles on all that this transaction has touched so far: of a
	// function that was missing those that default privileges gave. Of others they stay.
	missing, others := "", ""
	for _, o := range objects {
		subject := o.Kind + " fencepost." + o.Name
		problem, is := wrong[subject]
		switch {
		case !is || o.repair == "":
			continue
		case o.Kind == "function" && problem == "is missing":
			missing += o.repair + "\n"
		default:
			others += o.repair + "\n"
		}
		repaired = append(repaired, subject)
	}
	if len(repaired) > 0 {
		if err := Pgx(conn).Exec(ctx, Pin+owned+missing+sealed+others); err != nil {
			return nil, uncommitted(err)
		}
		if err := tx.Commit(ctx); err != nil {
			return repaired, err
		}
	}
	if len(left) > 0 {
		return repaired, &DamagedError{left}
	}
	return repaired, nil
}
