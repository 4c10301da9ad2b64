package s3fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// says checks an error: "" for none, "!" before the reason for refusing a store,
// else the text of an error that says nothing about the store.
func says(t *testing.T, name string, err error, want string) {
	t.Helper()
	var u *UnsuitableError
	problem, refuses := strings.CutPrefix(want, "!")
	switch {
	case want == "":
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	case errors.As(err, &u) != refuses:
		t.Errorf("%s: %v, want it to say %q", name, err, want)
	case refuses && !strings.Contains(u.Check+": "+u.Problem, problem), !refuses && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: %v, want it to say %q", name, err, want)
	}
}

// Each answer to a write of the probe that must get through, or must not.
func TestProbeExpects(t *testing.T) {
	ctx := t.Context()
	later := answered{403, "RequestTimeTooSkewed"}
	for name, c := range map[string]struct {
		through bool
		etag    string  // the condition, "" to create
		answers []error // in turn; nil is applied; then it is as it should be
		there   bool    // the write had been applied before the second answer
		sends   int
		want    string
	}{
		"let through":                   {true, "", nil, false, 1, ""},
		"let through, though refusable": {false, "", []error{nil}, false, 1, "!c: a write was accepted that had to be refused"},
		"refused":                       {false, "", []error{answered{412, ""}}, false, 1, ""},
		"refused, wrongly":              {true, "", []error{answered{412, ""}}, false, 1, "!c: a write was refused that had to be accepted"},
		"no such object":                {false, `"e"`, []error{answered{404, "NoSuchKey"}}, false, 1, ""},
		"no such object to create":      {false, "", []error{answered{404, "NoSuchKey"}}, false, 1, "404 NoSuchKey"},
		"lost, then refused":            {true, "", []error{answered{500, ""}, answered{412, ""}}, true, 2, ""},
		"lost, then refused wrongly":    {true, "", []error{answered{500, ""}, answered{412, ""}}, false, 2, "!c: a write was refused that had to be accepted"},
		"not implemented":               {true, "", []error{answered{501, "NotImplemented"}}, false, 1, "!c: 501 NotImplemented"},
		"denied":                        {true, "", []error{answered{403, "AccessDenied"}}, false, 1, "403 AccessDenied"},
		"denied, though refusable":      {false, "", []error{answered{403, "AccessDenied"}}, false, 1, "403 AccessDenied"},
		"clock":                         {true, "", []error{later}, false, 2, ""},
		"busy 7 times":                  {true, "", repeated(7, answered{503, ""}), false, 8, ""},
		"busy 8 times":                  {true, "", repeated(8, answered{503, ""}), false, 8, "503"},
		"busy, then refused":            {false, "", []error{answered{503, ""}, answered{412, ""}}, false, 2, ""},
	} {
		m := &memory{}
		p := m.prober()
		sends := 0
		m.onPut = func(in *s3.PutObjectInput) (string, error, bool) {
			sends++
			if sends > len(c.answers) {
				return "", nil, false
			}
			err := c.answers[sends-1]
			if sends == 1 && c.there {
				m.there, m.body, m.etag = true, []byte("mine"), `"mine"`
			} else if sends == 1 && len(c.answers) > 1 {
				m.there, m.body, m.etag = len(c.answers) == 2 && c.through && err == error(answered{500, ""}), []byte("other"), `"other"`
			}
			return `"etag"`, err, true
		}
		got, err := p.expect(ctx, "c", p.key, c.etag, c.through, []byte("mine"), nil)
		says(t, name, err, c.want)
		if sends != c.sends {
			t.Errorf("%s: sent %d times, want %d", name, sends, c.sends)
		}
		if want := c.want == "" && c.through; (got != "") != want || want && got != m.etag {
			t.Errorf("%s: the ETag is %q, the object's %q", name, got, m.etag)
		}
	}
	for _, etag := range []string{"", `""`} {
		m := &memory{onPut: func(*s3.PutObjectInput) (string, error, bool) { return etag, nil, true }}
		_, err := m.prober().expect(ctx, "c", "k", "", true, nil, nil)
		says(t, "an answer with the ETag "+etag, err, "!c: the answer to a write has no ETag")
	}
	// An ended context ends the repetitions; a read that fails is not the store's fault.
	ended, cancel := context.WithCancel(ctx)
	cancel()
	m := &memory{onPut: func(*s3.PutObjectInput) (string, error, bool) { return "", answered{503, ""}, true }}
	_, err := m.prober().expect(ended, "c", "k", "", true, nil, nil)
	says(t, "an ended context", err, "503")
	if m.writes != 1 {
		t.Errorf("sent %d times after the end", m.writes)
	}
	m = &memory{there: true, etag: `"e"`, onGet: func(*s3.GetObjectOutput) error { return answered{403, "AccessDenied"} }}
	_, err = m.prober().sent(ctx, "c", "k", nil, answered{412, ""})
	says(t, "what cannot be read", err, "403 AccessDenied")
	_, err = m.prober().etag(ctx)
	says(t, "what cannot be read", err, "403 AccessDenied")
}

