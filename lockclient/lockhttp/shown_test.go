package lockhttp

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/lockadmin"
)

// TestShownNamesWhatTenantsMayKnow: of a lease in which every field is set, a tenant gets the
// fields that are named here, and no field that is added later; an operator gets all of them.
func TestShownNamesWhatTenantsMayKnow(t *testing.T) {
	public := []string{"Resource", "State", "CreatedAt", "ExpiresAt", "HeldFor", "Remaining", "Awaited", "Waiters"}
	holders := append(slices.Clone(public), "Owner", "Metadata")
	var full lockadmin.LeaseInfo
	fields := reflect.ValueOf(&full).Elem()
	var all []string
	for n := range fields.NumField() {
		all = append(all, fields.Type().Field(n).Name)
		switch field := fields.Field(n); field.Kind() {
		case reflect.String:
			field.SetString("text")
		case reflect.Bool:
			field.SetBool(true)
		case reflect.Int, reflect.Int64:
			field.SetInt(1)
		case reflect.Uint64:
			field.SetUint(1)
		case reflect.Struct:
			field.Set(reflect.ValueOf(time.Unix(1, 0)))
		}
		if fields.Field(n).IsZero() {
			t.Fatalf("the test cannot fill %s", all[n])
		}
	}
	for _, c := range []struct {
		id          Identity
		showHolders bool
		want        []string
	}{
		{Identity{}, false, public},
		{Identity{}, true, holders},
		{Identity{Operator: true}, false, all},
	} {
		s := &Server{opts: Options{ShowHolders: c.showHolders}}
		got := reflect.ValueOf(s.shown(full, &c.id))
		for n, name := range all {
			if shown, may := !got.Field(n).IsZero(), slices.Contains(c.want, name); shown != may {
				t.Errorf("operator %t, ShowHolders %t: %s is shown: %t, want %t", c.id.Operator, c.showHolders, name, shown, may)
			}
		}
	}
}
