package guard_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencepost-go/fencepost/guard"
)

func TestValidators(t *testing.T) {
	validators := []struct {
		field    string
		validate func(string) error
		low      int
		high     int
	}{
		{"resource", guard.ValidateResource, 1, 512},
		{"owner", guard.ValidateOwner, 1, 128},
		{"lease ID", guard.ValidateLeaseID, 0, 128},
	}
	for _, v := range validators {
		check := func(s string, want bool) {
			t.Helper()
			err := v.validate(s)
			var invalid *guard.InvalidError
			switch {
			case want && err != nil:
				t.Errorf("%s %.40q (%d bytes): %v", v.field, s, len(s), err)
			case !want && !(errors.Is(err, guard.ErrInvalid) && errors.As(err, &invalid) && invalid.Field == v.field):
				t.Errorf("%s %.40q (%d bytes) = %v; want an InvalidError for the field", v.field, s, len(s), err)
			case !want && errors.Is(err, guard.ErrMissing):
				t.Errorf("%s %.40q: %v is ErrMissing; an empty value is not a missing one", v.field, s, err)
			}
		}
		check("", v.low == 0)
		for _, n := range []int{1, v.high - 1, v.high} {
			check(strings.Repeat("a", n), true)
		}
		check(strings.Repeat("a", v.high+1), false)
		check(strings.Repeat("a", 1<<20), false)
		check(strings.Repeat("é", v.high/2), true)
		check(strings.Repeat("é", v.high/2)+"é", false) // the limit is in bytes

		for _, s := range []string{
			" ", "a b", "~", "!", `"'\`, "%_*?", "a:b/c", "日本語", "😀", "é", "e\u0301", "\u200b", "\u202e", "\u2028", "\ufeff", "\ufffd",
		} {
			check(s, true)
		}
		for c := rune(0); c < 0xa0; c++ {
			if c < ' ' || c >= 0x7f { // C0, DEL and C1
				check("a"+string(c)+"b", false)
				check(string(c), false)
			} else {
				check(string(c), true)
			}
		}
		for _, s := range []string{"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "é\x80"} {
			check(s, false)
		}
	}
}

func TestClaimValidateNamesTheField(t *testing.T) {
	good := guard.Claim{Resource: "r", Token: 1, LeaseID: "a"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, spoil := range map[string]func(*guard.Claim){
		"resource": func(c *guard.Claim) { c.Resource = "" },
		"token":    func(c *guard.Claim) { c.Token = 0 },
		"lease ID": func(c *guard.Claim) { c.LeaseID = "\x00" },
	} {
		c := good
		spoil(&c)
		var invalid *guard.InvalidError
		if err := c.Validate(); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%+v: %v; want the field %s", c, err, field)
		}
	}
}
