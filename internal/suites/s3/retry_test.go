//go:build unix

package s3suite

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
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
