package s3fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// What a read shows of a write, by the lists of writes and by the store's times; and what
// that makes of it, by what was known before. Each row is one of FORMAT.md's table.
func TestVerdict(t *testing.T) {
	a, b, c := newWriteID(), newWriteID(), newWriteID()
	absent := version{}
	made := func(id writeID, etag string, recent ...writeID) version {
		return version{kind: kindSealed, etag: etag, id: id, recent: recent}
	}
	cut := made(c, "3", b)
	cut.cut = true
	aged := func(v version, age time.Duration) version {
		v.modified = time.Unix(1000, 0)
		v.seen = v.modified.Add(age)
		return v
	}
	undated := aged(made(c, "9"), time.Hour)
	undated.seen = time.Time{}
	type known struct {
		o     outcome
		final bool
	}
	decided := func(o outcome) [3]known { return [3]known{{o, true}, {o, true}, {o, true}} }
	var (
		same     = [3]known{{mismatch, true}, {busy, false}, {unknown, false}} // after a mismatch the store contradicts itself
		unfenced = [3]known{{mismatch, true}, {mismatch, true}, {unknown, true}}
	)
	for name, x := range map[string]struct {
		base, now version
		unread    error
		want      [3]known // after a mismatch, busy, unknown
	}{
		"ours is there":                {absent, made(b, "1"), nil, decided(applied)},
		"ours was there":               {made(a, "1"), made(c, "3", b, a), nil, decided(applied)},
		"nothing happened":             {made(a, "1"), made(a, "1"), nil, same},
		"still absent":                 {absent, absent, nil, same},
		"another over the base":        {made(a, "1"), made(c, "2", a), nil, decided(mismatch)},
		"another created it":           {absent, made(c, "1"), nil, decided(mismatch)},
		"created, but long ago":        {absent, version{kind: kindSealed, etag: "9", id: c, cut: true}, nil, decided(unknown)},
		"the list does not go so far":  {made(a, "1"), made(c, "9"), nil, decided(unknown)},
		"deleted unfenced":             {made(a, "1"), absent, nil, unfenced},
		"overwritten unfenced":         {made(a, "1"), version{kind: kindUnfenced, etag: "7"}, nil, unfenced},
		"ours, and a list that is cut": {absent, cut, nil, decided(applied)},
		// Sent ten seconds ago, by the writer's clock.
		"older than the sending":      {made(a, "1"), aged(made(c, "9"), 12*time.Second+1), nil, decided(mismatch)},
		"perhaps not older":           {made(a, "1"), aged(made(c, "9"), 12*time.Second), nil, decided(unknown)},
		"a foreign one that is older": {made(a, "1"), aged(version{kind: kindUnfenced, etag: "7"}, time.Hour), nil, unfenced},
		"ours, and older":             {made(a, "1"), aged(made(b, "9"), time.Hour), nil, decided(applied)},
		"of an unknown age":           {made(a, "1"), undated, nil, decided(unknown)},
		// What the store did not process has no effect, whether or not that can be seen.
		"unreadable": {made(a, "1"), absent, errors.New("down"), [3]known{{unknown, false}, {refused, true}, {unknown, false}}},
		"damaged":    {made(a, "1"), absent, damaged("k", "?"), [3]known{{unknown, true}, {refused, true}, {unknown, true}}},
	} {
		for i, before := range []outcome{mismatch, busy, unknown} {
			var got known
			if got.o, got.final = verdict(b, &x.base, &x.now, x.unread, before, 10*time.Second); got != x.want[i] {
				t.Errorf("%s, after %d: %v, want %v", name, before, got, x.want[i])
			}
		}
	}
	if past := time.Now().Add(-time.Minute); ago(past) < time.Minute || ago(past.Round(0)) < time.Minute || ago(time.Now()) > time.Minute {
		t.Error("ago")
	}
}

// script is a driver whose results are written down: of puts and of reads, one after the
// other. The last of each is repeated.
type script struct {
	driver
	puts   []result
	reads  []any // an object or an error
	sent   []condition
	looked int
	before func(put int) // is called before the result of a put
}

func (s *script) put(_ context.Context, _ string, over condition, _ payload) result {
	s.sent = append(s.sent, over)
	if s.before != nil {
		s.before(len(s.sent))
	}
	return s.puts[min(len(s.sent), len(s.puts))-1]
}

func (s *script) get(context.Context, string, int, int64) (*object, error) {
	s.looked++
	switch next := s.reads[min(s.looked, len(s.reads))-1].(type) {
	case *object:
		return next, nil
	case func() *object:
		return next(), nil
	case error:
		return nil, next
	}
	panic("no object and no error")
}

