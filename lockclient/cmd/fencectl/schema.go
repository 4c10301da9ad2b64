package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost-go/fencepost/internal/migrate"
	"github.com/fencepost-go/fencepost/lockclient"
	"github.com/fencepost-go/fencepost/sqlfence"

	"github.com/jackc/pgx/v5/pgconn"
)

// The components of schema fencepost.
const (
	leasesComponent = "lockclient"
	marksComponent  = "sqlfence"
)

var components = []string{leasesComponent, marksComponent}

// schemaSQL is the whole schema of a component as a script.
func schemaSQL(component string) string {
	if component == marksComponent {
		return sqlfence.MigrationSQL()
	}
	return lockclient.MigrationSQL()
}

// known is the version of a component that this build needs: the script has a
// headline for each.
func known(component string) int64 {
	return int64(strings.Count(schemaSQL(component), "\n-- "+component+" version "))
}

// checkSchema refuses a database whose schema is not this build's. A role that
// may not see the versions is let through: what it does next says more.
func (s *session) checkSchema(ctx context.Context, needed []string) error {
	have, err := s.versions(ctx)
	switch {
	case noRights(err) && sqlState(err) == "42501":
		return nil
	case err != nil:
		return failed("read the schema's version", err)
	}
	for _, component := range needed {
		if err := compare(component, have[component]); err != nil {
			return err
		}
	}
	return nil
}

func compare(component string, have int64) error {
	want := known(component)
	switch {
	case have == 0:
		return &coded{exitSchema, "schema_missing", fmt.Errorf("the database has no schema of %s: run fencectl migrate", component)}
	case have < want:
		return &coded{exitSchema, "schema_older", fmt.Errorf("the database has %s version %d, this build needs %d: run fencectl migrate", component, have, want)}
	case have > want:
		return &coded{exitSchema, "schema_newer", fmt.Errorf("the database has %s version %d, this build knows %d: use a newer fencectl", component, have, want)}
	}
	return nil
}

// versions reads what was applied, by component; nothing if there is no schema.
func (s *session) versions(ctx context.Context) (map[string]int64, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found := map[string]int64{}
	rows, err := s.pool.Query(ctx, "SELECT component, max(version)::bigint FROM fencepost.migrations GROUP BY component")
	if err != nil {
		return found, unlessMissing(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var version int64
		if err := rows.Scan(&name, &version); err != nil {
			return found, err
		}
		found[name] = version
	}
	return found, unlessMissing(rows.Err())
}

func unlessMissing(err error) error {
	if missing(err) {
		return nil
	}
	return err
}

// missing reports that a table, function or schema of the statement is not
// there (PostgreSQL documentation, appendix A).
func missing(err error) bool {
	switch sqlState(err) {
	case "42P01", "42883", "3F000", "42703":
		return true
	}
	return false
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// schemaReason says what is wrong with the database's schema; empty if the
// error is about something else.
func schemaReason(err error) string {
	var newer *migrate.NewerError
	switch {
	case errors.As(err, &newer):
		return "schema_newer"
	case missing(err):
		return "schema_missing"
	}
	return ""
}
