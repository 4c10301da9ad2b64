//go:build unix

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fencepost-go/fencepost/internal/suites/s3/gateway"
	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

const mainVariable = "S3EXPORT_MAIN"

// TestMain lets the test binary be the program.
func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// invoke runs the program as a process of its own, with only the given
// environment.
func invoke(t *testing.T, env []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	args = append([]string{"-timeout", "1h"}, args...) // on any machine; a later one counts
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	home := t.TempDir()
	cmd.Env = append([]string{mainVariable + "=1", "HOME=" + home, "AWS_EC2_METADATA_DISABLED=true"}, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// store is the store that the program uses.
type store struct {
	endpoint, region, id, secret string
}

func (s store) env() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + s.id, "AWS_SECRET_ACCESS_KEY=" + s.secret, "AWS_REGION=" + s.region}
}

func startGateway(t *testing.T, product gateway.Product) store {
	t.Helper()
	g := gateway.Start(t, product)
	s := store{g.URL, g.Region, g.AccessKeyID, g.SecretAccessKey}
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(s.endpoint), UsePathStyle: true, Region: s.region,
		Credentials: credentials.NewStaticCredentialsProvider(s.id, s.secret, ""),
	})
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("exports")}); err != nil {
		t.Fatal(err)
	}
	return s
}

func signedWith(part string) func(*s3test.Request) bool {
	return func(r *s3test.Request) bool { return strings.Contains(r.Header.Get("Authorization"), part) }
}

func startS3Test(t *testing.T, etags s3test.ETagMode, more ...s3test.Rule) store {
	t.Helper()
	server := s3test.New(t, &s3test.Options{Buckets: []string{"exports"}, ETags: etags})
	for _, rule := range append(more,
		s3test.Rule{Match: signedWith("NOBODY/"), Fault: s3test.Fault{Status: 403, Code: "InvalidAccessKeyId"}},
		s3test.Rule{Match: signedWith("OLD/"), Fault: s3test.Fault{Status: 400, Code: "ExpiredToken"}},
		s3test.Rule{Match: signedWith("/us-west-2/"), Fault: s3test.Fault{Status: 400, Code: "AuthorizationHeaderMalformed"}},
	) {
		server.Inject(rule)
	}
	return store{server.URL(), "eu-central-1", "ID", "secret"}
}

func TestStaleWriterIsRefused(t *testing.T) {
	for name, s := range map[string]store{
		"versitygw": startGateway(t, gateway.Versitygw), "s3test": startS3Test(t, s3test.ETagMD5), "opaque": startS3Test(t, s3test.ETagOpaque),
	} {
		for _, mode := range []string{"sealed", "gzip", "pointer", "plain"} {
			if mode == "plain" && name != "opaque" {
				continue // refused, below
			}
			t.Run(name+"/"+mode, func(t *testing.T) {
				// Twice: the second run goes on from the first one's mark.
				for run, tokens := range [][2]int{{1, 2}, {3, 4}} {
					out, errs, status := invoke(t, s.env(), "-endpoint", s.endpoint, "-bucket", "exports", "-key", mode+".csv", "-mode", mode)
					if status != 0 || errs != "" {
						t.Fatalf("status %d\n%s%s", status, out, errs)
					}
					for _, want := range []string{
						"enforces preconditions", fmt.Sprintf("holder a  token %d   goes on and writes: fencepost: stale", tokens[0]),
						fmt.Sprintf("the mark is %d\n", tokens[1]), fmt.Sprintf("reader    token %d   s3://exports/%s.csv has %d rows\n", tokens[1], mode, 2*run+2),
					} {
						if !strings.Contains(out, want) {
							t.Errorf("no %q in\n%s", want, out)
						}
					}
				}
			})
		}
	}
}

