package proof

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

var claim = guard.Claim{Resource: "acme:billing-close:2026-04", Token: 34, LeaseID: "019f1b2c"}

const audience = "ledger/acme"

func newVerifier(t testing.TB, source Source) *Verifier {
	t.Helper()
	return NewVerifier(guard.Must(NewKeys(t.Context(), source, nil)))
}

func verify(t testing.TB, v *Verifier, compact string, claim guard.Claim) error {
	return v.Verify(t.Context(), compact, audience, claim)
}

// logTo has slog's default logger write to b until the test has ended.
func logTo(t *testing.T, b io.Writer) {
	testkit.CaptureDefault(t)
	slog.SetDefault(slog.New(slog.NewTextHandler(b, nil)))
}

func sign(t testing.TB, key PrivateKey, c guard.Claim, to string, expires time.Time) string {
	t.Helper()
	compact, err := guard.Must(NewSigner(key, nil)).Sign(c, to, expires)
	testkit.Must(t, err)
	return compact
}

// by makes a proof from any header and payload, with a genuine signature.
func by(key PrivateKey, header, payload string) string {
	signed := encoding.EncodeToString([]byte(header)) + "." + encoding.EncodeToString([]byte(payload))
	return signed + "." + encoding.EncodeToString(ed25519.Sign(ed25519.NewKeyFromSeed(seed(key)), []byte(signed)))
}

