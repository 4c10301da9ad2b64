package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Standby starts another private server, which replicates this one by
// asynchronous streaming and accepts read-only queries. It has this server's
// password, and its settings except the defaults of this package. SELECT
// pg_promote() makes it a primary of its own.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	opts := &Options{Settings: map[string]string{
		"primary_conninfo": "host=127.0.0.1 port=" + strconv.Itoa(s.port) + " user=postgres password=" + s.password,
	}}
	return begin(ctx, s.bin, opts, func(standby *Server) error {
		standby.password = s.password
		if err := standby.copyFrom(ctx, s); err != nil {
			return fmt.Errorf("pgtest: copy the primary: %w", err)
		}
		return nil
	})
}

// copyFrom makes a base backup of the primary. pg_basebackup would do the same,
// but not every set of server binaries has it. cp may miss files that PostgreSQL
// removes during the copy, because a backup does not need them; a backup that
// lacks more does not start.
func (s *Server) copyFrom(ctx context.Context, primary *Server) (err error) {
	conn, err := pgx.Connect(ctx, primary.URL())
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, conn.Close(closing))
	}()
	begin, end := "SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if conn.PgConn().ParameterStatus("server_version") < "15" {
		begin, end = "SELECT pg_start_backup('standby', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		return err
	}
	if err := s.shell(ctx, `cp -R -p "$1" "$2" 2>"$2.log" || :
rm -rf "$2/postmaster.pid" "$2/postmaster.opts" "$2/pg_wal" "$2"/pg_replslot/*`, primary.data(), s.data()); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return err
	}
	// All of the WAL since the beginning of the backup is still there: none of
	// it is removed before max_wal_size has been written.
	return s.shell(ctx, `cp -R -p "$1/pg_wal" "$2/pg_wal" && : >"$2/standby.signal" && printf %s "$3" >"$2/backup_label"`,
		primary.data(), s.data(), label)
}

// shell runs commands as the user that owns the servers' directories.
func (s *Server) shell(ctx context.Context, commands string, args ...string) error {
	return output(program(ctx, s.dog.dir, "/bin/sh", append([]string{"-c", commands, "pgtest"}, args...)...))
}
