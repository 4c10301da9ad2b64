package s3conform

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Failure is a case that did not pass.
type Failure struct {
	Case string
	Err  error
}

func (f Failure) String() string { return f.Case + ": " + f.Err.Error() }

// testCase is one statement about a store. run fails by returning an error, or
// through the methods of trial.
type testCase struct {
	name string
	run  func(*trial) error
}

func cases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{bucketCases, objectCases, conditionCases, rangeCases, listCases, keyCases, checksumCases, multipartCases, multipartConditionCases, raceCases} {
		all = append(all, group...)
	}
	return all
}

// Races are the names of the cases that only concurrency can fail.
func Races() []string {
	var names []string
	for _, c := range raceCases {
		names = append(names, c.name)
	}
	return names
}

// Run runs each case as a subtest.
func Run(t *testing.T, target Target) {
	target.defaults()
	bucket, err := target.makeBucket(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := target.removeBucket(context.WithoutCancel(t.Context()), bucket); err != nil {
			t.Error(err)
		}
	})
	known := map[string]bool{}
	for _, c := range cases() {
		known[c.name] = true
		t.Run(c.name, func(t *testing.T) {
			err := target.try(t.Context(), bucket, c)
			reason, differs := target.Differs[c.name]
			sometimes := target.Sometimes[c.name]
			switch {
			case err != nil && !differs && sometimes == "":
				t.Error(err)
			case err == nil && differs:
				t.Errorf("passes, although this is said to differ: %s", reason)
			case err != nil:
				t.Logf("differs, as known (%s): %v", reason+sometimes, err)
			}
		})
	}
	for _, names := range []map[string]string{target.Differs, target.Sometimes} {
		for name := range names {
			if !known[name] {
				t.Errorf("there is no case named %q", name)
			}
		}
	}
}

// Check runs all cases but those among Differs and Sometimes, and returns the
// failures.
// An error means that the suite could not be run.
func Check(ctx context.Context, target Target) ([]Failure, error) {
	target.defaults()
	bucket, err := target.makeBucket(ctx)
	if err != nil {
		return nil, err
	}
	var failures []Failure
	for _, c := range cases() {
		if target.Differs[c.name]+target.Sometimes[c.name] != "" {
			continue
		}
		if err := target.try(ctx, bucket, c); err != nil {
			failures = append(failures, Failure{c.name, err})
		}
	}
	// A broken store may be unable to remove it.
	target.removeBucket(context.WithoutCancel(ctx), bucket)
	return failures, ctx.Err()
}

// trial is one run of one case, with keys of its own.
type trial struct {
	*Target
	ctx    context.Context
	bucket string
	prefix string
}

// failed is the panic by which a trial's methods end it.
type failed struct{ err error }

func (t *Target) try(ctx context.Context, bucket string, c testCase) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failed)
			if !ok {
				panic(r)
			}
			err = f.err
		}
	}()
	prefix := strings.Map(func(r rune) rune {
		if r == ' ' || r == ',' {
			return '-'
		}
		return r
	}, c.name) + "/"
	return c.run(&trial{Target: t, ctx: ctx, bucket: bucket, prefix: prefix})
}

func (t *Target) makeBucket(ctx context.Context) (string, error) {
	name := "s3conform-" + strings.ToLower(rand.Text())
	r, err := t.do(ctx, ask{method: http.MethodPut, bucket: name})
	if err != nil {
		return "", err
	}
	if r.status != http.StatusOK {
		return "", fmt.Errorf("s3conform: bucket not made: %s", r)
	}
	return name, nil
}

func (t *Target) removeBucket(ctx context.Context, bucket string) (err error) {
	defer func() {
		if f, ok := recover().(failed); ok {
			err = f.err
		}
	}()
	all := &trial{Target: t, ctx: ctx, bucket: bucket}
	for {
		listed := all.uploads("")
		if len(listed.Upload) == 0 {
			break
		}
		for _, u := range listed.Upload {
			all.abort(u.Key, u.UploadId).want(http.StatusNoContent, "")
		}
	}
	for {
		listed := all.list(nil)
		if len(listed.Contents) == 0 {
			break
		}
		for _, o := range listed.Contents {
			all.send(ask{method: http.MethodDelete, key: o.Key}).want(http.StatusNoContent, "")
		}
	}
	r, err := t.do(ctx, ask{method: http.MethodDelete, bucket: bucket})
	if err == nil && r.status != http.StatusNoContent {
		err = errors.New("s3conform: bucket not removed: " + r.String())
	}
	return err
}