func TestSignAndVerify(t *testing.T) {
	key := NewPrivateKey()
	v := newVerifier(t, Static(key.Public()))
	for _, c := range []guard.Claim{
		claim,
		{Resource: "r", Token: 1},
		{Resource: `"\<>&` + "\u2028é", Token: guard.MaxToken, LeaseID: `"`},
		{Resource: strings.Repeat("é", guard.MaxResourceLen/2), Token: 7, LeaseID: strings.Repeat(`\`, guard.MaxLeaseIDLen)},
	} {
		compact := sign(t, key, c, audience, time.Now().Add(time.Hour))
		for range 2 {
			if err := verify(t, v, compact, c); err != nil {
				t.Errorf("%q: %v", c.Resource, err)
			}
		}
	}
}

// The format is fixed: a program in another language reads these bytes.
func TestFormat(t *testing.T) {
	key, err := ParsePrivateKey([]byte(`{"kty":"OKP","crv":"Ed25519","kid":"k1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}`)) // RFC 8037, appendix A.1
	testkit.Must(t, err)
	compact := sign(t, key, claim, audience, time.Unix(1777593600, 1))
	parts := strings.Split(compact, ".")
	for i, want := range []string{
		`{"alg":"EdDSA","kid":"k1","typ":"fence+jwt"}`,
		`{"iss":"fencepost","aud":"ledger/acme","res":"acme:billing-close:2026-04","fen":"34","lid":"019f1b2c","exp":1777593601}`,
	} {
		if got, err := encoding.DecodeString(parts[i]); err != nil || string(got) != want {
			t.Errorf("part %d is %s, %v", i, got, err)
		}
	}
	const signature = "wArlvP7iI7YwO0WiG0SqHlp1X1G0GqHEKj6jTGsqJC7mgZSIY77X4vH5nIiRU-0rgiyZJTpBjJ32O2as8fDzBw"
	if parts[2] != signature {
		t.Errorf("the signature is %s", parts[2])
	}
}

// Everything that is not exactly a proof of this claim is refused, although all
// but the first few are signed by the right key.
func TestRefused(t *testing.T) {
	key := NewPrivateKey()
	other := NewPrivateKey()
	exp := time.Now().Add(time.Hour).Unix()
	header := `{"alg":"EdDSA","kid":"` + key.id + `","typ":"fence+jwt"}`
	payload := func(old, new string) string {
		s := fmt.Sprintf(`{"iss":"fencepost","aud":"ledger/acme","res":"acme:billing-close:2026-04","fen":"34","lid":"019f1b2c","exp":%d}`, exp)
		if !strings.Contains(s, old) {
			t.Fatalf("%s is not in %s", old, s)
		}
		return strings.Replace(s, old, new, 1)
	}
	in := func(s, old, new string) string { return strings.Replace(s, old, new, 1) }
	good := by(key, header, payload("", ""))
	parts := strings.Split(good, ".")
	hs256 := func(secret []byte) string {
		signed := encoding.EncodeToString([]byte(in(header, "EdDSA", "HS256"))) + "." + parts[1]
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(signed))
		return signed + "." + encoding.EncodeToString(mac.Sum(nil))
	}
	public, _ := json.Marshal(jwkOf(key.Public()))
	for name, c := range map[string]struct {
		compact string
		claim   guard.Claim
		want    error
		says    string
	}{
		"nothing":                        {"", claim, guard.ErrMissing, "missing"},
		"a bare token":                   {"34", claim, guard.ErrInvalid, "three parts"},
		"four parts":                     {good + ".", claim, guard.ErrInvalid, "three parts"},
		"oversized":                      {good + strings.Repeat("A", MaxLen), claim, guard.ErrInvalid, "at most 4096"},
		"alg none":                       {encoding.EncodeToString([]byte(in(header, "EdDSA", "none"))) + "." + parts[1] + ".", claim, guard.ErrInvalid, "not signed by EdDSA"},
		"alg none, signed":               {by(key, in(header, "EdDSA", "none"), payload("", "")), claim, guard.ErrInvalid, "not signed by EdDSA"},
		"alg of another case":            {by(key, in(header, "EdDSA", "eddsa"), payload("", "")), claim, guard.ErrInvalid, "not signed by EdDSA"},
		"HS256 with the public key":      {hs256(key.Public().key), claim, guard.ErrInvalid, "not signed by EdDSA"},
		"HS256 with the JWK":             {hs256(public), claim, guard.ErrInvalid, "not signed by EdDSA"},
		"no signature":                   {parts[0] + "." + parts[1] + ".", claim, guard.ErrInvalid, "not genuine"},
		"signature of other content":     {parts[0] + "." + encoding.EncodeToString([]byte(payload(`"34"`, `"35"`))) + "." + parts[2], guard.Claim{Resource: claim.Resource, Token: 35, LeaseID: claim.LeaseID}, guard.ErrInvalid, "not genuine"},
		"another key under this ID":      {by(other, header, payload("", "")), claim, guard.ErrInvalid, "not genuine"},
		"an unknown key":                 {by(other, in(header, key.id, other.id), payload("", "")), claim, guard.ErrInvalid, "not in the set"},
		"a key ID that is a path":        {by(key, in(header, key.id, "../"+key.id), payload("", "")), claim, guard.ErrInvalid, "not in the set"},
		"a key ID that is a URL":         {by(key, in(header, key.id, "https://evil.example/k"), payload("", "")), claim, guard.ErrInvalid, "not in the set"},
		"an empty key ID":                {by(key, in(header, key.id, ""), payload("", "")), claim, guard.ErrInvalid, "not in the set"},
		"a key in the header":            {by(other, in(header, `"typ"`, `"jwk":{},"typ"`), payload("", "")), claim, guard.ErrInvalid, ""},
		"crit":                           {by(key, in(header, `"typ"`, `"crit":"b64","typ"`), payload("", "")), claim, guard.ErrInvalid, "not spelled"},
		"typ JWT":                        {by(key, in(header, "fence+jwt", "JWT"), payload("", "")), claim, guard.ErrInvalid, "not of the type"},
		"no typ":                         {by(key, in(header, `,"typ":"fence+jwt"`, ""), payload("", "")), claim, guard.ErrInvalid, "not spelled"},
		"header member twice":            {by(key, in(header, `"typ"`, `"alg":"none","typ"`), payload("", "")), claim, guard.ErrInvalid, "not spelled"},
		"header member null, then there": {by(key, in(header, `{`, `{"alg":null,`), payload("", "")), claim, guard.ErrInvalid, "not spelled"},
		"another issuer":                 {by(key, header, payload(`"fencepost"`, `"fencepost2"`)), claim, guard.ErrInvalid, "another issuer"},
		"another tenant":                 {by(key, header, payload(`ledger/acme`, `ledger/globex`)), claim, guard.ErrInvalid, "another audience"},
		"a list of audiences":            {by(key, header, payload(`"ledger/acme"`, `["ledger/acme"]`)), claim, guard.ErrInvalid, ""},
		"no audience":                    {by(key, header, payload(`"ledger/acme"`, `""`)), claim, guard.ErrInvalid, "another audience"},
		"another resource":               {by(key, header, payload(`2026-04`, `2026-05`)), claim, guard.ErrMisdirected, "2026-05"},
		"another token":                  {by(key, header, payload(`"34"`, `"35"`)), claim, guard.ErrInvalid, "another fencing token"},
		"another lease":                  {by(key, header, payload(`019f1b2c`, `019f1b2d`)), claim, guard.ErrInvalid, "another lease"},
		"no lease":                       {by(key, header, payload(`019f1b2c`, ``)), claim, guard.ErrInvalid, "another lease"},
		"a token as a number":            {by(key, header, payload(`"34"`, `34`)), claim, guard.ErrInvalid, "not spelled"},
		"a token with a zero":            {by(key, header, payload(`"34"`, `"034"`)), claim, guard.ErrInvalid, "not spelled"},
		"expired":                        {by(key, header, payload(fmt.Sprint(exp), fmt.Sprint(time.Now().Unix()))), claim, guard.ErrInvalid, "expired"},
		"exp as a string":                {by(key, header, payload(fmt.Sprint(exp), fmt.Sprintf(`"%d"`, exp))), claim, guard.ErrInvalid, "not spelled"},
		"exp with an exponent":           {by(key, header, payload(fmt.Sprint(exp), "9e18")), claim, guard.ErrInvalid, "not spelled"},
		"exp beyond int64":               {by(key, header, payload(fmt.Sprint(exp), "9223372036854775808")), claim, guard.ErrInvalid, "not spelled"},
		"no exp":                         {by(key, header, payload(fmt.Sprintf(`,"exp":%d`, exp), "")), claim, guard.ErrInvalid, "not spelled"},
		"payload member twice":           {by(key, header, payload(`"exp"`, `"fen":"35","exp"`)), claim, guard.ErrInvalid, "not spelled"},
		"payload member in capitals":     {by(key, header, payload(`"fen"`, `"FEN"`)), claim, guard.ErrInvalid, "not spelled"},
		"nbf":                            {by(key, header, payload(`"exp"`, `"nbf":1,"exp"`)), claim, guard.ErrInvalid, "not spelled"},
		"members in another order":       {by(key, header, payload(`"fen":"34","lid":"019f1b2c"`, `"lid":"019f1b2c","fen":"34"`)), claim, guard.ErrInvalid, "not spelled"},
		"a space":                        {by(key, header, payload(`,"exp"`, `, "exp"`)), claim, guard.ErrInvalid, "not spelled"},
		"an escape":                      {by(key, header, payload(`acme:`, `\u0061cme:`)), claim, guard.ErrInvalid, "not spelled"},
		"two objects":                    {by(key, header, payload("", "")+"{}"), claim, guard.ErrInvalid, "not spelled"},
		"an array":                       {by(key, header, "["+payload("", "")+"]"), claim, guard.ErrInvalid, "not spelled"},
		"not UTF-8":                      {by(key, header, payload("2026-04", "2026-04\xff")), claim, guard.ErrInvalid, "not spelled"},
		"padding":                        {in(good, ".", "=."), claim, guard.ErrInvalid, "not spelled"},
		"a line break":                   {in(good, ".", "\n."), claim, guard.ErrInvalid, "not spelled"},
		"a line break in the signature":  {good + "\n", claim, guard.ErrInvalid, "base64url"},
		"bits that mean nothing":         {good[:len(good)-1] + string(rune(good[len(good)-1]+1)), claim, guard.ErrInvalid, "base64url"},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVerifier(t, Static(key.Public()))
			for range 2 {
				err := verify(t, v, c.compact, c.claim)
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %v: ...%s", err, c.want, c.says)
				}
				if len(c.compact) > 40 && err != nil && strings.Contains(err.Error(), c.compact[len(c.compact)-40:]) {
					t.Errorf("the error shows the proof: %v", err)
				}
			}
			if err := verify(t, v, good, claim); err != nil { // the control
				t.Errorf("the good one: %v", err)
			}
			// A proof that was verified is accepted for nothing else.
			for _, other := range []guard.Claim{{Resource: "x", Token: 34, LeaseID: claim.LeaseID}, {Resource: claim.Resource, Token: 33, LeaseID: claim.LeaseID}, {Resource: claim.Resource, Token: 34}} {
				if err := verify(t, v, good, other); !errors.Is(err, guard.ErrInvalid) {
					t.Errorf("%+v: %v", other, err)
				}
			}
			for _, other := range []string{"ledger/globex", ""} {
				if err := v.Verify(t.Context(), good, other, claim); !errors.Is(err, guard.ErrInvalid) {
					t.Errorf("the audience %q: %v", other, err)
				}
			}
		})
	}
}

