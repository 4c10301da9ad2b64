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
	Kind string `json:"kind"` // function, table, index or trigger
	Name string `json:"name"`
	On   string `json:"on"` // a trigger's table
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
			all[n].repair += "\nREVOKE ALL ON FUNCTION fencepost." + o.Name + " FROM PUBLIC;"
		}
	}
	return all
}

// ObjectsSQL finds what is wrong with the objects in $1 ([Component.ObjectsJSON]): kind, name
// and problem. It needs no rights, since everybody may read the catalog, and a search_path of
// pg_catalog.
const ObjectsSQL = `
	SELECT kind, name, problem FROM (
	WITH expected AS (SELECT * FROM json_to_recordset($1::text::json)
		AS x(kind text, name text, "on" text, body text, definer boolean, volatility text, settings text[], guarded boolean)),
	have AS (SELECT p.*, has_function_privilege('public', p.oid, 'EXECUTE') AS everybody FROM pg_proc p
		WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'fencepost')),
	relations AS (SELECT c.* FROM pg_class c WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'fencepost')),
	triggers AS (SELECT t.*, r.relname FROM pg_trigger t JOIN relations r ON t.tgrelid = r.oid WHERE NOT t.tgisinternal)
		SELECT e.kind, e.name, 'is missing' AS problem FROM expected e
			WHERE CASE e.kind WHEN 'function' THEN NOT EXISTS (SELECT FROM have h WHERE h.proname = e.name)
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
			FROM expected e JOIN LATERAL (SELECT * FROM have h WHERE h.proname = e.name ORDER BY h.prosrc = e.body DESC LIMIT 1) h ON true WHERE e.kind = 'function'
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

// RepairWith says what to do about a finding of [ObjectsSQL].
const RepairWith = "run fencectl migrate --repair as the owner of schema fencepost, and then as the same what fencectl roles prints; a table that is missing comes from a backup"

// Repair makes the functions, triggers and indexes again that are missing or differ from this
// build's, in one transaction, and returns their names; tables it leaves alone. The schema must have
// this build's version. The rights on a function that was dropped are gone with it: the
// caller says that they have to be granted again.
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
	wrong := map[string]string{}
	if _, err = tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err == nil {
		rows, _ := tx.Query(ctx, ObjectsSQL, pgx.QueryExecModeExec, c.ObjectsJSON()) // rows has the error too
		var kind, name, problem string
		_, err = pgx.ForEachRow(rows, []any{&kind, &name, &problem}, func() error {
			wrong[kind+" fencepost."+name] += problem
			return nil
		})
	}
	if err != nil {
		return nil, uncommitted(err)
	}
	// sealed takes the rights of other roles on all that this transaction has touched so far: of a
	// function that was missing those that default privileges gave. Of others they stay.
	missing, others := "", ""
	for _, o := range c.Objects() {
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
	if len(repaired) == 0 {
		return nil, nil
	}
	if err := Pgx(conn).Exec(ctx, Pin+owned+missing+sealed+others); err != nil {
		return nil, uncommitted(err)
	}
	return repaired, tx.Commit(ctx)
}
