package s3conform

import (
	"fmt"
	"net/http"
)

var rangeCases = []testCase{
	{"ranges", func(k *trial) error {
		const body = "0123456789"
		k.put("a", body).want(http.StatusOK, "")
		for _, c := range []struct{ header, want, content string }{
			{"bytes=0-0", "0", "bytes 0-0/10"},
			{"bytes=2-4", "234", "bytes 2-4/10"},
			{"bytes=7-", "789", "bytes 7-9/10"},
			{"bytes=-3", "789", "bytes 7-9/10"},
			{"bytes=8-100", "89", "bytes 8-9/10"},
			{"bytes=-100", body, "bytes 0-9/10"},
		} {
			r := k.get("a", "Range", c.header).want(http.StatusPartialContent, "")
			if string(r.body) != c.want {
				return fmt.Errorf("%s is %q, want %q", c.header, r.body, c.want)
			}
			described(r, "Content-Range", c.content)
			described(r, "Etag", md5ETag(body))
		}
		k.get("a", "Range", "bytes=10-").want(http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
		k.get("a", "Range", "bytes=-0").want(http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
		if r := k.get("a", "Range", "nonsense").want(http.StatusOK, ""); string(r.body) != body {
			return fmt.Errorf("nonsense is %q", r.body)
		}
		return nil
	}},
}
