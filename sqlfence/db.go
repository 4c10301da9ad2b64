package sqlfence

import (
	"context"
	"crypto/rand"

	"github.com/fencepost-go/fencepost/guard"
)

// DB is a PostgreSQL database whose writes are fenced. Tx is its driver's
// transaction: make a DB[pgx.Tx] with [Pgx] and a DB[*sql.Tx] with [Std]; both
// run the same statements. The zero value is not usable. It is safe for
// concurrent use, and owns neither the pool nor its connections.
type DB[Tx any] struct {
	backend backend[Tx]
	opts    Options
	commits *commitBound
	marker  string
	holders holderTimes
}

func newDB[Tx any](d backend[Tx], opts *Options) (*DB[Tx], error) {
	if opts == nil {
		opts = &Options{}
	}
	o, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	return &DB[Tx]{backend: d, opts: o, commits: &commitBound{timeout: o.CommitTimeout}, marker: rand.Text()}, nil
}

func (d *DB[Tx]) observe(ctx context.Context, e guard.Event) {
	if d.opts.Observer == nil {
		return
	}
	e.Surface = guard.SurfaceSQL
	e.Reason = guard.ReasonOf(e.Err)
	d.opts.Observer.Observe(ctx, e)
}
