package sqlfence

import (
	"context"
	"database/sql/driver"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// maxParameters is what a statement may have: their number has 16 bits in the
// protocol (PostgreSQL documentation, 55.7, Bind).
const maxParameters = 65535

// check validates the writes and finds the columns that they have in common.
func (b *batch) check(ctx context.Context) error {
	seen := make(map[string]int, len(b.writes))
	for i, w := range b.writes {
		at := fmt.Sprintf("writes[%d]: ", i)
		if err := b.t.check(ctx, w.Claim, w.Key); err != nil {
			return fmt.Errorf("%s%w", at, err)
		}
		if len(w.Set) == 0 {
			return guard.Invalid(at+"set", "", "names no column")
		}
		key := keyText(w.Key)
		if other, twice := seen[key]; twice {
			return b.twice(i, other)
		}
		seen[key] = i
		if i == 0 {
			b.columns = columnsOf(w.Set, nil)
			continue
		}
		if err := b.sameColumns(at, w.Set); err != nil {
			return err
		}
	}
	return nil
}

func (b *batch) sameColumns(at string, set Set) error {
	for column := range set {
		if !slices.Contains(b.columns, column) {
			return guard.Invalid(at+"set column", column, "is not in writes[0]: all sets must name the same columns")
		}
	}
	for _, column := range b.columns {
		v, named := set[column]
		if !named {
			return guard.Invalid(at+"set", column, "is a column of writes[0] that is missing: all sets must name the same columns")
		}
		first, computed := b.writes[0].Set[column].(Expr)
		other, also := v.(Expr)
		if computed != also || computed && !reflect.DeepEqual(first, other) {
			return guard.Invalid(at+"set column "+column, other.sql, "must be the same expression with the same arguments in all writes")
		}
	}
	return nil
}

// keyText is equal for keys that look equal. Those that only the database
// finds equal are left to it.
func keyText(key Key) string {
	var b []byte
	for _, v := range key {
		text := ""
		if valuer, ok := v.(driver.Valuer); ok {
			if value, err := valuer.Value(); err == nil {
				v = value
			}
		}
		switch r := reflect.ValueOf(v); {
		case r.CanInt():
			text = strconv.FormatInt(r.Int(), 10)
		case r.CanUint():
			text = strconv.FormatUint(r.Uint(), 10)
		case r.Kind() == reflect.String:
			text = "s" + r.String()
		case r.Kind() == reflect.Slice && r.Type().Elem().Kind() == reflect.Uint8:
			text = "b" + string(r.Bytes())
		default:
			if at, ok := v.(time.Time); ok {
				text = "t" + at.Format(time.RFC3339Nano)
			} else {
				text = fmt.Sprintf("%#v", v)
			}
		}
		b = appendShape(b, text)
	}
	return string(b)
}
