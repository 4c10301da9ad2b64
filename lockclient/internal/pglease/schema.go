package pglease

import (
	"embed"
	"fmt"
	"io/fs"
	"sync"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/internal/migrate"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

//go:embed down.sql
var removalSQL string

// Schema is read when first needed, so that a program that imports this package
// without using it pays nothing.
var Schema = sync.OnceValue(func() migrate.Component {
	dir, _ := fs.Sub(migrationFiles, "migrations") // fails only for a malformed name
	c := migrate.Load("lockclient", dir)
	c.Removal = removalSQL
	return c
})

// checkVersion returns why a database whose schema has the given version cannot
// be used; nil if it can.
func checkVersion(have int64) error {
	want := int64(Schema().Version())
	switch {
	case have > want:
		return &versionError{&migrate.NewerError{Component: Schema().Name, Have: have, Know: int(want)}}
	case have < want:
		return &versionError{fmt.Errorf("schema fencepost has lockclient version %d, this build needs %d: run pglock.Migrate, or pgadmin.Migrate for leases and marks", have, want)}
	}
	return nil
}

// versionError says why a database cannot be used by this build.
type versionError struct{ error }

func (e *versionError) Unwrap() []error { return []error{guard.ErrSetup, e.error} }