// on is the register over a script.
func (s *script) on() *register {
	r := newRegister(s, &Options{MaxBody: 1 << 20})
	r.delay = time.Microsecond
	return r
}

// object is a stored version.
func (w *update) object(etag string) *object {
	user, fencing := split(w.metadata)
	return &object{etag: etag, size: int64(len(w.body)), content: w.body, headers: Headers{Metadata: user}, fencing: fencing}
}

// What becomes of a write, with how many requests, whatever the store and the network do.
// No server is needed for it.
func TestWritesByScript(t *testing.T) {
	t.Parallel()
	first := version{kind: kindSealed, mark: guard.Mark{Token: 4}, id: newWriteID()}.sealed("k", Headers{}, []byte("first"))
	before := first.object(`"1"`)
	base, err := parse("k", before)
	testkit.Must(t, err)
	claim := guard.Claim{Resource: "r", Token: 5}
	mine := func() *update {
		return base.follow(kindSealed, claim, writeID{7}).sealed("k", Headers{}, []byte("mine"))
	}
	made := mine()
	after := made.object(`"2"`)
	other := base.follow(kindSealed, claim, newWriteID()).sealed("k", Headers{}, []byte("other")).object(`"3"`)
	far := version{kind: kindSealed, mark: guard.Mark{Token: 9}, id: newWriteID(), cut: true}.sealed("k", Headers{}, []byte("far")).object(`"4"`)
	broken := first.object(`"1"`)
	broken.content = broken.content[1:]
	broken.size--
	var (
		ok    = result{outcome: applied, etag: `"2"`}
		no    = result{outcome: mismatch, err: errors.New("412")}
		doubt = result{outcome: unknown, err: errors.New("lost")}
		later = result{outcome: busy, err: errors.New("SlowDown")}
		never = result{outcome: refused, err: errors.New("403")}
		down  = errors.New("503")
	)
	for name, c := range map[string]struct {
		puts        []result
		reads       []any
		want        outcome
		sent, looks int
	}{
		"applied":                            {[]result{ok}, nil, applied, 1, 0},
		"applied, response lost":             {[]result{doubt}, []any{after}, applied, 1, 1},
		"request lost":                       {[]result{doubt, ok}, []any{before}, applied, 2, 1},
		"both lost":                          {[]result{doubt, doubt}, []any{before, after}, applied, 2, 2},
		"overtaken":                          {[]result{no}, []any{other}, mismatch, 1, 1},
		"overtaken far":                      {[]result{no}, []any{far}, unknown, 1, 1},
		"lost, then overtaken":               {[]result{doubt}, []any{other}, mismatch, 1, 1},
		"lost, then overtaken far":           {[]result{doubt}, []any{far}, unknown, 1, 1},
		"sent twice below":                   {[]result{no}, []any{after}, applied, 1, 1},
		"denied without reason":              {[]result{no}, []any{before}, mismatch, 1, 1},
		"denied, unreadable, then denied":    {[]result{no}, []any{down, after}, applied, 2, 2},
		"denied and never readable":          {[]result{no}, []any{down}, unknown, maxSends, maxSends + 1},
		"busy, then applied":                 {[]result{later, later, ok}, []any{before}, applied, 3, 2},
		"busy for ever":                      {[]result{later}, []any{before}, refused, maxSends, maxSends},
		"busy, and nothing can be read":      {[]result{later}, []any{down}, refused, 1, 1},
		"busy, then refused":                 {[]result{later, never}, []any{before}, refused, 2, 1},
		"busy, then lost, then busy":         {[]result{later, doubt, later, ok}, []any{before}, applied, 4, 3},
		"lost, then denied by the first":     {[]result{doubt, no}, []any{before, errAbsent}, unknown, 2, 2},
		"refused":                            {[]result{never}, nil, refused, 1, 0},
		"lost, then refused":                 {[]result{doubt, never}, []any{before}, unknown, 2, 2},
		"lost, then refused, but applied":    {[]result{doubt, never}, []any{before, after}, applied, 2, 2},
		"lost for ever":                      {[]result{doubt}, []any{before}, unknown, maxSends, maxSends + 1},
		"lost, and damaged":                  {[]result{doubt}, []any{broken}, unknown, 1, 2},
		"lost, and damaged for a moment":     {[]result{doubt}, []any{broken, after}, applied, 1, 2},
		"lost, and the read is cut":          {[]result{doubt}, []any{&truncatedError{down}, after}, applied, 1, 2},
		"lost, and the object seems absent":  {[]result{doubt}, []any{&failure{err: errors.New("404 of a proxy")}, after}, applied, 2, 2},
		"lost, and the object is gone":       {[]result{doubt}, []any{errAbsent}, unknown, 1, 1},
		"denied, and the object is gone":     {[]result{no}, []any{errAbsent}, mismatch, 1, 1},
		"lost, overwritten by a foreign one": {[]result{doubt}, []any{&object{etag: `"5"`}}, unknown, 1, 2},
		"lost, and one page is read":         {[]result{doubt}, []any{&object{etag: `"5"`}, after}, applied, 1, 2},
	} {
		s := &script{puts: c.puts, reads: c.reads}
		now, got, err := s.on().compareAndSwap(t.Context(), "k", &base, mine(), false)
		if got != c.want || len(s.sent) != c.sent || s.looked != c.looks || err == nil && got != applied {
			t.Errorf("%s: outcome %d after %d sendings and %d reads, want %d, %d and %d: %v", name, got, len(s.sent), s.looked, c.want, c.sent, c.looks, err)
		}
		for _, over := range s.sent {
			if over != `"1"` {
				t.Errorf("%s: sent over %s", name, over)
			}
		}
		if got == applied && now.id != (writeID{7}) {
			t.Errorf("%s: the version is %+v", name, now)
		}
	}
}

