package sqlfence

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// pgxFirst is what a callback sends first, which goes with BEGIN and enter in one round
// trip: the server skips it if it refuses the claim.
type pgxFirst struct {
	queries []*pgx.QueuedQuery
	results pgx.BatchResults // of the queries; nil if there are none, or they have to be sent by themselves
	cut     bool             // the connection ended, or the context, while they were under way
}

// pgxHandle is a callback's handle of its transaction, or of a savepoint in it. A checked
// COMMIT bypasses pgx's own handle, which would not know that the transaction is over
// and would keep writing, on a connection that somebody else uses by then; so end closes
// this one.
type pgxHandle struct {
	pgx.Tx // pgx's own; nil until the transaction begins
	conn   *pgxConn
	ctx    context.Context // for methods that have none
	// begin begins the transaction; nil once it was called. refused is its error.
	begin   func(ctx context.Context, with *pgxFirst) error
	refused error

	texts      []string // what was sent first
	savepoints []*pgxHandle
	objects    bool // LargeObjects was called
}

// start begins the transaction, unless that was done. A refusal is for good; after
// an ended context the next call may begin it.
func (t *pgxHandle) start(ctx context.Context, with *pgxFirst) error {
	if t.begin == nil {
		return t.refused
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	begin := t.begin
	t.begin, t.Tx, t.refused = nil, closedTx(), errPanicked
	if t.refused = begin(ctx, with); t.refused == nil {
		t.Tx = t.conn.open
		t.conn.mayHaveEnded = t.conn.mayHaveEnded || sessionOf(t.conn.Conn).named
	}
	return t.refused
}

// errPanicked is the refusal after a panic while the first statement was sent.
var errPanicked = errors.New("fencepost: the transaction did not begin: sending its first statement panicked")

// first begins the transaction with the callback's first statements and returns their
// results, which are errors if it did not begin; nil if the statements are not the first,
// or have to be sent by themselves.
func (t *pgxHandle) first(ctx context.Context, queries ...*pgx.QueuedQuery) pgx.BatchResults {
	single := len(queries) > 0
	for _, q := range queries {
		single = t.single(q) && single
	}
	var with pgxFirst
	if t.texts = nil; single && t.begin != nil {
		with.queries = queries
		for _, q := range queries {
			t.texts = append(t.texts, q.SQL)
		}
	}
	if err := t.start(ctx, &with); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err)
	}
	return with.results
}

// sent is called with the outcome of what was sent first: pgx keeps what it has prepared, unless
// it fails.
func (t *pgxHandle) sent(err error) {
	if len(t.texts) > 0 && t.conn.Conn != nil {
		sessionOf(t.conn.Conn).keep(t.texts, err == nil)
	}
	t.texts = nil
}

// single reports whether a statement is a usual one, has no second in it, and no option that a
// batch does not have. It notes any other, after which COMMIT looks whether the transaction
// is still the same.
func (t *pgxHandle) single(q *pgx.QueuedQuery) bool {
	single := usual(q.SQL)
	for _, arg := range q.Arguments {
		switch arg.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			single = false
		case pgx.NamedArgs, pgx.StrictNamedArgs:
		case pgx.QueryRewriter: // is given the connection
			single = false
		}
	}
	if !single {
		t.conn.notUsual(q.SQL)
	}
	return single
}

// commits finds what may be a COMMIT in a text, or hide one.
var commits = regexp.MustCompile(`(?i)\b(COMMIT|END)\b`)

// notUsual notes a text that can end the transaction.
func (c *pgxConn) notUsual(text string) {
	c.mayHaveEnded = true
	c.mayHaveCommitted = c.mayHaveCommitted || commits.MatchString(text)
}

