package s3test_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

type outcome struct {
	reply *reply
	err   error
}

func (c *client) goPut(key, body string, pairs ...string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		r, err := c.try(http.MethodPut, "/"+key, body, pairs...)
		done <- outcome{r, err}
	}()
	return done
}

func wait(t *testing.T, p *s3test.Pause) *s3test.Paused {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	held, err := p.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func TestPauseBefore(t *testing.T) {
	c := newClient(t, s3test.Options{})
	etag := c.put("a", "0")
	pause := c.server.Pause(s3test.Rule{Ops: puts, Times: 1}, s3test.BeforeApply)
	old := c.goPut("a", "old", "If-Match", etag)
	held := wait(t, pause)
	if held.Key != "a" || string(held.Body) != "old" {
		t.Errorf("%+v", held.Request)
	}
	c.put("a", "new", "If-Match", etag)
	held.Release()
	held.Release()
	if o := <-old; o.err != nil || o.reply.status != http.StatusPreconditionFailed {
		t.Errorf("%+v", o)
	}
	c.holds("a", "new")
}

func TestPauseAfter(t *testing.T) {
	c := newClient(t, s3test.Options{})
	pause := c.server.Pause(s3test.Rule{Ops: puts, Fault: s3test.LoseResponse()}, s3test.AfterApply)
	lost := c.goPut("a", "1")
	held := wait(t, pause)
	if held.Status != http.StatusOK {
		t.Errorf("status %d", held.Status)
	}
	c.holds("a", "1")
	held.Release()
	if o := <-lost; o.err == nil {
		t.Errorf("%+v", o)
	}
	pause.Release()
	c.put("a", "2")
}

// A request whose client has given up arrives nonetheless, as it would on a
// network that delays it.
func TestPausedRequestOutlivesItsClient(t *testing.T) {
	c := newClient(t, s3test.Options{})
	pause := c.server.Pause(s3test.Rule{Ops: puts, Times: 1}, s3test.BeforeApply)
	applied := make(chan int, 1)
	c.server.Inject(s3test.Rule{Ops: puts, Fault: s3test.Fault{After: func(_ *s3test.Request, status int) { applied <- status }}})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		r, _ := http.NewRequestWithContext(ctx, http.MethodPut, c.server.URL()+"/"+bucket+"/a", http.NoBody)
		_, err := c.server.Client().Do(r)
		failed <- err
	}()
	held := wait(t, pause)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	held.Release()
	if status := <-applied; status != http.StatusOK {
		t.Errorf("status %d", status)
	}
	if _, ok := c.server.Object(bucket, "a"); !ok {
		t.Error("not applied")
	}
}

func TestPauseScript(t *testing.T) {
	c := newClient(t, s3test.Options{})
	pause := c.server.Pause(s3test.Rule{Ops: puts, Script: []s3test.Fault{{}, s3test.Answer(503)}}, s3test.BeforeApply)
	for _, status := range []int{200, 503} {
		done := c.goPut("a", "1")
		wait(t, pause).Release()
		if o := <-done; o.err != nil || o.reply.status != status {
			t.Errorf("%+v", o)
		}
	}
	c.put("a", "the script has ended")
}

func TestCloseLetsPausedRequestsGo(t *testing.T) {
	c := newClient(t, s3test.Options{})
	pause := c.server.Pause(s3test.Rule{}, s3test.BeforeApply)
	c.server.Inject(s3test.Rule{Key: "slow", Fault: s3test.Slow(time.Hour, 0)})
	held, slow := c.goPut("a", "1"), c.goPut("slow", "1")
	wait(t, pause)
	c.server.Close()
	for _, done := range []<-chan outcome{held, slow} {
		if o := <-done; o.err == nil {
			t.Errorf("%+v", o)
		}
	}
	if h := c.server.History("", ""); len(h) != 0 {
		t.Errorf("%+v", h)
	}
	if _, err := pause.Wait(t.Context()); err == nil {
		t.Error("waiting for a request to a closed server")
	}
}

func TestClearFaultsReleases(t *testing.T) {
	c := newClient(t, s3test.Options{})
	pause := c.server.Pause(s3test.Rule{}, s3test.AfterApply)
	done := c.goPut("a", "1")
	for c.server.Count() == 0 {
		time.Sleep(time.Millisecond)
	}
	c.server.ClearFaults()
	if o := <-done; o.err != nil || o.reply.status != http.StatusOK {
		t.Errorf("%+v", o)
	}
	if _, err := pause.Wait(t.Context()); err == nil {
		t.Error("waiting on a pause that was released")
	}
}
