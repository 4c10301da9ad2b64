package pgadmin

import (
	"context"
	"iter"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/internal/pattern"
	"github.com/fencepost-go/fencepost/lockclient/internal/pglease"
	"github.com/fencepost-go/fencepost/lockclient/pglock"
	"github.com/fencepost-go/fencepost/sqlfence/sqladmin"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What compares the issuer with sqlfence's marks in the same database.

// Issued returns the highest token that was granted or invalidated on the resource, or the
// floor, which every later token is above; guard.NoToken if there is neither. It writes
// nothing, as [Operator.Epoch] may.
//
// Errors: guard.ErrUnavailable.
func (o *Operator) Issued(ctx context.Context, resource string) (guard.Token, error) {
	const sql = "SELECT coalesce(max(l.token), 0) FROM fencepost.leases l WHERE l.resource IN ($1::text, '')"
	rows, err := query(ctx, o, "ask the issuer", func(row pgx.Row, t *guard.Token) error { return row.Scan((*int64)(t)) }, sql, resource)
	if err != nil {
		return guard.NoToken, err
	}
	return rows[0], nil
}

// AheadMark is a mark above everything that the issuer has granted there.
type AheadMark struct {
	sqladmin.ResourceMark
	// Issued is the token that the issuer had reached.
	Issued guard.Token
}

const (
	aheadEnd      = "m.resource < $2::text"
	marksAheadSQL = `SELECT m.resource, m.token, m.lease_id, m.raised_at, greatest(coalesce(l.token, 0), f.token)
FROM fencepost.marks m
CROSS JOIN (SELECT coalesce(max(l.token), 0) AS token FROM fencepost.leases l WHERE l.resource = '') f
LEFT JOIN fencepost.leases l ON l.resource = m.resource
WHERE m.resource > $3::text AND m.resource >= $1::text AND ` + aheadEnd + ` AND ($5::text IS NULL OR m.resource ~ $5::text)
  AND m.token > greatest(coalesce(l.token, 0), f.token)
ORDER BY m.resource LIMIT $4::bigint`
)

// MarksAhead yields the marks that are ahead of the issuer, as after a restore, in the order of
// the names that the pattern selects: every holder is refused at them until the issuer is
// advanced above it. It needs sqlfence's part of the schema, and reads page by page.
//
// An error ends the sequence: guard.ErrInvalid (pattern), guard.ErrUnavailable.
func (o *Operator) MarksAhead(ctx context.Context, selected string) iter.Seq2[AheadMark, error] {
	p, err := pattern.New("pattern", selected)
	return paged("", err, func(after string, limit int) ([]AheadMark, string, bool, error) {
		marks, err := query(ctx, o, "list marks", func(row pgx.Row, m *AheadMark) error {
			return row.Scan(&m.Resource, (*int64)(&m.Token), &m.LeaseID, &m.RaisedAt, (*int64)(&m.Issued))
		}, p.Bounded(marksAheadSQL, aheadEnd), p.Low, p.High, after, limit, p.Expression)
		if len(marks) > 0 {
			after = marks[len(marks)-1].Resource
		}
		return marks, after, len(marks) == limit, err
	})
}

// Component is a part of schema fencepost and the version that a database has of it.
type Component struct {
	// Name is "lockclient" or "sqlfence", in the order in which they are migrated.
	Name string
	// Applied is the database's version, 0 if it is not there; UsableFrom is the version that a
	// build must know to use it; Known is this build's.
	Applied, UsableFrom, Known int64
}

// Components returns the parts of the schema and their versions. It needs no schema. The
// error is guard.ErrUnavailable, or pgx's for a role that may not read fencepost.migrations.
func Components(ctx context.Context, pool *pgxpool.Pool) ([]Component, error) {
	all := []Component{{Name: "lockclient", Known: known(pglock.MigrationSQL(), "lockclient")}, {Name: "sqlfence", Known: known(sqladmin.MigrationSQL(), "sqlfence")}}
	// The record may be from a build that did not know of usable_from.
	const sql = `SELECT m.component, max(m.version)::bigint, max(coalesce((to_jsonb(m) ->> 'usable_from'::text)::bigint, m.version))::bigint
FROM fencepost.migrations m GROUP BY m.component`
	rows, _ := pool.Query(ctx, sql) // rows has the error too
	var component string
	var applied, usableFrom int64
	_, err := pgx.ForEachRow(rows, []any{&component, &applied, &usableFrom}, func() error {
		for n := range all {
			if all[n].Name == component {
				all[n].Applied, all[n].UsableFrom = applied, usableFrom
			}
		}
		return nil
	})
	switch pg := pglease.Error(err); {
	case pg != nil && (pg.Code == "42P01" || pg.Code == "3F000"): // no table, no schema
		return all, nil
	case err != nil:
		return nil, pglease.Failure("read the schema's version", guard.Claim{}, pglease.Harmless(err))
	}
	return all, nil
}

// known counts the headlines of a script.
func known(script, component string) int64 {
	return int64(strings.Count(script, "\n-- "+component+" version "))
}
