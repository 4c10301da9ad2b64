// Package s3test is an S3 server inside the test's process, with true
// compare-and-swap, a readable history and faults that tests switch on.
//
//	server := s3test.New(t, nil)
//	bucket, err := s3fence.Open(ctx, server.Client(), s3test.DefaultBucket, nil)
//
// [Server.Client] is Amazon's client for it; any other client may be pointed at
// [Server.URL], path-style, with any credentials. [Start] is for programs that
// are not tests.
//
// # What it does
//
// PutObject, GetObject, HeadObject, DeleteObject, ListObjectsV2 and CreateBucket.
// Conditions (If-Match, If-None-Match) are decided and the write applied in one
// step, whatever the concurrency. The SHA-256 that signs a body is verified; other
// checksums are stored and returned, also those behind an aws-chunked body. Errors are
// those of Amazon S3, as XML. It refuses what it does not know (multipart uploads,
// CopyObject, versions, tags, access lists) with NotImplemented, so that no such call is mistaken for
// another. Signatures are not verified; a [Rule] can refuse credentials.
//
// An ETag is the MD5 of the body, so equal bodies have equal ETags, whatever
// their metadata: the trap that a client must avoid. [Server.SetETags] makes
// them random instead, as in directory buckets.
//
// # What tests can read
//
// [Server.History] is the order in which changes to objects took effect, one
// [Mutation] each, with body, metadata and the ETag that it replaced.
// [Server.Object] and [Server.Objects] are the current state, [Server.Count] is the
// number of requests.
//
// # Faults
//
// [Server.Inject] puts a [Rule] into force: it says which requests (operation, key, a
// function, the n-th, with what probability) suffer which [Fault]. Rules can be added
// and removed while requests run; all that match are combined.
//
//	// Half of all PUTs are applied, and their responses lost.
//	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Probability: 0.5, Fault: s3test.LoseResponse()})
//	// The first PUT of k fails with 503, the second conflicts, the third succeeds.
//	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: "k",
//		Script: []s3test.Fault{s3test.Respond(503), s3test.Respond(409)}})
//	// A store that loses the race between comparing and writing.
//	server.Inject(s3test.Rule{Fault: s3test.Race()})
//	// A store that does not know about conditions.
//	server.Inject(s3test.Rule{Fault: s3test.IgnoreConditions()})
//
// A hook holds requests before or after they take effect until the test lets
// them go, whether or not their client is still there:
//
//	arrived, release := make(chan struct{}), make(chan struct{})
//	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Times: 1, Fault: s3test.Fault{
//		Before: func(*s3test.Request) { close(arrived); <-release },
//	}})
//	go write() // the old holder
//	<-arrived
//	// ... the new holder writes ...
//	close(release)
//
// Random draws are seeded per rule by [Options.Seed]: the n-th request that
// matches a rule has the same outcome in each run.
//
// A client that uses net/http retries GET and HEAD requests on its own when a
// reused connection is closed without a response; a lost response to those may
// be visible only in [Server.Count].
//
// # Where to read on
//
// A request goes from server.go to request.go (which operation it is), through fault.go, to
// object.go, which decides and applies it; history.go keeps what took effect.
package s3test

import "time"

// Options configures a server. The zero value, or nil, is a store that behaves
// well and admits every client.
type Options struct {
	// Buckets exist from the start. The zero value is [DefaultBucket].
	Buckets []string

	// ETags says how ETags are made; see also [Server.SetETags]. The zero value
	// is [ETagMD5].
	ETags ETagMode

	// Seed is the seed of random faults and ETags.
	Seed uint64

	// TLS makes the server speak HTTPS, over which Amazon's client sends other bytes: the
	// body in chunks with a checksum behind them. [Server.HTTPClient] trusts its certificate.
	TLS bool

	// Now is the server's clock, also of the Date in its responses. Nil is time.Now.
	Now func() time.Time
}

// ETagMode is how a server makes ETags.
type ETagMode int

const (
	// ETagMD5 makes ETags that depend on the body only, the worst case that
	// Amazon's documentation allows.
	ETagMD5 ETagMode = iota
	// ETagOpaque makes random ETags, different for each write.
	ETagOpaque
)

// DefaultBucket is the bucket of a server unless Options say otherwise.
const DefaultBucket = "bucket"

// region is the region that every server reports.
const region = "us-east-1"

const (
	maxKeyLength    = 1024
	maxMetadataSize = 2 << 10
)
