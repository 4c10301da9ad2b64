// Package demo is what the examples share and nobody needs to copy: a main
// function, and a temporary database.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost-go/fencepost/internal/pgtest"
)

// ErrUnexpected is returned by an example that did not show what it promises.
var ErrUnexpected = errors.New("the example did not end as it should")

// Main runs an example until it returns, is interrupted or reaches limit; 0
// means no limit. It exits with 1 if run fails.
func Main(limit time.Duration, run func(ctx context.Context, out io.Writer) error) {
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if limit > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

// Pool returns connections to an empty PostgreSQL database, and a function that
// removes both.
func Pool(ctx context.Context) (*pgxpool.Pool, func(), error) {
	url, cleanup, err := pgtest.Provide(ctx)
	if err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		cleanup()
		return nil, nil, err
	}
	return pool, func() { pool.Close(); cleanup() }, nil
}