// A write whose context ends is looked for once more, and what has not left is not unclear.
func TestEndOfContextByScript(t *testing.T) {
	t.Parallel()
	base := version{kind: kindSealed, etag: `"1"`, id: newWriteID()}
	next := base.follow(kindSealed, guard.Claim{Resource: "r", Token: 5}, writeID{7})
	mine := func() *update { return next.sealed("k", Headers{}, nil) }
	other := base.follow(kindSealed, guard.Claim{Resource: "r", Token: 6}, newWriteID()).sealed("k", Headers{}, nil).object(`"3"`)
	for name, c := range map[string]struct {
		at    int // the sending at which it ends, 0 for before
		put   outcome
		read  any
		want  outcome
		looks int
	}{
		"before":                     {0, unknown, nil, refused, 0},
		"lost, and applied":          {1, unknown, mine().object(`"2"`), applied, 1},
		"lost, and overtaken":        {1, unknown, other, mismatch, 1},
		"lost, and unreadable":       {1, unknown, errors.New("down"), unknown, 1},
		"denied below, and applied":  {1, mismatch, mine().object(`"2"`), applied, 1},
		"denied, and unreadable":     {1, mismatch, errors.New("down"), unknown, 1},
		"busy":                       {1, busy, nil, refused, 0},
		"refused":                    {1, refused, nil, refused, 0},
		"applied, and then it ended": {1, applied, nil, applied, 0},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := &script{puts: []result{{outcome: c.put, etag: `"2"`, err: errors.New("?")}}, reads: []any{c.read}, before: func(int) { cancel() }}
		if c.at == 0 {
			cancel()
		}
		_, got, _ := s.on().compareAndSwap(ctx, "k", &base, mine(), false)
		if got != c.want || s.looked != c.looks || len(s.sent) != c.at {
			t.Errorf("%s: outcome %d after %d reads, want %d after %d", name, got, s.looked, c.want, c.looks)
		}
	}
}

// The store refuses a condition that its reads show to be true, as where something sends a write
// twice and a cache serves the reads, and then the context ends, or the store refuses the next
// sending: the write may be stored, and no error may promise that it is not. The controls are
// reads that show it overtaken.
func TestP6AfterAContradictionIsUnknown(t *testing.T) {
	t.Parallel()
	first := version{kind: kindSealed, mark: guard.Mark{Token: 4}, id: newWriteID()}.sealed("k", Headers{}, []byte("first"))
	before := first.object(`"1"`)
	other := first.next.follow(kindSealed, guard.Claim{Resource: "r", Token: 4}, newWriteID()).sealed("k", Headers{}, nil).object(`"2"`)
	for reason, then := range map[guard.Reason]*object{guard.ReasonOutcomeUnknown: before, guard.ReasonUnavailable: other} {
		for _, ends := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			s := &script{puts: []result{{outcome: mismatch, err: errors.New("412")}, {outcome: refused, err: errors.New("403")}}}
			s.reads = []any{before, func() *object {
				if ends {
					cancel()
				}
				return then
			}}
			o := &Objects{fenced{b: &Bucket{register: s.on()}, kind: kindSealed, rule: guard.SameOrNewer}}
			o.b.opts.MaxBody = 100
			err := o.Put(ctx, guard.Claim{Resource: "r", Token: 5}, "k", []byte("mine"), nil)
			if want := map[bool]int{true: 1, false: 2}[ends]; guard.ReasonOf(err) != reason || len(s.sent) != want {
				t.Errorf("ends %v: %v after %d sendings, want %q after %d", ends, err, len(s.sent), reason, want)
			}
			cancel()
		}
	}
}

