//go:build unix

package s3suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/longtest"
	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/internal/testkit"
	"github.com/fencepost-go/fencepost/s3fence"
)

// lossy is the network below an HTTP client that retries on its own: it loses
// answers, and then often refuses the connection of the next try, so that the
// last error of a write that was applied is that of a dial.
type lossy struct {
	via http.RoundTripper

	mu      sync.Mutex
	refuse  map[string]int // how many more tries of a write to refuse
	applied map[string]int // by attempt, or write ID: how often the store said 200
}

// nowhere is an address that refuses connections.
func nowhere() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (l *lossy) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method != http.MethodPut && q.Method != http.MethodPost {
		return l.via.RoundTrip(q)
	}
	id := q.Header.Get("X-Amz-Meta-Fencing-Write") + q.Header.Get("X-Amz-Meta-Attempt") + " " + q.URL.Path
	l.mu.Lock()
	refused := l.refuse[id] > 0
	if refused {
		l.refuse[id]--
	}
	lose, then := rand.IntN(4) == 0, rand.IntN(4)
	l.mu.Unlock()
	if refused {
		address, err := nowhere()
		if err != nil {
			return nil, err
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return nil, errors.New("a closed port took a connection")
		}
		return nil, err
	}
	answer, err := l.via.RoundTrip(q)
	if err != nil {
		return answer, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if answer.StatusCode == http.StatusOK {
		l.applied[id]++
	}
	if !lose {
		return answer, nil
	}
	// The following tries, of this client and of the one above it.
	l.refuse[id] = then
	answer.Body.Close()
	return nil, io.ErrUnexpectedEOF
}

// retrying is the SDK over go-retryablehttp over l.
func retrying(g *gateway.Gateway, l *lossy) *s3.Client {
	return gatewayClient(g, g.URL, func(o *s3.Options) {
		c := retryablehttp.NewClient()
		c.HTTPClient = &http.Client{Transport: l}
		c.RetryMax, c.RetryWaitMin, c.RetryWaitMax, c.Logger = 1, time.Millisecond, time.Millisecond, nil
		o.HTTPClient = c.StandardClient()
	})
}

func newLossy() *lossy {
	return &lossy{via: &http.Transport{MaxIdleConnsPerHost: 16}, refuse: map[string]int{}, applied: map[string]int{}}
}

// appliedTo is how often the store took a write with that header.
func (l *lossy) appliedTo(id, name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.applied[id+" /"+bucket+"/"+name]
}