func repeated(n int, err error) (out []error) {
	for range n {
		out = append(out, err)
	}
	return out
}

// The sequential checks with a store that is wrong in only one step.
func TestProbeSequentialChecks(t *testing.T) {
	ctx := t.Context()
	conditions := func(p *prober) error { return p.conditions(ctx) }
	metadata := func(p *prober) error { return p.metadata(ctx) }
	ranges := func(p *prober) error { return p.ranges(ctx) }
	opaque := func(p *prober) error { _, err := p.opaque(ctx); return err }
	deletion := func(p *prober) error { return p.deletion(ctx) }
	deleteRound := func(p *prober) error { return p.deleteRound(ctx, "c") }
	denied := answered{403, "AccessDenied"}
	nthPut := func(n int, etag string, err error) func(*memory) {
		return func(m *memory) {
			m.onPut = func(*s3.PutObjectInput) (string, error, bool) { return etag, err, m.writes == n }
		}
	}
	nthGet := func(n int, change func(*s3.GetObjectOutput) error) func(*memory) {
		return func(m *memory) {
			gets := 0
			m.onGet = func(out *s3.GetObjectOutput) error {
				if gets++; gets == n {
					return change(out)
				}
				return nil
			}
		}
	}
	refuse := func(*s3.GetObjectOutput) error { return denied }
	for name, c := range map[string]struct {
		check func(*prober) error
		wrong func(*memory)
		want  string
	}{
		"conditions":                 {conditions, func(*memory) {}, ""},
		"1st write refused":          {conditions, nthPut(1, "", answered{412, ""}), "!If-None-Match: *: a write was refused"},
		"1st write denied":           {conditions, nthPut(1, "", denied), "403"},
		"created twice":              {conditions, nthPut(2, `"x"`, nil), "!If-None-Match: * over an object: a write was accepted"},
		"another ETag":               {conditions, nthPut(3, `"x"`, nil), "!If-Match with another ETag: a write was accepted"},
		"the right ETag refused":     {conditions, nthPut(4, "", answered{412, ""}), "!If-Match with the right ETag: a write was refused"},
		"one ETag for two bodies":    {conditions, nthPut(4, `"e1"`, nil), `!If-Match: two bodies have the same ETag "\"e1\""`},
		"an old ETag":                {conditions, nthPut(5, `"x"`, nil), "!If-Match with an old ETag: a write was accepted"},
		"If-Match without an object": {conditions, nthPut(6, `"x"`, nil), "!If-Match without an object: a write was accepted"},
		"metadata":                   {metadata, func(*memory) {}, ""},
		"metadata, read denied":      {metadata, func(m *memory) { m.there, m.etag = true, `"e"`; nthGet(1, refuse)(m) }, "403"},
		"metadata, write denied":     {metadata, nthPut(2, "", denied), "403"},
		"metadata, HEAD denied":      {metadata, func(m *memory) { m.onHead = func(*s3.HeadObjectOutput) error { return denied } }, "403"},
		"metadata not kept": {metadata, func(m *memory) {
			m.onHead = func(out *s3.HeadObjectOutput) error { out.Metadata = nil; return nil }
		}, "!metadata: what was written with an object is not read with it"},
		"metadata kept": {metadata, func(m *memory) {
			m.onHead = func(out *s3.HeadObjectOutput) error {
				out.Metadata = map[string]string{"Fencepost-Probe-A": "1", "fencepost-probe-b": "2"}
				return nil
			}
		}, "!metadata: an overwritten object's metadata is still there"},
		"ranges":               {ranges, func(*memory) {}, ""},
		"ranges, read denied":  {ranges, func(m *memory) { m.there, m.etag = true, `"e"`; nthGet(1, refuse)(m) }, "403"},
		"ranges, write denied": {ranges, nthPut(1, "", denied), "403"},
		"ranges, tail denied":  {ranges, nthGet(1, refuse), "403"},
		"416 to a long one":    {ranges, nthGet(1, func(*s3.GetObjectOutput) error { return answered{416, ""} }), "!of 12288: were refused with 416"},
		"416 to a short one":   {ranges, nthGet(5, func(*s3.GetObjectOutput) error { return answered{416, ""} }), "!of 20: were refused with 416"},
		"other bytes": {ranges, nthGet(1, func(out *s3.GetObjectOutput) error {
			out.Body = io.NopCloser(bytes.NewReader(make([]byte, tailSize-1)))
			out.Body = io.NopCloser(io.MultiReader(out.Body, strings.NewReader("x")))
			return nil
		}), "!are not what was written"},
		"another size": {ranges, nthGet(1, func(out *s3.GetObjectOutput) error {
			out.ContentRange = aws.String(fmt.Sprintf("bytes %d-%d/%d", tailSize, 2*tailSize-1, 2*tailSize))
			return nil
		}), "!are not what was written"},
		"the first bytes of a short one": {ranges, nthGet(5, func(out *s3.GetObjectOutput) error {
			out.Body = io.NopCloser(io.MultiReader(strings.NewReader("F"), io.LimitReader(discardFirst(out.Body), 19)))
			return nil
		}), "!are not what was written"},
		"another ETag of a range": {ranges, nthGet(1, func(out *s3.GetObjectOutput) error {
			out.ETag = aws.String(`"x"`)
			return nil
		}), `!came with the ETag "\"x\"", the write's was "\"e1\""`},
		"no ETag of a range":   {ranges, nthGet(1, func(out *s3.GetObjectOutput) error { out.ETag = nil; return nil }), "on which no write can be conditional"},
		"opaque":               {opaque, func(*memory) {}, ""},
		"opaque, read denied":  {opaque, func(m *memory) { m.there, m.etag = true, `"e"`; nthGet(1, refuse)(m) }, "403"},
		"opaque, write denied": {opaque, nthPut(2, "", denied), "403"},
		"deletion":             {deletion, func(*memory) {}, ""},
		"deletion of another":  {deletion, func(m *memory) { m.onDelete = func(*s3.DeleteObjectInput) (error, bool) { return nil, true } }, "!a deletion was accepted that had to be refused"},
		"deletion not implemented": {deletion, func(m *memory) {
			m.onDelete = func(*s3.DeleteObjectInput) (error, bool) { return answered{501, "NotImplemented"}, true }
		}, "!DELETE with If-Match: 501 NotImplemented"},
		"deletion unanswered": {deletion, func(m *memory) {
			m.onDelete = func(*s3.DeleteObjectInput) (error, bool) { return answered{503, ""}, true }
		}, "503"},
		"deletion in spite of a refusal": {deletion, func(m *memory) {
			m.onDelete = func(*s3.DeleteObjectInput) (error, bool) { m.there = false; return answered{412, ""}, true }
		}, "!the object of a deletion that was refused is gone"},
		"deletion, read denied": {deletion, nthGet(1, refuse), "403"},
		"deletion refused wrongly": {deletion, func(m *memory) {
			m.onDelete = func(in *s3.DeleteObjectInput) (error, bool) { return answered{412, ""}, true }
		}, "!a deletion was refused that had to be accepted: 412"},
		"deletion denied later": {deletion, func(m *memory) {
			m.onDelete = func(in *s3.DeleteObjectInput) (error, bool) { return denied, *in.IfMatch == m.etag }
		}, "!a deletion was refused that had to be accepted: 403"},
		"deletion lost": {deletion, func(m *memory) {
			m.onDelete = func(in *s3.DeleteObjectInput) (error, bool) { return answered{500, ""}, *in.IfMatch == m.etag }
		}, ""},
		"created after a deletion, denied": {deletion, nthPut(1, "", denied), "403"},
		"racing writes denied":             {deletion, nthPut(3, "", denied), "403"},
		"racing writes skewed":             {deletion, nthPut(3, "", answered{403, "RequestTimeTooSkewed"}), "403"},
		"racing writes busy":               {deletion, nthPut(3, "", answered{503, ""}), ""},
		"a racing write lost": {deletion, nthPut(3, `"x"`, nil),
			"!a racing write was accepted, and deleted on the condition that it was not there"},
		"round of deletions, read denied": {deleteRound, nthGet(1, refuse), "403"},
		"round of deletions, last read denied": {deleteRound, func(m *memory) {
			m.onDelete = func(*s3.DeleteObjectInput) (error, bool) { return answered{412, ""}, true }
			nthGet(2, refuse)(m)
		}, "403"},
	} {
		m := &memory{}
		if strings.Contains(name, "delet") || strings.Contains(name, "racing") || strings.Contains(name, "round") {
			m.there, m.etag = true, `"e"`
		}
		c.wrong(m)
		says(t, name, c.check(m.prober()), c.want)
		if m.opened != m.closed && !strings.Contains(name, "bytes") {
			t.Errorf("%s: %d bodies were opened, %d closed", name, m.opened, m.closed)
		}
	}
	// Opaque means three ETags for three writes of one body.
	for _, c := range []struct {
		etags [3]string
		want  bool
	}{{[3]string{"a", "b", "c"}, true}, {[3]string{"a", "b", "b"}, false}, {[3]string{"a", "a", "b"}, false}, {[3]string{"a", "b", "a"}, false}, {[3]string{"a", "a", "a"}, false}} {
		m := &memory{}
		var fields []string
		m.onPut = func(in *s3.PutObjectInput) (string, error, bool) {
			fields = append(fields, in.Metadata["fencepost-probe"])
			return c.etags[m.writes-1], nil, true
		}
		p := m.prober()
		got, err := p.opaque(ctx)
		if got != c.want || err != nil || len(p.seen) != 1 || p.seen[0].Property != "ETags" || strings.HasPrefix(p.seen[0].Seen, "not opaque") == got || strings.Join(fields, "") != "122" {
			t.Errorf("%v: %v, %v, %+v, %v", c.etags, got, err, p.seen, fields)
		}
	}
}