// A time that a successor or a collector relies on is the store's.
func TestTimesAreTheStores(t *testing.T) {
	t.Parallel()
	at := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	base := version{kind: kindSealed, etag: `"1"`}
	for _, date := range []time.Time{at, {}} {
		s := &script{puts: []result{{outcome: applied, etag: `"2"`, date: date}}}
		r := s.on()
		next := base.follow(kindSealed, guard.Claim{Resource: "r", Token: 5}, writeID{7})
		now, _, _ := r.compareAndSwap(t.Context(), "k", &base, next.sealed("k", Headers{}, nil), false)
		if kept, _ := r.cached("k"); !now.modified.Equal(date) || !kept.modified.Equal(date) {
			t.Errorf("a write that the store dated %v is of %v, remembered as of %v", date, now.modified, kept.modified)
		}
	}
}

// What is remembered of an object, and which others make room for it.
func TestRemember(t *testing.T) {
	b := newRegister(nil, &Options{})
	b.capacity = 2
	good := version{kind: kindSealed, etag: `"e"`, body: []byte("body"), headers: &Headers{}}
	b.remember("k", good)
	if s, ok := b.cached("k"); !ok || s.etag != `"e"` || s.body != nil || s.headers != nil {
		t.Errorf("remembered is %+v, %v", s, ok)
	}
	for name, change := range map[string]func(*version){
		"absent": func(s *version) { s.kind = kindAbsent }, "unfenced": func(s *version) { s.kind = kindUnfenced },
	} {
		s := good
		change(&s)
		b.remember("k", good)
		b.remember("k", s)
		if _, ok := b.cached("k"); ok {
			t.Errorf("%s is remembered", name)
		}
	}
	for _, k := range []kind{kindPlain, kindSealed, kindGzip, kindPointer, kindTombstone} {
		s := good
		s.kind = k
		b.remember("k", s)
		if s, ok := b.cached("k"); !ok || (s.body != nil) != (k == kindPointer || k == kindTombstone) {
			t.Errorf("kind %s: %v, %q", kindNames[k], ok, s.body)
		}
	}
	b.forget("k")
	if _, ok := b.cached("k"); ok {
		t.Error("what is forgotten is remembered")
	}
	for i := range 5 {
		b.remember(fmt.Sprint(i), good)
		b.remember(fmt.Sprint(i), good) // what is there takes no room
		if _, ok := b.cached(fmt.Sprint(i)); !ok || len(b.cache) != min(i+1, 2) {
			t.Errorf("%d are remembered after %d", len(b.cache), i+1)
		}
	}
}

// The cases of the format's table, and of modes that must not be mixed.
func TestFormatCases(t *testing.T) {
	text, err := os.ReadFile("testdata/cases.json")
	testkit.Must(t, err)
	type side struct {
		ETag  string
		State *struct {
			Kind   string
			Write  string
			Recent []string
			Cut    bool
		}
	}
	var cases []struct {
		Name, Do, Write, Verdict, Writer, Object string
		Base, Now                                side
		Doubt, Mixed, Older                      bool
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) < 30 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	id := func(text string) writeID {
		id, ok := parseWriteID(text)
		if !ok {
			t.Fatalf("write ID %q", text)
		}
		return id
	}
	stateOf := func(s side) *version {
		out := &version{etag: s.ETag}
		if s.State == nil {
			return out
		}
		if s.State.Kind == "unfenced" {
			out.kind = kindUnfenced
			return out
		}
		out.kind, out.id, out.cut = kindSealed, id(s.State.Write), s.State.Cut
		for _, text := range s.State.Recent {
			out.recent = append(out.recent, id(text))
		}
		return out
	}
	kinds := map[string]kind{}
	for k, name := range kindNames {
		kinds[name] = k
	}
	for _, c := range cases {
		if c.Do == "mixed" {
			o := &fenced{kind: kinds[c.Writer]}
			if err := o.sameMode(guard.Claim{}, "k", &version{kind: kinds[c.Object]}); (err != nil) != c.Mixed {
				t.Errorf("%s: %v", c.Name, err)
			}
			continue
		}
		before, now := mismatch, stateOf(c.Now)
		if c.Doubt {
			before = unknown
		}
		if c.Older {
			now.modified = time.Unix(1, 0)
			now.seen = now.modified.Add(time.Minute)
		}
		got, base := "again", stateOf(c.Base)
		if o, final := verdict(id(c.Write), base, now, nil, before, 0); final {
			got = map[outcome]string{applied: "written", mismatch: "decide", unknown: "unknown"}[o]
			if o == mismatch && now.etag == base.etag {
				got = "contradiction"
			}
		}
		if got != c.Verdict {
			t.Errorf("%s: %s, want %s", c.Name, got, c.Verdict)
		}
	}
}

