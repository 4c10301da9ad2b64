// Package s3test is an S3 server inside the test's process, with true
// compare-and-swap, a readable history and faults that tests switch on.
//
//	server := s3test.New(&s3test.Options{Buckets: []string{"invoices"}})
//	defer server.Close()
//	// point any S3 client at server.URL(), path-style, with any credentials
//
// # What it does
//
// PutObject, GetObject, HeadObject, DeleteObject, DeleteObjects,
// ListObjectsV2, multipart uploads, and the calls that make, find, list and
// remove buckets. Conditions (If-Match, If-None-Match) are decided and the
// write applied in one step, whatever the concurrency. Checksums in headers
// and in the trailer of an aws-chunked body are verified. Errors are those of
// Amazon S3, as XML. What it does not know (CopyObject, versions, tags, access
// lists) it refuses with NotImplemented, so that no such call is taken for
// another. Signatures are not verified; see [Options.Credentials].
//
// An ETag is the MD5 of the body, so equal bodies have equal ETags, whatever
// their metadata: the hole that a client must not fall into.
// [Server.SetETags] makes them random instead, as in directory buckets.
//
// # What tests can read
//
// [Server.History] is the order in which changes to objects took effect, one
// [Mutation] each, with body, metadata and the ETag that it replaced.
// [Server.Object] and [Server.Objects] are the current state, [Server.Uploads]
// the multipart uploads in progress, [Server.Count] and [Server.Answers] the
// number of requests and of their answers.
//
// # Faults
//
// [Server.Inject] adds a [Rule]: which requests (operation, key, a function,
// the n-th, with what probability) suffer which [Fault]. Rules can be added and
// removed while requests run; all that match are combined.
//
//	// Half of all PUTs are applied, and their answers lost.
//	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Probability: 0.5, Fault: s3test.LoseResponse()})
//	// The first PUT of k is answered 503, the second conflicts, the third is well.
//	server.Inject(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Key: "k",
//		Script: []s3test.Fault{s3test.Answer(503), s3test.Answer(409)}})
//	// A store that loses the race between comparing and writing.
//	server.Inject(s3test.Rule{Fault: s3test.Race()})
//	// A store that does not know about conditions.
//	server.Inject(s3test.Rule{Fault: s3test.IgnoreConditions()})
//
// A [Pause] holds requests before or after they take effect until the test lets
// them go, whether or not their client is still there:
//
//	pause := server.Pause(s3test.Rule{Ops: []s3test.Op{s3test.PutObject}, Times: 1}, s3test.BeforeApply)
//	go write() // the old holder
//	held, err := pause.Wait(ctx)
//	// ... the new holder writes ...
//	held.Release()
//
// Random draws are seeded per rule by [Options.Seed]: the n-th request that
// matches a rule has the same luck in each run.
//
// A client that uses net/http sends GET and HEAD requests again by itself when
// a connection that had been used before is closed without an answer; a lost
// response to those may be visible in [Server.Count] alone.
//
// # Large bodies
//
// Objects are kept in memory, in the history as well. With
// [Options.DiscardAbove] only length and hashes of large ones are kept, so that
// a test can upload gigabytes.
package s3test
