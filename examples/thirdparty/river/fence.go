package main

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
