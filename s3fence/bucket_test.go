package s3fence

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/guard"
)

// The defaults, and the options at their limits.
func TestOptionLimits(t *testing.T) {
	for maxBody, ok := range map[int64]bool{-1: false, 1: true, 5<<30 - 4096: true, 5<<30 - 4095: false} {
		if _, err := (Options{MaxBody: maxBody}).resolve(); (err == nil) != ok {
			t.Errorf("MaxBody %d: %v", maxBody, err)
		}
	}
	got, err := Options{}.resolve()
	if err != nil || got.MaxBody != 64<<20 || got.GracePeriod != time.Hour ||
		got.RequestTimeout != time.Minute || got.Prefix != ".fencepost/" {
		t.Errorf("the defaults are %+v, %v", got, err)
	}
	for prefix, want := range map[string]string{"a": "a/.fencepost/", "a/": "a/.fencepost/", strings.Repeat("p", 512): strings.Repeat("p", 512) + "/.fencepost/"} {
		if got, err := (Options{Prefix: prefix}).resolve(); err != nil || got.Prefix != want {
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
