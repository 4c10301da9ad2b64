// Package river fences the jobs of River, a job queue in PostgreSQL, without a lease client: the
// attempt number that River counts is the fencing token. Copy this file, give River the fence as a
// plugin, and write in InTx under the claim in the context.
//
// River hands a job out again after RescueStuckJobsAfter, while its first worker may still run: the
// context's deadline, JobTimeout, stops no statement that is on its way and no code that does not
// obey it. TestRiver shows both attempts at work, with the fence and without.
//
// # What the number promises
//
// The claim of an attempt is the job ("river-job:7"), Attempt plus the number of
// snoozes, and AttemptedAt as the lease ID. It grows with each attempt after an
// error, a timeout, a rescue, a snooze, a shutdown and a manual retry. Attempt by
// itself does not: a snooze and a shutdown (SoftStopTimeout, StopAndCancel) give it back.
//
// # What it does not
//
//   - It fences attempts of one job. Two jobs on the same data, as of a periodic
//     job, have two resources and exclude each other nowhere: take a lease, or use
//     River's unique jobs and a constraint.
//   - River's own row is not fenced. What a stale attempt returns becomes the state
//     of the job while a newer one is running: nil completes it, so complete the job
//     in the fenced transaction (JobCompleteTx); an error hands it out once more,
//     and that attempt takes over; a snooze makes a number repeat, which the lease
//     ID turns into a conflict and the attempt after it ends.
//   - It is as durable as River's commit. With synchronous_commit off, or after a
//     restore, a number may come again: a conflict in the same database, and stale
//     at marks that are elsewhere.
//   - A job that is deleted leaves its mark: [sqlfence.DB.Retire] removes it. A new
//     job has a new ID, unless somebody resets the sequence; then it is refused as
//     stale until its attempts exceed the mark.
package river

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/sqlfence"
)

var jobs = guard.Must(guard.NewTemplate("river-job:{id:int}"))

// claimOf returns what an attempt presents. River counts an attempt when it hands
// the job out and takes the number back at a snooze, which it counts in the job's
// metadata; the sum only grows. The start of the attempt is the lease ID: a number
// that was handed out twice all the same is a conflict, not a second holder.
func claimOf(job *rivertype.JobRow) (guard.Claim, error) {
	var counted struct{ Snoozes int }
	if err := json.Unmarshal(job.Metadata, &counted); err != nil {
		return guard.Claim{}, fmt.Errorf("metadata of job %d: %w", job.ID, err)
	}
	resource, err := jobs.Name(strconv.FormatInt(job.ID, 10))
	return guard.Claim{
		Resource: resource,
		Token:    guard.Token(job.Attempt + counted.Snoozes),
		LeaseID:  job.AttemptedAt.UTC().Format(time.RFC3339Nano),
	}, err
}

// fence is the middleware: it gives each attempt its claim, and raises the mark
// before the worker reads anything, so that no older attempt writes after that.
type fence struct {
	river.MiddlewareDefaults
	db *sqlfence.DB[pgx.Tx]
}

func (f *fence) Work(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	claim, err := claimOf(job)
	if err != nil {
		return err
	}
	if err := f.db.Raise(ctx, claim); err != nil {
		return err
	}
	err = work(guard.WithClaim(ctx, claim))
	if err != nil && ctx.Err() != nil {
		// River would give the number of an attempt that its shutdown cancelled to
		// the next one. It looks for the cancellation in the error: hide it there.
		return fmt.Errorf("attempt %d was stopped: %v", job.Attempt, err)
	}
	return err
}
