package sqlrow

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// bound is the key column that a variable of a template is bound to, in the
// order of the variables.
type bound struct {
	Column string `json:"column"`
	Type   string `json:"type"` // the variable's
	key    int    // which of the key's
}

// resourceOf names the resource of the row with the given key, and returns the
// key as it is to be sent: the driver may get another value from a caller's type
// than the one that the name was built from.
func (t *Table) resourceOf(key Key) (string, Key, error) {
	var few [4]string
	values, sent := few[:0], key
	for _, b := range t.bound {
		v := key[b.key]
		switch v.(type) {
		case string, int, int64, [16]byte:
		default:
			plain, err := plainKeyValue(v)
			if err != nil {
				return "", nil, guard.Invalid("key column "+b.Column, fmt.Sprintf("%T", v), err.Error())
			}
			if &sent[0] == &key[0] {
				sent = slices.Clone(key)
			}
			v, sent[b.key] = plain, plain
		}
		text, err := keyValueText(v, b.Type)
		if err != nil {
			return "", nil, guard.Invalid("key column "+b.Column, fmt.Sprintf("%T", key[b.key]), err.Error())
		}
		values = append(values, text)
	}
	name, err := t.resource.Name(values...)
	return name, sent, err
}

// plainKeyValue converts a value of another type to a string or int64.
func plainKeyValue(v any) (any, error) {
	if valuer, ok := v.(driver.Valuer); ok {
		value, err := valuer.Value()
		if err != nil {
			return nil, err
		}
		switch value.(type) {
		case string, int64:
			return value, nil
		}
		return nil, errKeyType
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return r.Int(), nil
	case r.CanUint() && r.Uint() <= math.MaxInt64:
		return int64(r.Uint()), nil
	case r.Kind() == reflect.String:
		return r.String(), nil
	}
	return nil, errKeyType
}

// keyValueText returns the text that the database returns for a value of a key
// column: the value's spelling must be the only one.
func keyValueText(v any, kind string) (string, error) {
	switch v := v.(type) {
	case string: // the template checks the spelling of its types
		if kind == guard.TypeText && strings.HasSuffix(v, " ") {
			return "", errors.New("must not end with a space, which varchar(n) may cut off")
		}
		return v, nil
	case int:
		return keyValueText(int64(v), kind)
	case int64:
		if kind == guard.TypeInt {
			return strconv.FormatInt(v, 10), nil
		}
	case [16]byte:
		if kind == guard.TypeUUID {
			return fmt.Sprintf("%x-%x-%x-%x-%x", v[:4], v[4:6], v[6:8], v[8:10], v[10:]), nil
		}
	}
	return "", errKeyType
}

var errKeyType = errors.New("is not a type whose text the resource's name can be built from: use whole numbers for {x:int}, a string or [16]byte for {x:uuid}, a string for {x}")

// isNull reports whether the drivers send v as NULL, which equals no key. Only
// unusual types pay for a closer look.
func isNull(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case string, int, int64, int32, bool, time.Time:
		return false
	case driver.Valuer:
		if r := reflect.ValueOf(v); r.Kind() == reflect.Pointer && r.IsNil() {
			return true
		}
		value, err := v.Value()
		return err == nil && value == nil
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		return r.IsNil()
	}
	return false
}
