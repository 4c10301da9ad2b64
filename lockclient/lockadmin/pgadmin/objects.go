package pgadmin

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"

	"github.com/jackc/pgx/v5"
)

// object is something of the schema as the migrations left it.
type object struct {
	Kind string `json:"kind"` // function, table, index or trigger
	Name string `json:"name"`
	On   string `json:"on"` // a trigger's table
	// What follows is a function's, as pg_proc has it.
	Body       string   `json:"body"`
	Definer    bool     `json:"definer"`
	Volatility string   `json:"volatility"`
	Settings   []string `json:"settings"`
	Guarded    bool     `json:"guarded"` // PUBLIC may not execute it
}

// objectText finds what a step of the schema creates: a function with what stands from its
// arguments to its body, and its body; or anything else, with a trigger's table.
var objectText = regexp.MustCompile(`(?ms)^CREATE (?:OR REPLACE )?FUNCTION fencepost\.(\w+)\((.*?) AS \$\$(.*?)\$\$;$` +
	`|^CREATE (TABLE) fencepost\.(\w+)|^CREATE (?:UNIQUE )?(INDEX) (\w+) ON|^CREATE (TRIGGER) (\w+) [^;]*? ON fencepost\.(\w+)`)

// guardedText finds the functions that only who was granted them may execute.
var guardedText = regexp.MustCompile(`(?ms)^REVOKE ALL ON FUNCTION (.*?) FROM PUBLIC;`)

// expectedObjects returns all objects of the schema.
var expectedObjects = sync.OnceValue(func() (all []object) {
	guarded := ""
	for _, m := range pglease.Schema().Migrations {
		for _, match := range guardedText.FindAllStringSubmatch(m.SQL, -1) {
			guarded += match[1] + ","
		}
		for _, match := range objectText.FindAllStringSubmatch(m.SQL, -1) {
			o := object{Kind: strings.ToLower(match[4] + match[6] + match[8]), Name: match[1] + match[5] + match[7] + match[9], On: match[10]}
			if match[1] != "" {
				head := strings.Split(strings.Join(strings.Fields(match[2]), " "), " SET ")
				o.Kind, o.Body, o.Definer, o.Volatility = "function", match[3], strings.Contains(head[0], "SECURITY DEFINER"), "v"
				if strings.Contains(head[0], " STABLE") {
					o.Volatility = "s"
				}
				for _, setting := range head[1:] {
					o.Settings = append(o.Settings, strings.Replace(strings.TrimSpace(setting), " = ", "=", 1))
				}
				slices.Sort(o.Settings)
			}
			all = append(all, o)
		}
	}
	for n := range all {
		all[n].Guarded = strings.Contains(guarded, "fencepost."+all[n].Name+",")
	}
	return all
})

// objectsSQL says what is wrong with the objects in $1. Everybody may read the catalog.
const objectsSQL = `
	WITH expected AS (SELECT * FROM json_to_recordset($1::text::json)
		AS x(kind text, name text, "on" text, body text, definer boolean, volatility text, settings text[], guarded boolean)),
	have AS (SELECT p.*, has_function_privilege('public', p.oid, 'EXECUTE') AS everybody FROM pg_proc p
		WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = 'fencepost')),
	wrong(kind, name, problem) AS (
		SELECT e.kind, e.name, 'is missing' FROM expected e
			WHERE CASE e.kind WHEN 'function' THEN NOT EXISTS (SELECT FROM have h WHERE h.proname = e.name)
				WHEN 'trigger' THEN NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass('fencepost.' || nullif(e."on", '')) AND t.tgname = e.name)
				ELSE to_regclass('fencepost.' || e.name) IS NULL END
		UNION ALL
		SELECT e.kind, e.name, CASE
			WHEN h.prosrc <> e.body THEN 'is not the one of this build'
			WHEN h.prosecdef <> e.definer THEN 'does not run with the rights that it should'
			WHEN h.provolatile::text <> e.volatility THEN 'has another volatility'
			WHEN coalesce((SELECT array_agg(c ORDER BY c COLLATE "C") FROM unnest(h.proconfig) c), '{}') <> coalesce(e.settings, '{}') THEN 'has other settings'
			WHEN e.guarded AND h.everybody THEN 'may be executed by everybody' END
			FROM expected e JOIN have h ON h.proname = e.name WHERE e.kind = 'function'
		UNION ALL
		SELECT e.kind, e.name, 'is not enabled ALWAYS' FROM expected e JOIN pg_trigger t
			ON t.tgrelid = to_regclass('fencepost.' || nullif(e."on", '')) AND t.tgname = e.name WHERE t.tgenabled <> 'A'
		UNION ALL
		SELECT 'trigger', t.tgname, 'is not of this build' FROM pg_trigger t JOIN expected e ON e.kind = 'table' AND t.tgrelid = to_regclass('fencepost.' || e.name)
			WHERE NOT t.tgisinternal AND NOT EXISTS (SELECT FROM expected x WHERE x.kind = 'trigger' AND x.name = t.tgname)
		UNION ALL
		SELECT e.kind, e.name, 'is unlogged: a crash empties it' FROM expected e JOIN pg_class c ON c.oid = to_regclass('fencepost.' || e.name)
			WHERE e.kind = 'table' AND c.relpersistence <> 'p')
	SELECT coalesce(string_agg(format('%s fencepost.%s %s', kind, name, problem), '; ' ORDER BY kind, name), '') FROM wrong WHERE problem IS NOT NULL`

// expectedJSON is the parameter of objectsSQL.
func expectedJSON() string {
	text, _ := json.Marshal(expectedObjects()) // texts can be encoded
	return string(text)
}

// wrongObjects says what is wrong with the schema's objects; "" if nothing is.
func wrongObjects(ctx context.Context, conn *pgx.Conn) (wrong string, err error) {
	err = look(ctx, conn, func() error { return conn.QueryRow(ctx, objectsSQL, expectedJSON()).Scan(&wrong) })
	return wrong, err
}