// TestPrivateKeyHidesItself: whatever a key is part of, and however that is
// printed, logged or marshalled, no secret is shown; the control is the key's
// bytes in the place of the key.
func TestPrivateKeyHidesItself(t *testing.T) {
	key := NewPrivateKey()
	signer := guard.Must(NewSigner(key, nil))
	secret := ed25519.NewKeyFromSeed(seed(key))
	if again, err := ParsePrivateKey(key.JWK()); err != nil || again.ID() != key.ID() || !bytes.Equal(seed(again), secret.Seed()) {
		t.Fatalf("%v, %v", again, err)
	}
	type inside struct{ hidden, Shown any }
	type config struct {
		name string
		key  PrivateKey
		Key  *PrivateKey
	}
	shows := func(v any) string {
		var b bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%X", "%q"} {
			fmt.Fprintf(&b, verb+"\n", v)
		}
		for _, h := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
			slog.New(h).With("before", v).Info("start", "value", v, slog.Group("group", "value", v))
		}
		testkit.Check(t, json.NewEncoder(&b).Encode(v))
		for _, part := range [][]byte{secret[:4], secret.Seed()[28:]} {
			for _, form := range []string{"%d", "%x", "%X", "%#x", "%#v"} {
				text := strings.Trim(strings.TrimPrefix(fmt.Sprintf(form, part), "[]byte"), "[]{}")
				if bytes.Contains(b.Bytes(), []byte(text)) {
					return form
				}
			}
		}
		if strings.Contains(b.String(), encoding.EncodeToString(secret.Seed())[:8]) || bytes.Contains(b.Bytes(), secret[:8]) {
			return "text"
		}
		return ""
	}
	for name, v := range map[string]any{
		"the key": key, "a pointer to it": &key, "a slice": []PrivateKey{key}, "a map": map[string]any{"key": key},
		"a field": config{"x", key, &key}, "a pointer to a struct": &config{"x", key, &key},
		"a field of any type": inside{key, key}, "deeper": inside{[]any{inside{&config{"x", key, &key}, signer}}, &inside{key, *signer}},
		"a signer": signer, "a signer's value": *signer,
	} {
		if form := shows(v); form != "" {
			t.Errorf("%s shows the secret as %s", name, form)
		}
	}
	for name, v := range map[string]any{"in a field": inside{secret, 0}, "marshalled": inside{0, secret}, "as text": inside{string(secret), 0}} {
		if shows(v) == "" {
			t.Errorf("the control, %s, shows nothing", name)
		}
	}
}