// Credentials and region from a profile, the endpoint from the environment.
func TestProfile(t *testing.T) {
	s := startGateway(t, gateway.Versitygw)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"config":      "[profile tests]\nregion = " + s.region + "\n",
		"credentials": "[tests]\naws_access_key_id = " + s.id + "\naws_secret_access_key = " + s.secret + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{
		"AWS_PROFILE=tests", "AWS_CONFIG_FILE=" + filepath.Join(dir, "config"), "AWS_ENDPOINT_URL=" + s.endpoint,
		"AWS_SHARED_CREDENTIALS_FILE=" + filepath.Join(dir, "credentials"),
	}
	if out, errs, status := invoke(t, env, "-bucket", "exports"); status != 0 {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}

// A configuration that cannot work gives a clear error with advice.
func TestErrorHints(t *testing.T) {
	real, fake := startGateway(t, gateway.Versitygw), startS3Test(t, s3test.ETagMD5)
	with := func(s store, change func(*store)) store { change(&s); return s }
	nobody := func(s *store) { s.endpoint = "http://127.0.0.1:1" }
	for name, c := range map[string]struct {
		store  store
		args   []string
		says   []string
		status int
	}{
		"unknown key, versitygw": {with(real, func(s *store) { s.id = "NOBODY" }), nil, []string{"credentials were refused", "AWS_ACCESS_KEY_ID"}, 1},
		"wrong secret":           {with(real, func(s *store) { s.secret = "wrong" }), nil, []string{"signature was refused", "AWS_SECRET_ACCESS_KEY"}, 1},
		"unknown key, s3test":    {with(fake, func(s *store) { s.id = "NOBODY" }), nil, []string{"credentials were refused"}, 1},
		"expired":                {with(fake, func(s *store) { s.id = "OLD" }), nil, []string{"credentials have expired", "log in again"}, 1},
		"no credentials":         {with(real, func(s *store) { s.id, s.secret = "", "" }), nil, []string{"get credentials", "set AWS_ACCESS_KEY_ID"}, 1},
		"wrong bucket":           {real, []string{"-bucket", "receipts"}, []string{`bucket "receipts" does not exist`, "check -bucket"}, 1},
		"wrong bucket, s3test":   {fake, []string{"-bucket", "receipts"}, []string{`bucket "receipts" does not exist`}, 1},
		"wrong region":           {with(fake, func(s *store) { s.region = "us-west-2" }), nil, []string{"another region", "AWS_REGION"}, 1},
		"wrong region, versitygw": {with(real, func(s *store) { s.region = "us-west-2" }), nil,
			[]string{"another region", "AWS_REGION"}, 1},
		"nobody there":     {with(real, nobody), nil, []string{"connection refused"}, 1},
		"unsuitable store": {startS3Test(t, s3test.ETagMD5, s3test.Rule{Fault: s3test.IgnoreConditions()}), nil, []string{"unsuitable for fencing", "choose another store"}, 1},
		"plain":            {real, []string{"-mode", "plain"}, []string{"not safe here"}, 2},
		"bad key":          {real, []string{"-key", "a/../b"}, []string{`key "a/../b"`}, 2},
		"bad bucket":       {real, []string{"-bucket", "x"}, []string{`bucket "x"`}, 2},
		"too little time":  {real, []string{"-timeout", "1ms"}, []string{"not done after 1ms"}, 1},
		"unknown mode":     {real, []string{"-mode", "naive"}, []string{`"naive"`}, 2},
		"no bucket":        {real, []string{"-bucket", ""}, []string{"-bucket is required"}, 2},
		"an argument more": {real, []string{"extra"}, []string{`"extra"`}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"-endpoint", c.store.endpoint, "-bucket", "exports"}, c.args...)
			out, errs, status := invoke(t, c.store.env(), args...)
			if status != c.status || out != "" && name != "plain" && name != "bad key" {
				t.Errorf("status %d, want %d; stdout %q", status, c.status, out)
			}
			for _, want := range c.says {
				if !strings.Contains(errs, want) {
					t.Errorf("no %q in\n%s", want, errs)
				}
			}
			t.Log(errs)
		})
	}
	// Without an endpoint Amazon's is meant, which needs a region.
	out, errs, status := invoke(t, []string{"AWS_ACCESS_KEY_ID=x", "AWS_SECRET_ACCESS_KEY=x"}, "-bucket", "exports")
	if status != 1 || !strings.Contains(errs, "set AWS_REGION") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}