// The defaults, and the options at their limits.
func TestOptionLimits(t *testing.T) {
	for maxBody, ok := range map[int64]bool{-1: false, 1: true, 5<<30 - 4096: true, 5<<30 - 4095: false} {
		if _, err := (Options{MaxBody: maxBody}).withDefaults(); (err == nil) != ok {
			t.Errorf("MaxBody %d: %v", maxBody, err)
		}
	}
	got, err := Options{}.withDefaults()
	if err != nil || got.MaxBody != 64<<20 || got.GracePeriod != time.Hour ||
		got.RequestTimeout != time.Minute || got.Prefix != ".fencepost/" {
		t.Errorf("the defaults are %+v, %v", got, err)
	}
	for prefix, want := range map[string]string{"a": "a/.fencepost/", "a/": "a/.fencepost/", strings.Repeat("p", 512): strings.Repeat("p", 512) + "/.fencepost/"} {
		if got, err := (Options{Prefix: prefix}).withDefaults(); err != nil || got.Prefix != want {
			t.Errorf("the prefix is %q, %v", got.Prefix, err)
		}
	}
}

// When a kept probe replaces a new one, and when it is an error.
func TestProbeIsUsable(t *testing.T) {
	now := time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	bucket := func(endpoint string) *Bucket {
		return &Bucket{endpoint: endpoint, name: "b"}
	}
	good := Report{Version: reportVersion, Endpoint: "e", Bucket: "b", At: now, OpaqueETags: true}
	for name, c := range map[string]struct {
		b      *Bucket
		change func(*Report)
		usable bool
		says   string // of the error
	}{
		"fresh":              {bucket("e"), func(*Report) {}, true, ""},
		"as old as may be":   {bucket("e"), func(p *Report) { p.At = now.Add(-maxReportAge) }, true, ""},
		"older":              {bucket("e"), func(p *Report) { p.At = now.Add(-maxReportAge - 1) }, false, ""},
		"another's clock":    {bucket("e"), func(p *Report) { p.At = now.Add(time.Hour - 1) }, true, ""},
		"an hour ahead":      {bucket("e"), func(p *Report) { p.At = now.Add(time.Hour) }, false, ""},
		"older version":      {bucket("e"), func(p *Report) { p.Version-- }, false, ""},
		"newer version":      {bucket("e"), func(p *Report) { p.Version++ }, false, ""},
		"no endpoint":        {bucket(""), func(*Report) {}, false, "does not tell its endpoint"},
		"no endpoint at all": {bucket(""), func(p *Report) { p.Endpoint = "" }, false, "does not tell its endpoint"},
		"another endpoint":   {bucket("f"), func(*Report) {}, false, `another endpoint than the client's, "f"`},
		"another bucket":     {bucket("e"), func(p *Report) { p.Bucket = "c" }, false, `another bucket than "b"`},
	} {
		p := good
		c.change(&p)
		usable, err := p.usable(c.b, now)
		if usable != c.usable || (err != nil) != (c.says != "") || err != nil && (!errors.Is(err, guard.ErrInvalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, %v", name, usable, err)
		}
	}
	base := aws.String("https://e")
	for name, c := range map[string]struct {
		client S3
		want   string
	}{
		"no client of the SDK":    {storeOf{}, ""},
		"endpoint":                {s3.New(s3.Options{BaseEndpoint: base, Region: "r"}), "https://e"},
		"region":                  {s3.New(s3.Options{Region: "r"}), "aws r"},
		"resolver":                {s3.New(s3.Options{Region: "r", EndpointResolverV2: ownResolver{}}), ""},
		"resolver with an option": {s3.New(s3.Options{Region: "r", EndpointResolverV2: ownResolver{}, BaseEndpoint: base}), ""},
		//lint:ignore SA1019 clients that use the deprecated field exist
		"older resolver": {s3.New(s3.Options{Region: "r", EndpointResolver: s3.EndpointResolverFromURL("https://e")}), ""},
	} {
		if got := endpointOf(c.client); got != c.want {
			t.Errorf("%s: the endpoint is %q, want %q", name, got, c.want)
		}
	}
}

// ownResolver is an endpoint resolver of the caller's.
type ownResolver struct{ s3.EndpointResolverV2 }
