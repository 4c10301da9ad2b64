package s3conform_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/internal/suites/s3/s3conform"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

func target(server *s3test.Server) s3conform.Target {
	return s3conform.Target{Endpoint: server.URL(), AccessKeyID: "id", SecretAccessKey: "secret", Client: server.HTTPClient()}
}

func TestServer(t *testing.T) {
	server := s3test.New(t, nil)
	s3conform.Run(t, target(server))
}

// A case that is said to differ must differ, and must exist.
func TestDiffers(t *testing.T) {
	t.Parallel()
	target := target(s3test.New(t, nil))
	target.Rounds = 1
	target.Differs = map[string]string{"empty object": "it cannot", "no such case": "it has another name"}
	failures, err := s3conform.Check(t.Context(), target)
	if err != nil || len(failures) != 2 || failures[0].Case != "empty object" || failures[1].Case != "no such case" {
		t.Errorf("%v, %v", failures, err)
	}
}

// The suite must notice each way in which a store can be broken, and blame
// nothing else.
func TestMutants(t *testing.T) {
	conditions := []string{
		"create only once",
		"replace only the version that was read",
		"replace of a missing object is NoSuchKey",
		"read only the version that is meant",
	}
	conditional := func(r *s3test.Request) bool {
		return r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != ""
	}
	var pairs meeting
	for _, m := range []struct {
		name  string
		opts  s3test.Options
		rule  s3test.Rule
		fails []string
	}{
		{name: "none"},
		{
			name: "race",
			rule: s3test.Rule{Match: conditional, Fault: s3test.Fault{Between: func(r *s3test.Request) {
				if strings.HasPrefix(r.Key, "race-") { // without a race it has no effect
					pairs.join(r)
				}
			}}},
			fails: s3conform.Races(),
		},
		{
			name:  "conditions are ignored",
			rule:  s3test.Rule{Fault: s3test.IgnoreConditions()},
			fails: append(conditions, s3conform.Races()...),
		},
		{
			name:  "metadata is merged",
			rule:  s3test.Rule{Fault: s3test.Fault{MergeMetadata: true}},
			fails: []string{"overwriting replaces metadata and headers"},
		},
		{
			name: "opaque ETags",
			opts: s3test.Options{ETags: s3test.ETagOpaque},
			fails: []string{
				"empty object", "ETag is the MD5 of the body", "ETag ignores metadata", "ranges at both ends",
				"list by prefix and start",
			},
		},
		{
			name:  "ranges are ignored",
			rule:  s3test.Rule{Fault: s3test.Fault{Ignore: []string{"range"}}},
			fails: []string{"ranges at both ends"},
		},
		{
			name:  "answers 404 to deletes",
			rule:  s3test.Rule{Ops: []s3test.Op{s3test.DeleteObject}, Match: func(r *s3test.Request) bool { return r.Key == "delete-removes--and-may-be-repeated/a" }, Fault: s3test.RespondApplied(404)},
			fails: []string{"delete removes, and may be repeated"},
		},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			server := s3test.New(t, &m.opts)
			server.Inject(m.rule)
			target := target(server)
			target.Rounds = 20
			failures, err := s3conform.Check(t.Context(), target)
			testkit.Must(t, err)
			var failed []string
			for _, f := range failures {
				failed = append(failed, f.Case)
				if !slices.Contains(m.fails, f.Case) {
					t.Error(f)
				}
			}
			for _, name := range m.fails {
				if !slices.Contains(failed, name) {
					t.Errorf("not noticed: %s", name)
				}
			}
		})
	}
}

// meetingLimit ends the wait for another request that does not come.
const meetingLimit = testkit.Patience

// meeting makes a race of writes certain. Its zero value is ready.
type meeting struct{ first, second signals }

// join is for Fault.Between. It returns when two writes of one key have been
// decided on the same condition; a third goes on at once. It is for races only,
// because a lone write waits for minutes.
func (m *meeting) join(r *s3test.Request) {
	if v := version(r); !m.first.send(v) {
		m.second.send(v)
	} else {
		m.second.wait(v)
	}
}

// version names what a conditional request is about.
func version(r *s3test.Request) string {
	return r.Bucket + "/" + r.Key + " " + r.Header.Get("If-Match")
}

// signals are sent once for each name, and waited for any number of times.
type signals struct{ sent, channels sync.Map }

func (s *signals) of(name string) chan struct{} {
	c, _ := s.channels.LoadOrStore(name, make(chan struct{}))
	return c.(chan struct{})
}

// send reports whether it was the first to send.
func (s *signals) send(name string) bool {
	_, again := s.sent.LoadOrStore(name, true)
	if !again {
		close(s.of(name))
	}
	return !again
}

func (s *signals) wait(name string) {
	select {
	case <-s.of(name):
	case <-time.After(meetingLimit):
	}
}