// usual reports whether a text is one statement, and begins with one of these words.
func usual(text string) bool {
	text = strings.TrimRight(text, "; \t\r\n")
	for text = strings.TrimSpace(text); strings.HasPrefix(text, "--"); text = strings.TrimSpace(text) {
		end := strings.IndexAny(text, "\r\n")
		if end < 0 {
			return false
		}
		text = text[end:] // skips a line such as sqlc's "-- name"
	}
	word := text
	if end := strings.IndexAny(text, " \t\r\n"); end >= 0 {
		word = text[:end]
	}
	switch strings.ToUpper(word) {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH":
		return word != text && !strings.Contains(text, ";") // one word is the name of a prepared one
	}
	return false
}

// open returns pgx's handle of the transaction, which has begun; a closed one if the callback
// has ended it in SQL, since a statement would commit by itself, without a fence.
func (t *pgxHandle) open() pgx.Tx {
	if c := t.Tx.Conn(); c != nil && !c.IsClosed() && !c.PgConn().IsBusy() && c.PgConn().TxStatus() == 'I' {
		return closedTx()
	}
	return t.Tx
}

func (t *pgxHandle) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	q := &pgx.QueuedQuery{SQL: sql, Arguments: args}
	if !prepared(q) {
		t.single(q)
		if err := t.start(ctx, nil); err != nil {
			return tag, err
		}
		tag, err = t.open().Exec(ctx, sql, args...)
	} else if br := t.first(ctx, q); br != nil {
		tag, err = br.Exec()
		if closing := br.Close(); err == nil {
			err = closing
		}
	} else {
		tag, err = t.open().Exec(ctx, sql, args...)
	}
	t.sent(err)
	return tag, err
}

// prepared reports whether pgx's Exec prepares a statement: without arguments it sends the
// text as it is, and constants such as 'now' are read each time.
func prepared(q *pgx.QueuedQuery) bool {
	switch len(q.Arguments) {
	case 0:
		return false
	case 1:
		switch q.Arguments[0].(type) {
		case pgx.NamedArgs, pgx.StrictNamedArgs:
			return strings.Contains(q.SQL, "@")
		}
	}
	return true
}

func (t *pgxHandle) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if br := t.first(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args}); br != nil {
		rows, err := br.Query()
		first := &pgxRows{Rows: rows, of: t, results: br}
		if err != nil {
			first.Close()
		}
		return first, err
	}
	rows, err := t.open().Query(ctx, sql, args...)
	t.sent(err)
	return &pgxRows{Rows: rows, of: t}, err
}

func (t *pgxHandle) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if br := t.first(ctx, &pgx.QueuedQuery{SQL: sql, Arguments: args}); br != nil {
		return pgxRow{br.QueryRow(), t, br}
	}
	return pgxRow{t.open().QueryRow(ctx, sql, args...), t, nil}
}

func (t *pgxHandle) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	br := t.first(ctx, b.QueuedQueries...)
	t.conn.mayHaveEnded = true // its rows have the connection
	if br == nil {
		br = t.open().SendBatch(ctx, b)
	}
	return pgxResults{br, t}
}

func (t *pgxHandle) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	if err := t.start(ctx, nil); err != nil {
		return 0, err
	}
	return t.open().CopyFrom(ctx, table, columns, rows)
}

func (t *pgxHandle) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.start(ctx, nil); err != nil {
		return nil, err
	}
	t.conn.notUsual(sql) // its name will say nothing
	sessionOf(t.conn.Conn).named = true
	return t.open().Prepare(ctx, name, sql)
}

func (t *pgxHandle) Commit(ctx context.Context) error {
	if err := t.start(ctx, nil); err != nil {
		return err
	}
	tx := t.open()
	err := tx.Commit(ctx)
	t.conn.mayHaveCommitted = t.conn.mayHaveCommitted || tx == t.conn.open // a savepoint's is none
	return err
}

func (t *pgxHandle) Rollback(ctx context.Context) error {
	if err := t.start(ctx, nil); err != nil {
		return err
	}
	return t.open().Rollback(ctx)
}