func discardFirst(r io.Reader) io.Reader {
	_, _ = r.Read(make([]byte, 1))
	return r
}

// A probe that may not delete, or not write, says so before it writes more.
func TestProbeMayDelete(t *testing.T) {
	m := &memory{onPut: func(*s3.PutObjectInput) (string, error, bool) { return "", answered{403, "AccessDenied"}, true }}
	says(t, "no right to write", m.prober().mayDelete(t.Context()), "403 AccessDenied")
	m = &memory{onDelete: func(*s3.DeleteObjectInput) (error, bool) { return answered{403, "AccessDenied"}, true }}
	says(t, "no right to delete", m.prober().mayDelete(t.Context()), `the probe may not delete what it writes; allow s3:DeleteObject below ".fencepost/probe/"`)
	m = &memory{}
	says(t, "both", m.prober().mayDelete(t.Context()), "")
	if m.there || m.writes != 1 {
		t.Errorf("%d writes, the object is there: %v", m.writes, m.there)
	}
}

// Each outcome of one race of writers.
func TestProbeRound(t *testing.T) {
	const key = ".fencepost/probe/x"
	ctx := t.Context()
	for name, c := range map[string]struct {
		wrong func(*memory)
		ok    bool
		want  string
	}{
		"one wins": {func(*memory) {}, true, ""},
		"two win": {func(m *memory) {
			m.onPut = func(*s3.PutObjectInput) (string, error, bool) { return `"x"`, nil, m.writes == 2 }
		}, false, "!racing writers: 2 of 16 writes on one condition were accepted"},
		"all busy": {func(m *memory) {
			m.there, m.etag, m.body = true, `"e"`, nil
			m.onPut = func(*s3.PutObjectInput) (string, error, bool) { return "", answered{503, ""}, true }
		}, false, ""},
		"one denied": {func(m *memory) {
			m.onPut = func(*s3.PutObjectInput) (string, error, bool) {
				return "", answered{403, "AccessDenied"}, m.writes == 9
			}
		}, false, "403 AccessDenied"},
		"one skewed": {func(m *memory) {
			m.onPut = func(*s3.PutObjectInput) (string, error, bool) {
				return "", answered{403, "RequestTimeTooSkewed"}, m.writes == 9
			}
		}, false, "RequestTimeTooSkewed"},
		"cannot be read": {func(m *memory) { m.onGet = func(*s3.GetObjectOutput) error { return answered{403, "AccessDenied"} } }, false, "403 AccessDenied"},
		"another is stored": {func(m *memory) {
			m.onGet = func(out *s3.GetObjectOutput) error {
				out.Body, out.ContentLength = &closing{strings.NewReader("other"), m}, nil
				return nil
			}
		}, false, "!the write that was accepted is not what is stored"},
		"another ETag": {func(m *memory) {
			m.onGet = func(out *s3.GetObjectOutput) error { out.ETag = aws.String(`"x"`); return nil }
		}, false,
			`!the ETag of a write, "\"e1\"", is not the stored object's, "\"x\""`},
	} {
		m := &memory{}
		c.wrong(m)
		etag, ok, err := m.prober().round(ctx, key, "")
		says(t, name, err, c.want)
		if ok != c.ok || c.ok && etag != m.etag || c.want == "" && etag == "" {
			t.Errorf("%s: %q, %v; the object's is %q", name, etag, ok, m.etag)
		}
		if m.writes != probeWriters || m.opened != m.closed {
			t.Errorf("%s: %d writes, %d bodies of %d closed", name, m.writes, m.closed, m.opened)
		}
	}
}

