package s3conform

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// names returns what a listing shows, without the trial's prefix: keys, and
// common prefixes after them.
func (k *trial) names(l listing) string {
	var names []string
	for _, o := range l.Contents {
		names = append(names, strings.TrimPrefix(o.Key, k.prefix))
	}
	for _, p := range l.CommonPrefixes {
		names = append(names, strings.TrimPrefix(p.Prefix, k.prefix))
	}
	return strings.Join(names, " ")
}

var listCases = []testCase{
	{"list by prefix, delimiter and start", func(k *trial) error {
		for _, key := range []string{"b", "a", "d/2", "d/1", "d/e/3", "é", "f", "Z"} {
			k.put(key, "body of "+key).want(http.StatusOK, "")
		}
		for _, c := range []struct {
			prefix, delimiter, after, want string
		}{
			{"", "", "", "Z a b d/1 d/2 d/e/3 f é"},
			{"d/", "", "", "d/1 d/2 d/e/3"},
			{"d", "", "", "d/1 d/2 d/e/3"},
			{"", "/", "", "Z a b f é d/"},
			{"d/", "/", "", "d/1 d/2 d/e/"},
			{"", "", "b", "d/1 d/2 d/e/3 f é"},
			{"", "", "ba", "d/1 d/2 d/e/3 f é"},
			{"nothing", "", "", ""},
		} {
			q := url.Values{"prefix": {k.prefix + c.prefix}}
			if c.delimiter != "" {
				q.Set("delimiter", c.delimiter)
			}
			if c.after != "" {
				q.Set("start-after", k.prefix+c.after)
			}
			l := k.list(q)
			if got := k.names(l); got != c.want || l.IsTruncated {
				return fmt.Errorf("prefix %q, delimiter %q, start-after %q: %q, want %q (truncated: %v)", c.prefix, c.delimiter, c.after, got, c.want, l.IsTruncated)
			}
		}
		one := k.list(url.Values{"prefix": {k.prefix + "a"}}).Contents[0]
		if one.ETag != md5ETag("body of a") || one.Size != int64(len("body of a")) {
			return fmt.Errorf("entry %+v", one)
		}
		return nil
	}},
	{"list by pages", func(k *trial) error {
		var want []string
		for i := range 7 {
			key := fmt.Sprintf("k%d", i)
			k.put(key, "x").want(http.StatusOK, "")
			want = append(want, key)
		}
		k.put("l/1", "x").want(http.StatusOK, "")
		k.put("l/2", "x").want(http.StatusOK, "")
		want = append(want, "l/")
		var got []string
		q := url.Values{"prefix": {k.prefix}, "delimiter": {"/"}, "max-keys": {"2"}}
		for range 20 {
			l := k.list(q)
			if n := len(l.Contents) + len(l.CommonPrefixes); n > 2 || l.KeyCount != n {
				return fmt.Errorf("%d entries on a page of 2, KeyCount %d", n, l.KeyCount)
			}
			got = append(got, strings.Fields(k.names(l))...)
			if l.IsTruncated != (l.NextContinuationToken != "") {
				return fmt.Errorf("truncated: %v, token %q", l.IsTruncated, l.NextContinuationToken)
			}
			if !l.IsTruncated {
				break
			}
			q.Set("continuation-token", l.NextContinuationToken)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	}},
}