func (t *pgxHandle) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.start(ctx, nil); err != nil {
		return nil, err
	}
	tx, err := t.open().Begin(ctx)
	if err != nil {
		return nil, err
	}
	savepoint := &pgxHandle{Tx: tx, conn: t.conn}
	t.savepoints = append(t.savepoints, savepoint)
	return savepoint, nil
}

// LargeObjects returns what writes through pgx's own handle.
func (t *pgxHandle) LargeObjects() pgx.LargeObjects {
	if t.start(t.ctx, nil) != nil {
		return closedTx().LargeObjects()
	}
	t.objects = true
	return t.Tx.LargeObjects()
}

// Conn returns the connection, in the transaction. If that did not begin, what is
// sent would not be fenced, and so the connection is closed.
func (t *pgxHandle) Conn() *pgx.Conn {
	t.conn.mayHaveEnded = true
	if t.start(t.ctx, nil) != nil {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		t.conn.Conn.Close(over)
		return t.conn.Conn
	}
	return t.Tx.Conn()
}

// end makes every further use an error. pgx's own handle is closed by a COMMIT
// that is not sent but that a tracer sees, so this is done only if something
// still has that handle.
func (t *pgxHandle) end() {
	if t.objects {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		t.Tx.Commit(over)
	}
	t.Tx, t.begin, t.refused = closedTx(), nil, nil
	for _, savepoint := range t.savepoints {
		savepoint.end()
	}
}

// closedTx fails every call with pgx.ErrTxClosed.
func closedTx() pgx.Tx { return pgx.FailedBatchResults(pgxBegin(readCommitted), pgx.ErrTxClosed).Tx() }

// Native returns the connection, without beginning the transaction.
func (t *pgxHandle) Native() *pgx.Conn {
	if t.Tx == nil || t.refused != nil {
		return t.conn.Conn
	}
	return t.Tx.Conn()
}

// pgxResults are those of a callback's batch: BEGIN was not one of its own.
type pgxResults struct {
	pgx.BatchResults
	of *pgxHandle
}

func (pgxResults) Tx() pgx.Tx { return nil }

func (r pgxResults) Close() error {
	err := r.BatchResults.Close()
	r.of.sent(err)
	return err
}

// pgxRow is the row of a callback's statement. That of the first frees the connection
// once it was read.
type pgxRow struct {
	pgx.Row
	of      *pgxHandle
	results pgx.BatchResults // nil if it was not the first
}

func (r pgxRow) Scan(dest ...any) error {
	r.of.conn.scans(dest)
	err := r.Row.Scan(dest...)
	if r.results != nil {
		if closing := r.results.Close(); err == nil {
			err = closing
		}
	}
	r.of.sent(err)
	return err
}

// scans notes a destination that is given the rows, which have the connection.
func (c *pgxConn) scans(dest []any) {
	for _, d := range dest {
		if _, is := d.(pgx.RowScanner); is {
			c.mayHaveEnded = true
		}
	}
}

// pgxRows are the rows of a callback's statement. Those of the first free the
// connection once they were read.
type pgxRows struct {
	pgx.Rows
	of      *pgxHandle
	results pgx.BatchResults // nil if it was not the first
	closing error
}

func (r *pgxRows) Conn() *pgx.Conn {
	r.of.conn.mayHaveEnded = true
	return r.Rows.Conn()
}

func (r *pgxRows) Close() {
	r.Rows.Close()
	if r.results != nil {
		r.closing = r.results.Close()
		r.of.sent(r.closing)
	}
}

func (r *pgxRows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Scan and Values close the rows if they fail, as pgx's own do.
func (r *pgxRows) Scan(dest ...any) error {
	r.of.conn.scans(dest)
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

func (r *pgxRows) Values() ([]any, error) {
	values, err := r.Rows.Values()
	if err != nil {
		r.Close()
	}
	return values, err
}

func (r *pgxRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.closing
}
