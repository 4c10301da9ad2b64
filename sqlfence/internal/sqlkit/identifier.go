package sqlkit

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/fencepost-go/fencepost/guard"
)

// maxIdentifier is NAMEDATALEN-1: PostgreSQL silently truncates longer names,
// so that two of them could mean one column (PostgreSQL documentation, 4.1.1).
const maxIdentifier = 63

// QuoteIdentifier quotes one part of a name. A dot in it is part of the name.
func QuoteIdentifier(field, name string) (string, error) {
	switch {
	case name == "":
		return "", guard.Invalid(field, name, "must not be empty")
	case len(name) > maxIdentifier:
		return "", guard.Invalid(field, name, "is "+strconv.Itoa(len(name))+" bytes long, PostgreSQL keeps at most "+strconv.Itoa(maxIdentifier))
	case !utf8.ValidString(name):
		return "", guard.Invalid(field, name, "must be valid UTF-8")
	case strings.ContainsRune(name, 0):
		return "", guard.Invalid(field, name, "must not contain NUL")
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`, nil
}

// QuoteName quotes a name of one to three parts: table, schema.table,
// database.schema.table.
func QuoteName(field string, parts []string) (string, error) {
	if len(parts) == 0 || len(parts) > 3 {
		return "", guard.Invalid(field, strings.Join(parts, "."), "must have 1 to 3 parts, table or schema and table, each an element of the slice")
	}
	quoted := make([]string, len(parts))
	for i, part := range parts {
		var err error
		if quoted[i], err = QuoteIdentifier(field, part); err != nil {
			return "", err
		}
	}
	return strings.Join(quoted, "."), nil
}