// seed reads the secret of a key from its JWK.
func seed(key PrivateKey) []byte {
	var k jwk
	if err := json.Unmarshal(key.JWK(), &k); err != nil {
		panic(err)
	}
	return guard.Must(encoding.DecodeString(k.D))
}

func FuzzVerify(f *testing.F) {
	key := NewPrivateKey()
	good := sign(f, key, claim, audience, time.Now().Add(time.Hour))
	v := newVerifier(f, Static(key.Public()))
	f.Add(good)
	f.Add("..")
	f.Add(strings.Replace(good, ".", ".e30", 1))
	f.Fuzz(func(t *testing.T, compact string) {
		err := verify(t, v, compact, claim)
		if (err == nil) != (compact == good) {
			t.Fatalf("%q: %v", compact, err)
		}
	})
}

// A proof ends when its lease does and the leeway is over, however often it was verified.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key := NewPrivateKey()
		v := newVerifier(t, Static(key.Public()))
		for leeway, want := range map[time.Duration]time.Duration{0: 30 * time.Second, time.Minute: 90 * time.Second} {
			compact, err := guard.Must(NewSigner(key, &SignerOptions{Leeway: leeway})).Sign(claim, audience, time.Now().Add(30*time.Second))
			testkit.Must(t, err)
			start := time.Now()
			for err = nil; err == nil; time.Sleep(time.Second) {
				if err = verify(t, v, compact, claim); err != nil && (time.Since(start) != want || !strings.Contains(err.Error(), "expired")) {
					t.Errorf("leeway %v: %v after %v", leeway, err, time.Since(start))
				}
			}
		}
	})
}

func TestMistakes(t *testing.T) {
	key := NewPrivateKey()
	signer := guard.Must(NewSigner(key, nil))
	secret := encoding.EncodeToString(seed(key))
	for name, err := range map[string]error{
		"signer without a key":  second(NewSigner(PrivateKey{}, nil)),
		"keys without a source": second(NewKeys(t.Context(), nil, nil)),
		"sign no claim":         second(signer.Sign(guard.Claim{}, audience, time.Now())),
		"sign no audience":      second(signer.Sign(claim, "", time.Now())),
		"public as private":     second(ParsePrivateKey([]byte(strings.Replace(string(key.JWK()), `"d"`, `"e"`, 1)))),
		"d of another x":        second(ParsePrivateKey([]byte(strings.Replace(string(key.JWK()), secret, encoding.EncodeToString(seed(NewPrivateKey())), 1)))),
	} {
		if !errors.Is(err, guard.ErrInvalid) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