// P5 with a client that retries on its own: no applied write is reported as
// unwritten, and no data is deleted that a pointer names.
func TestP5RetryingClient(t *testing.T) {
	g := startGateway(t)
	plain := gatewayClient(g, g.URL)
	for _, mode := range modes {
		t.Run(nameOf(mode), func(t *testing.T) {
			const writers = 4
			var wg sync.WaitGroup
			var mu sync.Mutex
			reasons := map[guard.Reason]int{}
			wrong, answered := 0, 0
			for w := range writers {
				l := newLossy()
				b, err := s3fence.Open(t.Context(), retrying(g, l), bucket, &s3fence.Options{InsecureSkipProbe: true})
				testkit.Must(t, err)
				o, err := in(b, mode)
				testkit.Must(t, err)
				quiet, err := s3fence.Open(t.Context(), plain, bucket, &s3fence.Options{InsecureSkipProbe: true})
				testkit.Must(t, err)
				reader, err := in(quiet, mode)
				testkit.Must(t, err)
				wg.Go(func() {
					name := fmt.Sprintf("retry-%s-%d", mode, w)
					live := ""
					for i := range longtest.ByLength(40, 840) {
						// Each write has its own body, so that the object shows
						// who wrote it.
						body := fmt.Sprintf("%s %d %d", mode, w, i)
						err := o.Put(t.Context(), claim(guard.Token(i+1)), name, []byte(body), nil)
						object, readErr := reader.Get(t.Context(), name)
						got := ""
						switch {
						case errors.Is(readErr, guard.ErrNotFound):
						case readErr != nil:
							t.Errorf("after write %d (%v): %v", i, err, readErr)
							return
						default:
							whole, readErr := io.ReadAll(object.Body)
							object.Body.Close()
							if readErr != nil {
								t.Errorf("after write %d (%v): %v", i, err, readErr)
								return
							}
							got = string(whole)
						}
						reason := guard.ReasonOf(err)
						ok := false
						switch reason {
						case guard.ReasonNone:
							ok = got == body
						case guard.ReasonOutcomeUnknown:
							ok = got == body || got == live
						case guard.ReasonUnavailable: // nothing was written
							ok = got == live
						}
						live = got
						mu.Lock()
						reasons[reason]++
						if answered++; !ok {
							if wrong++; wrong < 5 {
								t.Errorf("write %d was told %v; what is there is %q", i, err, got)
							}
						}
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			t.Logf("%d writes, verdicts %v, %d wrong", answered, reasons, wrong)
			if reasons[guard.ReasonNone] < answered/4 {
				t.Errorf("%d of %d writes were done: the network is too bad to show anything", reasons[guard.ReasonNone], answered)
			}
		})
	}
}

// The control: a client that takes a dial error for "never sent".
func TestP5RetryingClientControl(t *testing.T) {
	g := startGateway(t)
	l := newLossy()
	client := retrying(g, l)
	for i := range 1000 {
		attempt := fmt.Sprint(i)
		_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: aws.String(bucket), Key: aws.String("naive"), Body: strings.NewReader(attempt), Metadata: map[string]string{"attempt": attempt},
		}, func(o *s3.Options) { o.Retryer = aws.NopRetryer{} })
		var dial *net.OpError
		if errors.As(err, &dial) && dial.Op == "dial" && l.appliedTo(attempt, "naive") > 0 {
			t.Logf("write %d was applied, and its error is %v", i, err)
			return
		}
	}
	t.Error("no applied write ended with a dial error: the test is too kind")
}

// rough is a network that delays requests, loses some, loses responses, and
// delivers some writes a second time, later.
type rough struct {
	via    http.RoundTripper
	second *sync.WaitGroup // deliveries that have not arrived
}

func (n *rough) RoundTrip(q *http.Request) (*http.Response, error) {
	draw := rand.IntN(100)
	if rand.IntN(6) == 0 {
		time.Sleep(rand.N(10 * time.Millisecond))
	}
	if draw < 3 {
		return nil, io.ErrUnexpectedEOF
	}
	if draw >= 10 && draw < 14 && q.Method == http.MethodPut && q.GetBody != nil {
		if body, err := q.GetBody(); err == nil {
			late := q.Clone(context.WithoutCancel(q.Context()))
			late.Body = body
			n.second.Add(1)
			time.AfterFunc(rand.N(40*time.Millisecond), func() {
				defer n.second.Done()
				if answer, err := n.via.RoundTrip(late); err == nil {
					io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
				}
			})
		}
	}
	answer, err := n.via.RoundTrip(q)
	if err == nil && draw >= 3 && draw < 7 {
		answer.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return answer, err
}

// counted is a counter in an object, which holders increment: what P2 is for.
type counted struct {
	mu            sync.Mutex
	done, unknown int
	refused       map[guard.Reason]error // the last of each reason
	by            map[int]guard.Token    // which holder got the response that it wrote a value
	bad           []string
}

func (c *counted) note(value int, token guard.Token, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case errors.Is(err, guard.ErrOutcomeUnknown):
		c.unknown++
	case err == nil:
		c.done++
		if other, taken := c.by[value]; taken {
			c.bad = append(c.bad, fmt.Sprintf("tokens %d and %d were both told that they wrote %d", other, token, value))
		}
		c.by[value] = token
	default:
		c.refused[guard.ReasonOf(err)] = err
	}
}

// increment is what a holder does: raise, read, write. Without the raise it
// loses updates.
func increment(ctx context.Context, o handle, cl guard.Claim, name string, raise bool) (value int, err error) {
	if raise {
		if err := o.Raise(ctx, cl, name); err != nil && !errors.Is(err, guard.ErrNotFound) {
			return 0, err
		}
	}
	n := 0
	object, err := o.Get(ctx, name)
	switch {
	case errors.Is(err, guard.ErrNotFound):
	case err != nil:
		return 0, err
	default:
		text, err := io.ReadAll(object.Body)
		object.Body.Close()
		if err != nil {
			return 0, err
		}
		digits, _, _ := strings.Cut(string(text), " ")
		if n, err = strconv.Atoi(digits); err != nil {
			return 0, err
		}
	}
	n++
	return n, o.Put(ctx, cl, name, fmt.Appendf(nil, "%d %d", n, cl.Token), nil)
}

// count runs holders over a rough network, and with them a collector of what
// pointers have left.
func count(t *testing.T, client func(http.RoundTripper) *s3.Client, name string, mode s3fence.Mode, raise bool) *counted {
	t.Helper()
	const holders = 6
	c := &counted{by: map[int]guard.Token{}, refused: map[guard.Reason]error{}}
	lock := make(chan struct{}, 1)
	var issued atomic.Int64
	var wg, second sync.WaitGroup
	open := func(via http.RoundTripper) handle {
		b, err := s3fence.Open(t.Context(), client(via), bucket, &s3fence.Options{InsecureSkipProbe: true, GracePeriod: time.Second})
		testkit.Must(t, err)
		o, err := in(b, mode)
		testkit.Must(t, err)
		return o
	}
	for range holders {
		via := &rough{&http.Transport{MaxIdleConnsPerHost: 4}, &second}
		o := open(via)
		wg.Go(func() {
			for range longtest.ByLength(20, 400) {
				// A lock whose lease runs out: mostly one holder, often two or three.
				held := rand.IntN(3) > 0
				if held {
					lock <- struct{}{}
				}
				cl := claim(guard.Token(issued.Add(1)))
				value, err := increment(t.Context(), o, cl, name, raise)
				c.note(value, cl.Token, err)
				if held {
					<-lock
				}
			}
		})
	}
	var collecting sync.WaitGroup
	stop := make(chan struct{})
	if mode == pointers {
		collector := open(nil)
		collecting.Go(func() {
			for {
				if _, err := collector.(pointerHandle).Collect(t.Context(), name); err != nil {
					t.Errorf("collect: %v", err)
				}
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	collecting.Wait()
	second.Wait() // the second deliveries arrive
	t.Logf("refused: %v", c.refused)
	object, err := open(nil).Get(t.Context(), name)
	testkit.Must(t, err)
	defer object.Body.Close()
	text, err := io.ReadAll(object.Body)
	testkit.Must(t, err)
	digits, _, _ := strings.Cut(string(text), " ")
	final, err := strconv.Atoi(digits)
	testkit.Must(t, err)
	if final < c.done || final > c.done+c.unknown {
		c.bad = append(c.bad, fmt.Sprintf("%d increments were done, %d of unknown outcome, and the counter is at %d", c.done, c.unknown, final))
	}
	t.Logf("%s: %d done, %d unknown, the counter is at %d, %d violations", name, c.done, c.unknown, final, len(c.bad))
	return c
}

// P2 on a rough network: holders that raise, read and write lose none of each
// other's increments. (Plain has no raise where bodies make the ETags.)
func TestP2Counter(t *testing.T) {
	all := []realStore{product(gateway.Versitygw, true)}
	if longtest.Long {
		all = append(all, product(gateway.MinIO, true))
	}
	for _, store := range all {
		t.Run(store.name, func(t *testing.T) {
			client := store.start(t)
			for _, mode := range []s3fence.Mode{s3fence.Sealed, s3fence.SealedGzip, pointers} {
				c := count(t, client, fmt.Sprintf("count-%s/object", mode), mode, true)
				for i, bad := range c.bad {
					if i < 5 {
						t.Error(bad)
					}
				}
				if c.done < 10 {
					t.Errorf("%v: only %d increments were done", mode, c.done)
				}
			}
		})
	}
}

// The control: the same without the raise loses increments.
func TestP2CounterControl(t *testing.T) {
	client := product(gateway.Versitygw, true).start(t)
	round := 0
	testkit.Eventually(t, "an increment to be lost without a raise", func() bool {
		round++
		return len(count(t, client, fmt.Sprintf("control-%d/object", round), s3fence.Sealed, false).bad) > 0
	})
}
