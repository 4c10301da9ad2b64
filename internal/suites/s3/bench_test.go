//go:build unix

package s3suite

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/testkit"
)

// BenchmarkPut writes in turn a sealed object and, without a condition, the same
// stored bytes and metadata next to it, to a store that is a process with a file
// system, where a key's depth costs.
// "ratio" is the throughput of the first over that of the second by the sums,
// "p50-ratio" by the medians.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			g := startGateway(b)
			client := gatewayClient(g, g.URL)
			o := openSealed(b, client)
			body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
			token := guard.NoToken
			fenced := func() error {
				token++
				return o.Put(b.Context(), claim(token), key, body, nil)
			}
			for range 64 { // until the list of recent writes is full
				if err := fenced(); err != nil {
					b.Fatal(err)
				}
			}
			stored, metadata := storedAs(b, client)
			bare := func() error {
				_, err := client.PutObject(b.Context(), &s3.PutObjectInput{
					Bucket: aws.String(bucket), Key: aws.String(key + ".bare"), Body: bytes.NewReader(stored), Metadata: metadata,
				})
				return err
			}
			ways := [2]func() error{fenced, bare}
			var took [2][]time.Duration
			for i := 0; b.Loop(); i++ {
				for j := range ways {
					k := (i + j) % len(ways)
					start := time.Now()
					if err := ways[k](); err != nil {
						b.Fatal(err)
					}
					took[k] = append(took[k], time.Since(start))
				}
			}
			var sums [2]time.Duration
			for k := range took {
				for _, d := range took[k] {
					sums[k] += d
				}
				slices.Sort(took[k])
			}
			half := len(took[0]) / 2
			b.ReportMetric(float64(sums[1])/float64(sums[0]), "ratio")
			b.ReportMetric(float64(took[1][half])/float64(took[0][half]), "p50-ratio")
			b.ReportMetric(float64(took[1][half].Microseconds()), "bare-us")
		})
	}
}

// storedAs reads the object as it is stored, trailer and all.
func storedAs(t testing.TB, client *s3.Client) ([]byte, map[string]string) {
	t.Helper()
	out, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String(key)})
	testkit.Must(t, err)
	defer out.Body.Close()
	body, err := io.ReadAll(out.Body)
	testkit.Must(t, err)
	return body, out.Metadata
}
