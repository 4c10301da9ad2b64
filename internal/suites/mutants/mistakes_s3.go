package main

// s3Mistakes are those of s3fence, layer by layer: driver, register, codec, verbs, probe.
var s3Mistakes = []mistake{
	{
		name: `s3: made-up code is absence`, wrong: `a proxy's 404 is taken for the store's word, and a total begins from nothing`,
		edits: []edit{{`s3fence/sdkwire.go`, `return m.outcome == mismatch && code == "NoSuchKey" }`, `return m.outcome == mismatch && code == "NoSuchKey" || code == "" && m.outcome == unknown }`}},
		by:    unitTest("s3fence", "^TestP5OnlyTheStoreSaysAbsent$"),
	},
	{
		name: `s3: NoSuchKey with any status`, wrong: `an error of another kind makes an object absent`,
		edits: []edit{{`s3fence/sdkwire.go`, `known && status >= 300 && (code != "NoSuchKey" || status == 404)`, `known && status >= 300`}},
		by:    unitTest("s3fence", "^TestResponses$"),
	},
	{
		name: `s3: any 200 is a listing`, wrong: `a maintenance page is an empty bucket`,
		edits: []edit{{`s3fence/sdk.go`, `name != s.bucket && !(alias(s.bucket) && name != "") || (err != nil || of != prefix) && raw != prefix`, `err != nil && raw == "?"`}},
		by:    unitTest("s3fence", "^TestP5APageIsNoAnswer$"),
	},
	{
		name: `s3: another bucket's listing`, wrong: `what is listed is not what was asked for`,
		edits: []edit{{`s3fence/sdk.go`, `name != s.bucket && !(alias(s.bucket) && name != "")`, `name == ""`}},
		by:    unitTest("s3fence", "^TestResponses$"),
	},
	{
		name: `s3: another prefix's listing`, wrong: `what is listed is not what was asked for`,
		edits: []edit{{`s3fence/sdk.go`, `|| (err != nil || of != prefix) && raw != prefix`, `|| err != nil && raw == "?"`}},
		by:    unitTest("s3fence", "^TestResponses$"),
	},
	{
		name: `s3: keys not encoded`, wrong: `one foreign key with a control character ends every listing`,
		edits: []edit{{`s3fence/sdk.go`, `, EncodingType: types.EncodingTypeUrl}`, `}`}},
		by:    unitTest("s3fence", "^TestForeignKeysInListings$"),
	},
	{
		name: `s3: truncated listing ends`, wrong: `a listing that cannot go on looks complete`,
		edits: []edit{{`s3fence/sdk.go`, `case p.next == "":`, `case false:`}},
		by:    unitTest("s3fence", "^TestRepeatedContinuationToken$"),
	},
	{
		name: `s3: empty ETag is a condition`, wrong: `a store takes it for no condition at all`,
		edits: []edit{{`s3fence/sdk.go`, `return inner != "" && inner`, `return inner`}},
		by:    unitTest("s3fence", "^TestConditionsThatAreNone$"),
	},
	{
		name: `s3: weak ETag is a condition`, wrong: `a transformed response is the base of a write`,
		edits: []edit{{`s3fence/sdk.go`, `!strings.HasPrefix(inner, "W/") && `, ``}},
		by:    unitTest("s3fence", "^TestStrongETag$"),
	},
	{
		name: `s3: 409 is a refusal`, wrong: `a write that may stand is called not written`,
		edits: []edit{{`s3fence/sdkwire.go`, `"ConditionalRequestConflict":         {outcome: unknown`, `"ConditionalRequestConflict":         {outcome: refused`}},
		by:    unitTest("s3fence", "^TestLostAnswersAreResolved$"),
	},
	{
		name: `s3: SlowDown is unknown`, wrong: `what the store did not process is an unknown outcome`,
		edits: []edit{{`s3fence/sdkwire.go`, `"SlowDown":                           {outcome: busy,`, `"SlowDown":                           {outcome: unknown,`}},
		by:    unitTest("s3fence", "^TestP6NothingSentIsNotUnknown$"),
	},
	{
		name: `s3: expired session is setup`, wrong: `a worker ends though the next request would succeed`,
		edits: []edit{{`s3fence/sdkwire.go`, `= meaning{outcome: busy, wide: true, says: "the credentials have expired"}`, `= ofBucket("the credentials have expired")`}},
		by:    unitTest("s3fence", "^TestP6WhatTimeCuresIsNotSetup$"),
	},
	{
		name: `s3: page acknowledges a write`, wrong: `a write that a front has swallowed is success`,
		edits: []edit{{`s3fence/tracker.go`, `case t.body.Load():`, `case false:`}},
		by:    unitTest("s3fence", "^TestResponses$"),
	},
	{
		name: `s3: page acknowledges a deletion`, wrong: `an object that stays is called deleted`,
		edits: []edit{{`s3fence/tracker.go`, `case status != want && status != 0:`, `case status < 0:`}},
		by:    unitTest("s3fence", "^TestP5APageIsNoAnswer$"),
	},
	{
		name: `s3: dial error of anybody`, wrong: `a client that retries makes an applied write look unsent`,
		edits: []edit{{`s3fence/tracker.go`, `case t.direct.Load() && t.asked`, `case t.asked`}},
		by:    unitTest("s3fence", "^TestTracker$"),
	},
	{
		name: `s3: repetition below unseen`, wrong: `a refusal of the second copy hides the first`,
		edits: []edit{{`s3fence/tracker.go`, `case t.calls.Load() > 1 || t.heads.Load() > 1:`, `case false:`}},
		by:    unitTest("s3fence", "^TestDialErrorIsNotUnsent$"),
	},
	{
		name: `s3: timeout for the whole`, wrong: `a long body on a slow line never arrives`,
		edits: []edit{{`s3fence/sdkwire.go`, "\tw.timer.Reset(w.after)\n", ``}},
		by:    unitTest("s3fence", "^TestRequestTimeoutIsForIdleness$"),
	},
	{
		name: `s3: writer's clock`, wrong: `a collector deletes what a pointer has just left`,
		edits: []edit{{`s3fence/sdk.go`, "\tdate, _ := awsmiddleware.GetServerTime(out.ResultMetadata)\n", "\tdate := time.Now()\n"}},
		by:    unitTest("s3fence", "^TestClocksOfWritersAndCollectors$"),
	},
	{
		name: `s3: caches may serve reads`, wrong: `a reader sees an old mark`,
		edits: []edit{{`s3fence/sdkwire.go`, `r.Header.Set("Cache-Control", "no-cache, no-store, no-transform")`, `_ = r`}},
		by:    unitTest("s3fence", "^TestCacheInBetween$"),
	},
	{
		name: `s3: access point of many buckets`, wrong: `a mark raised in one bucket is not in the other`,
		edits: []edit{{`s3fence/sdkwire.go`, `strings.HasSuffix(bucket, ".mrap"), `, ``}},
		by:    unitTest("s3fence", "^TestNamesOfSeveralStores$"),
	},
	{
		name: `s3: short range is absence`, wrong: `an object shorter than the range cannot be read`,
		edits: []edit{{`s3fence/sdk.go`, `httpStatus(err) == http.StatusRequestedRangeNotSatisfiable`, `httpStatus(err) == http.StatusTeapot`}},
		by:    unitTest("s3fence", "^TestShortRangesAreNotAbsence$"),
	},
	{
		name: `s3: 412 is the truth`, wrong: `our own success, sent twice below, is called not written`,
		edits: []edit{{`s3fence/register.go`, `case unread != nil && o == busy:`, `case unread != nil && o != unknown:`}},
		by:    unitTest("s3fence", "^TestWritesByScript$"),
	},
	{
		name: `s3: refusal ends the doubt`, wrong: `the first copy is still out`,
		edits: []edit{{`s3fence/register.go`, `if o != unknown { //`, `if o != unknown || got.outcome == refused { //`}},
		by:    unitTest("s3fence", "^TestDoubtIsKept$"),
	},
	{
		name: `s3: busy ends the doubt`, wrong: `the first copy is still out`,
		edits: []edit{{`s3fence/register.go`, `if o != unknown { //`, `if o != unknown || got.outcome == busy { //`}},
		by:    unitTest("s3fence", "^TestDoubtIsKept$"),
	},
	{
		name: `s3: 412 ends the doubt`, wrong: `the first copy may be why`,
		edits: []edit{{`s3fence/register.go`, `if o != unknown { //`, `if o != unknown || got.outcome == mismatch { //`}},
		by:    unitTest("s3fence", "^TestWritesByScript$"),
	},
	{
		name: `s3: unknown said as stale`, wrong: `a write that took effect, with many after it, is called stale`,
		edits: []edit{{`s3fence/register.go`, "\treturn unknown, true\n", "\tif o == mismatch {\n\t\treturn mismatch, true\n\t}\n\treturn unknown, true\n"}},
		by:    unitTest("s3fence", "^TestP6UnknownIsNotStale$"),
	},
	{
		name: `s3: lost response said as stale`, wrong: `a write whose response was lost, with many after it, is called stale`,
		edits: []edit{{`s3fence/register.go`, "\treturn unknown, true\n", "\tif o == unknown {\n\t\treturn mismatch, true\n\t}\n\treturn unknown, true\n"}},
		by:    unitTest("s3fence", "^TestLostThenSuccessors$"),
	},
	{
		name: `s3: lost response is not written`, wrong: `the caller writes it again`,
		edits: []edit{{`s3fence/register.go`, `if o == refused || o == busy && last {`, `if o == refused || o == unknown || o == busy && last {`}},
		by:    unitTest("s3fence", "^TestLostAnswersAreResolved$"),
	},
	{
		name: `s3: times without a margin`, wrong: `whole seconds of one store make a version older than it is`,
		edits: []edit{{`s3fence/register.go`, `> sent+clockStep`, `> sent`}},
		by:    unitTest("s3fence", "^TestVerdict$"),
	},
	{
		name: `s3: no look at the end`, wrong: `a write that took effect is an unknown outcome`,
		edits: []edit{{`s3fence/register.go`, `if o == refused || o == busy && last {`, `if o == refused || ctx.Err() != nil || o == busy && last {`}},
		by:    unitTest("s3fence", "^TestEndOfContextByScript$"),
	},
	{
		name: `s3: torn read is damage`, wrong: `a read during a write looks like damage`,
		edits: []edit{{`s3fence/register.go`, `if errors.As(err, new(*DamagedError)) || errors`, `if errors`}},
		by:    unitTest("s3fence", "^TestReadsOfTwoVersions$"),
	},
	{
		name: `s3: cut read is final`, wrong: `one broken connection fails a call that one more read would serve`,
		edits: []edit{{`s3fence/register.go`, ` || errors.As(err, new(*truncatedError)) || v`, ` || v`}},
		by:    unitTest("s3fence", "^TestCutResponses$"),
	},
	{
		name: `s3: a page is believed at once`, wrong: `one page of a front makes an object another program's`,
		edits: []edit{{`s3fence/register.go`, ` || v.kind == kindUnfenced {`, ` {`}},
		by:    unitTest("s3fence", "^TestP6PageAfterALostWrite$"),
	},
	{
		name: `s3: body forgotten on the way`, wrong: `a raise that is overtaken writes back nothing`,
		edits: []edit{{`s3fence/register.go`, `r.read(reading, key, whole)`, `r.read(reading, key, false)`}},
		by:    unitTest("s3fence", "^TestP2WriteDuringRaise$"),
	},
	{
		name: `s3: recent writes not looked at`, wrong: `our own write is not recognised once another follows`,
		edits: []edit{{`s3fence/version.go`, `(v.id == id || slices.Contains(v.recent, id))`, `(v.id == id || slices.Contains(v.recent[:0], id))`}},
		by:    unitTest("s3fence", "^TestLostThenSuccessors$"),
	},
	{
		name: `s3: unfenced base is known`, wrong: `a list of writes seems to reach back to a foreign one`,
		edits: []edit{{`s3fence/version.go`, "\t\tnext.cut = true //", "\t\tnext.cut = false //"}},
		by:    unitTest("s3fence", "^TestFollow$"),
	},
	{
		name: `s3: another key's seal`, wrong: `bytes that were copied here lower the mark`,
		edits: []edit{{`s3fence/seal.go`, `case s.key != keySum(key):`, `case false:`}},
		by:    unitTest("s3fence", "^TestForeignBytesThatEndLikeATrailer$"),
	},
	{
		name: `s3: seal's sum not checked`, wrong: `a changed mark is believed`,
		edits: []edit{{`s3fence/seal.go`, "\tif !intact {", "\tif !intact && len(payload) == 0 {"}},
		by:    unitTest("s3fence", "^TestEveryBit$"),
	},
	{
		name: `s3: metadata not compared`, wrong: `people and tools see another mark than the fence`,
		edits: []edit{{`s3fence/version.go`, `problem := disagreement(&v, o.fencing); problem != ""`, `problem := disagreement(&v, o.fencing); problem == "?"`}},
		by:    unitTest("s3fence", "^TestFormatVectors$"),
	},
	{
		name: `s3: data of a writer that sleeps`, wrong: `a pointer names data that is gone`,
		edits: []edit{{`s3fence/pointerjson.go`, `return id != v.id && slices.Contains(v.recent, id) && old`, `return id != v.id && (slices.Contains(v.recent, id) || true) && old`}},
		by:    unitTest("s3fence", "^TestPausedWriterLeavesNoDanglingPointer$"),
	},
	{
		name: `s3: collector's own clock`, wrong: `a collector whose clock is ahead deletes what readers still read`,
		edits: []edit{{`s3fence/pointerjson.go`, `v.seen.Sub(at) >= grace`, `time.Since(at) >= grace`}},
		by:    unitTest("s3fence", "^TestClocksOfWritersAndCollectors$"),
	},
	{
		name: `s3: lost Expires`, wrong: `adopting an object drops a header`,
		edits: []edit{{`s3fence/metadata.go`, `if v.expires != "" {`, `if false {`}},
		by:    unitTest("s3fence", "^TestAdoptKeepsExpires$"),
	},
	{
		name: `s3: write ID not new`, wrong: `two writes of one body have one ETag`,
		edits: []edit{{`s3fence/arguments.go`, `newWriteID(), time.Now()`, `writeID{}, time.Now()`}},
		by:    unitTest("s3fence", "^TestLostThenSuccessors$"),
	},
	{
		name: `s3: misdirected unseen`, wrong: `a claim for another resource is in no metric`,
		edits: []edit{{`s3fence/arguments.go`, "\t\t\to.observe(ctx, c, guard.Mark{}, err)\n", ``}},
		by:    unitTest("s3fence", "^TestObserver$"),
	},
	{
		name: `s3: remembered version refuses`, wrong: `a refusal that is out of date`,
		edits: []edit{{`s3fence/verbs.go`, "\t\t\tif fresh {\n", "\t\t\tif fresh || known {\n"}},
		by:    unitTest("s3fence", "^TestRequestsPerCall$"),
	},
	{
		name: `s3: raise that does not raise`, wrong: `the old holder writes on`,
		edits: []edit{{`s3fence/verbs.go`, "\t\tif base.mark.Token == claim.Token {\n\t\t\treturn nil, nil\n\t\t}\n\t\treturn o.rewrite", "\t\tif base.mark.Token <= claim.Token {\n\t\t\treturn nil, nil\n\t\t}\n\t\treturn o.rewrite"}},
		by:    unitTest("s3fence", "^TestP2Takeover$"),
	},
	{
		name: `s3: foreign object overwritten`, wrong: `what another program wrote is gone`,
		edits: []edit{{`s3fence/verbs.go`, `case v.gone(), v.kind == o.kind:`, `case v.gone(), v.kind == o.kind, v.kind == kindUnfenced:`}},
		by:    unitTest("s3fence", "^TestUnfencedObjects$"),
	},
	{
		name: `s3: Plain goes on`, wrong: `a stale writer replaces an equal body`,
		edits: []edit{{`s3fence/plain.go`, `o.b.plainStop.CompareAndSwap(nil, o.b.unsuitable("Plain needs opaque ETags", problem))`, `_ = o.b.unsuitable("Plain needs opaque ETags", problem)`}},
		by:    unitTest("s3fence", "^TestP1PlainWhenETagsBecomeHashes$"),
	},
	{
		name: `s3: pattern for writers only`, wrong: `a reader reads another resource's object`,
		edits: []edit{{`s3fence/arguments.go`, "\tif o.pattern != nil {\n\t\tc.claim.Resource", "\tif o.pattern != nil && verb != \"get\" {\n\t\tc.claim.Resource"}},
		by:    unitTest("s3fence", "^TestP9EveryCallHasThePattern$"),
	},
	{
		name: `s3: data deleted in doubt`, wrong: `a pointer names data that is gone`,
		edits: []edit{{`s3fence/pointers.go`, "\t_, back := from.Seek(from.start, io.SeekStart)\n\treturn errors.Join(err, back)\n", "\to.b.discard(ctx, made.Data)\n\t_, back := from.Seek(from.start, io.SeekStart)\n\treturn errors.Join(err, back)\n"}},
		by:    unitTest("s3fence", "^TestDoubtIsKept$"),
	},
	{
		name: `s3: race that never met`, wrong: `a store that lets all through passes behind a limiter`,
		edits: []edit{{`s3fence/internal/s3probe/s3probe.go`, `case won == "", met < minMet:`, `case won == "":`}},
		by:    unitTest("s3fence", "^TestProbeOfARaceThatNeverMet$"),
	},
	{
		name: `s3: two winners`, wrong: `a store that races passes`,
		edits: []edit{{`s3fence/internal/s3probe/s3probe.go`, "\tif winners > 1 {", "\tif winners > Writers {"}},
		by:    unitTest("s3fence", "^TestRacingWritersMeet$"),
	},
	{
		name: `s3: report on another store`, wrong: `a bucket is opened unprobed`,
		edits: []edit{{`s3fence/probe.go`, `case r.Endpoint != b.endpoint:`, `case false:`}},
		by:    unitTest("s3fence", "^TestProbeIsUsable$"),
	},
	{
		name: `s3: newer ETag, older mark`, wrong: `a write that was decided on an old mark is accepted`,
		edits: []edit{{`s3fence/internal/s3probe/s3probe.go`, "\t\tcase written > version:", "\t\tcase false:"}},
		by:    unitTest("s3fence/internal/s3probe", "^TestSightingsAreJudged$"),
	},
	{
		name: `s3: one gateway probed`, wrong: `what the other gateway keeps for itself is not seen`,
		edits: []edit{{`s3fence/probe.go`, `stores = append(stores, probed{&sdk`, `_ = append(stores, probed{&sdk`}},
		by:    unitTest("s3fence", "^TestProbeThroughTwoGateways$"),
	},
}

func init() { mistakes = append(mistakes, s3Mistakes...) }