// What races send: exactly the stated rounds; races that nobody wins end.
func TestProbeRaceRounds(t *testing.T) {
	m := &memory{there: true, etag: `"e"`}
	created := map[string]int{}
	m.onPut = func(in *s3.PutObjectInput) (string, error, bool) {
		if in.IfNoneMatch == nil {
			return "", nil, false
		}
		created[*in.Key]++
		m.there = created[*in.Key] > 1 // each key's first creation gets through
		return "", nil, false
	}
	p := m.prober()
	if err := p.race(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	// The store has one object for all keys, so that the first round of those that
	// overwrite is on an ETag that is gone, and nobody wins it.
	if m.writes != (2*burstRounds+1)*probeWriters || len(created) != burstRounds || len(p.keys) != burstRounds {
		t.Errorf("%d writes, %d keys created, %d to be deleted", m.writes, len(created), len(p.keys))
	}
	for i := range burstRounds {
		if want := fmt.Sprintf("%s-%d/0/1/2/3/4/5/6/7/8/9/a/b/c/d/e/f", p.key, burstRounds+i); created[want] != probeWriters {
			t.Errorf("%s: %d writes", want, created[want])
		}
	}
	m = &memory{there: true, etag: `"e"`, onPut: func(*s3.PutObjectInput) (string, error, bool) { return "", answered{503, ""}, true }}
	if err := m.prober().race(t.Context(), 0); !errors.Is(err, errUndecided) || m.writes != 4*burstRounds*probeWriters {
		t.Errorf("a race that nobody wins: %v after %d writes", err, m.writes)
	}
	denied := answered{403, "AccessDenied"}
	m = &memory{there: true, etag: `"e"`, onGet: func(*s3.GetObjectOutput) error { return denied }}
	says(t, "cannot be read", m.prober().race(t.Context(), 0), "403")
	if m.writes != 0 {
		t.Errorf("%d writes", m.writes)
	}
}

// What each way of reading during writes sees.
func TestProbeSight(t *testing.T) {
	ctx := t.Context()
	for try, how := range []string{"GET of the last bytes", "GET", "HEAD", "GET of the last bytes"} {
		for name, c := range map[string]struct {
			status int
			etag   string
			want   string
			ok     bool
		}{
			"seen": {0, `"e"`, "", true}, "404": {404, "", "!reads beside writes: " + how + " of an object that is there was answered with 404", false},
			"416": {416, "", "!was answered with 416", false}, "403": {403, "", "", false}, "503": {503, "", "", false}, "417": {417, "", "", false},
			"weak": {0, `W/"e"`, `!` + how + ` was answered with the ETag`, false},
		} {
			m := &memory{there: true, etag: c.etag, body: versionBody(7), fields: map[string]string{"Fencepost-Probe": "7"}}
			fail := error(nil)
			if c.status != 0 {
				fail = answered{c.status, "?"}
			}
			m.onGet = func(*s3.GetObjectOutput) error { return fail }
			m.onHead = func(*s3.HeadObjectOutput) error { return fail }
			s, ok, err := m.prober().sight(ctx, try, 5)
			says(t, how+", "+name, err, c.want)
			body := "7"
			if how == "HEAD" {
				body = ""
			}
			if want := (sighting{how: how, after: 5, etag: `"e"`, meta: "7", body: body}); ok != c.ok || ok && s != want {
				t.Errorf("%s, %s: %+v, %v", how, name, s, ok)
			}
			if m.opened != m.closed {
				t.Errorf("%s, %s: %d bodies opened, %d closed", how, name, m.opened, m.closed)
			}
		}
	}
	// A body that breaks is lost, and closed.
	m := &memory{there: true, etag: `"e"`, body: versionBody(7)}
	m.onGet = func(out *s3.GetObjectOutput) error { out.ContentRange = aws.String("bytes 1-2/3"); return nil }
	if _, ok, err := m.prober().sight(ctx, 0, 0); ok || err != nil || m.closed != 1 {
		t.Errorf("a wrong range: %v, %v, %d closed", ok, err, m.closed)
	}
}

// What reads during writes may see, and what the report counts.
func TestProbeJudge(t *testing.T) {
	etags := map[string]int{`"5"`: 5, `"6"`: 6}
	good := sighting{how: "GET", after: 5, etag: `"6"`, meta: "6", body: "6"}
	for name, c := range map[string]struct {
		change      func(*sighting)
		want        string
		reads, torn int
	}{
		"as it is":                 {func(*sighting) {}, "", 2, 0},
		"the last acknowledged":    {func(s *sighting) { s.after = 6 }, "", 2, 0},
		"an older ETag":            {func(s *sighting) { s.etag = `"5"` }, "", 2, 1},
		"an ETag of nobody's":      {func(s *sighting) { s.etag = `"7"` }, `!reads beside writes: GET gave the ETag "\"7\"", which no write had`, 1, 0},
		"no metadata":              {func(s *sighting) { s.meta = "" }, "!GET gave no metadata", 1, 0},
		"older than acknowledged":  {func(s *sighting) { s.after = 7 }, "!GET gave version 6 after 7 was acknowledged", 1, 0},
		"a newer ETag":             {func(s *sighting) { s.meta, s.body = "5", "5" }, "!GET gave the ETag of version 6, the metadata of 5, the body of 5", 1, 0},
		"another body":             {func(s *sighting) { s.body = "5" }, "!GET gave the ETag of version 6, the metadata of 6, the body of 5", 1, 0},
		"HEAD, a newer ETag":       {func(s *sighting) { s.how, s.meta, s.body = "HEAD", "5", "" }, "", 2, 0},
		"HEAD, older than allowed": {func(s *sighting) { s.how, s.after = "HEAD", 7 }, "!HEAD gave version 6", 1, 0},
	} {
		p := (&memory{}).prober()
		s := good
		c.change(&s)
		says(t, name, p.judge([]sighting{good, s}, etags), c.want)
		if p.reads != c.reads || p.torn != c.torn {
			t.Errorf("%s: %d reads, %d torn", name, p.reads, p.torn)
		}
	}
}

// Reads during writes on a store that keeps its promises, and on one that answers
// no read.
func TestProbeReadRace(t *testing.T) {
	m := &memory{}
	p := m.prober()
	if err := p.readRace(t.Context()); err != nil || m.writes != raceWrites || p.reads < raceWrites/2 || p.torn != 0 || p.seq != raceWrites {
		t.Errorf("%v; %d writes, %d reads, %d torn, %d bodies", err, m.writes, p.reads, p.torn, p.seq)
	}
	if string(m.body) != string(versionBody(raceWrites-1)) || m.opened != m.closed {
		t.Errorf("the last version is %.16q; %d bodies of %d closed", m.body, m.closed, m.opened)
	}
	gets := 0
	m = &memory{}
	busy := func() error {
		if gets++; gets == 1 { // the reading of what there is
			return nil
		}
		return answered{503, ""}
	}
	m.there, m.etag = true, `"e"`
	m.onGet = func(*s3.GetObjectOutput) error { return busy() }
	m.onHead = func(*s3.HeadObjectOutput) error { return answered{503, ""} }
	if err := m.prober().readRace(t.Context()); !errors.Is(err, errUndecided) {
		t.Errorf("a store that answers no read: %v", err)
	}
	denied := answered{403, "AccessDenied"}
	m = &memory{there: true, etag: `"e"`, onGet: func(*s3.GetObjectOutput) error { return denied }}
	says(t, "cannot be read", m.prober().readRace(t.Context()), "403")
	for _, n := range []int{1, 5} {
		m = &memory{}
		m.onPut = func(*s3.PutObjectInput) (string, error, bool) { return "", denied, m.writes == n }
		says(t, "cannot be written", m.prober().readRace(t.Context()), "403")
		if m.writes != n {
			t.Errorf("%d writes after a refusal of number %d", m.writes, n)
		}
	}
	m = &memory{onGet: func(out *s3.GetObjectOutput) error { out.ETag = nil; return nil }}
	says(t, "no ETag", m.prober().readRace(t.Context()), "!was answered with the ETag")
}
