package sqlfence

import (
	"context"
	"regexp"
	"slices"
	"strings"
)

// functionText finds what a migration does to functions: the name of one that
// it drops, or of one that it creates, what stands between its arguments and
// its body, and its body.
var functionText = regexp.MustCompile(`(?ms)^DROP FUNCTION (?:IF EXISTS )?fencepost\.(\w+)|^CREATE (?:OR REPLACE )?FUNCTION fencepost\.(\w+)\((.*?)AS \$\$(.*?)\$\$;?$`)

// expectedFunction is how a function of schema fencepost should be.
type expectedFunction struct {
	Name    string `json:"name"`
	Body    string `json:"body"`
	Definer bool   `json:"definer"`
	Pinned  bool   `json:"pinned"` // has a search_path of its own
}

// expectedFunctions returns the functions as the migrations left them.
func expectedFunctions() []expectedFunction {
	var all []expectedFunction
	for _, m := range schema().Migrations {
		for _, match := range functionText.FindAllStringSubmatch(m.SQL, -1) {
			dropped, f := match[1], expectedFunction{match[2], match[4], strings.Contains(match[3], "SECURITY DEFINER"), strings.Contains(match[3], "SET search_path = pg_catalog, pg_temp")}
			all = slices.DeleteFunc(all, func(old expectedFunction) bool { return old.Name == dropped || old.Name == f.Name })
			if dropped == "" {
				all = append(all, f)
			}
		}
	}
	return all
}

// verifyFunctionsSQL compares the functions with $1, and the version of the
// schema with $2.
const verifyFunctionsSQL = `
	WITH expected AS (SELECT * FROM json_to_recordset($1::text::json) AS x(name text, body text, definer boolean, pinned boolean)),
	have AS (SELECT * FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'fencepost'))
	SELECT 'schema fencepost', format('has sqlfence version %s, this build has %s', coalesce(max(version), 0), $2::int)
		FROM fencepost.migrations WHERE component = 'sqlfence' HAVING max(version) IS DISTINCT FROM $2::int
	UNION ALL
	SELECT 'function fencepost.' || name, 'is missing' FROM expected WHERE NOT EXISTS (SELECT FROM have WHERE proname = name)
	UNION ALL
	SELECT 'function fencepost.' || name, 'is not the one of this build' FROM expected
		WHERE EXISTS (SELECT FROM have WHERE proname = name) AND NOT EXISTS (SELECT FROM have WHERE proname = name AND prosrc = body)
	UNION ALL
	SELECT 'function fencepost.' || name, 'does not run with the rights that it should' FROM expected JOIN have ON proname = name AND prosrc = body WHERE prosecdef <> definer
	UNION ALL
	SELECT 'function fencepost.' || name, 'has no pinned search_path' FROM expected JOIN have ON proname = name AND prosrc = body
		WHERE pinned AND (proconfig IS NULL OR NOT 'search_path=pg_catalog, pg_temp' = ANY (proconfig))`

func (d *DB[Tx]) verifyFunctions(ctx context.Context, op string) ([]Finding, error) {
	return d.findings(ctx, op, verifyFunctionsSQL, jsonText(expectedFunctions()), schema().Version())
}
