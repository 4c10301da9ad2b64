package s3test

import (
	"slices"
	"strings"
)

// authorize checks who asks and for which region it was signed, as far as the
// options want it. It does not verify the signature.
func (s *Server) authorize(c *call) *answer {
	credential := c.Query.Get("X-Amz-Credential")
	algorithm, parameters, signed := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if signed {
		for field := range strings.SplitSeq(parameters, ",") {
			if value, ok := strings.CutPrefix(strings.TrimSpace(field), "Credential="); ok {
				credential = value
			}
		}
	}
	if credential == "" {
		if len(s.opts.Credentials) > 0 {
			return fail("AccessDenied")
		}
		return nil
	}
	// The access key ID may itself contain a slash; date, region, service and
	// "aws4_request" follow it.
	scope := strings.Split(credential, "/")
	if len(scope) < 5 {
		return fail("AuthorizationHeaderMalformed")
	}
	id, region := strings.Join(scope[:len(scope)-4], "/"), scope[len(scope)-3]
	if s.opts.Region != "" && region != s.opts.Region && !strings.HasPrefix(algorithm, "AWS4-ECDSA") {
		a := fail("AuthorizationHeaderMalformed",
			"Message", "The authorization header is malformed; the region '"+region+"' is wrong; expecting '"+s.opts.Region+"'",
			"Region", s.opts.Region)
		a.header = map[string][]string{"X-Amz-Bucket-Region": {s.opts.Region}}
		return a
	}
	if len(s.opts.Credentials) == 0 {
		return nil
	}
	i := slices.IndexFunc(s.opts.Credentials, func(known Credential) bool { return known.AccessKeyID == id })
	switch {
	case i < 0:
		return fail("InvalidAccessKeyId", "AWSAccessKeyId", id)
	case s.opts.Credentials[i].Expired:
		return fail("ExpiredToken")
	}
	return nil
}
