package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5"
)

// Standby starts another private server, which replicates this one by
// asynchronous streaming and answers read-only queries. It has this server's
// password, and its settings except the defaults of this package. SELECT
// pg_promote() makes it a primary of its own.
func (s *Server) Standby(ctx context.Context) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	name := "fencepost-pgtest-" + randomHex(6)
	configuration, err := (&Options{}).configuration(name)
	if err != nil {
		return nil, err
	}
	secret, err := newSecret()
	if err != nil {
		return nil, err
	}
	standby := &Server{bin: s.bin, password: s.password}
	standby.supervisor, err = supervise(name, s.bin, roots(false), secret.verifier, configuration)
	if err != nil {
		return nil, err
	}
	standby.dir = standby.supervisor.dir
	if err := standby.follow(ctx, s); err != nil {
		return nil, errors.Join(err, standby.Stop())
	}
	return standby, nil
}

// follow replaces what initdb made with a copy of the primary.
func (s *Server) follow(ctx context.Context, primary *Server) error {
	if code, err := s.supervisor.reply(ctx, "initdb"); err != nil {
		return err
	} else if code != "0" {
		return fmt.Errorf("pgtest: %s/initdb failed:\n%s", s.bin, s.tail("initdb.log", 0))
	}
	data := filepath.Join(s.dir, "data")
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if err := s.copyFrom(ctx, primary, data); err != nil {
		return err
	}
	own, err := os.ReadFile(filepath.Join(s.dir, "server.conf"))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	_, err = fmt.Fprintf(file, "%sprimary_conninfo = 'host=127.0.0.1 port=%d user=postgres password=%s'\n", own, primary.port, primary.password)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return s.serve(ctx)
}

// copyFrom makes a base backup of the primary into data. pg_basebackup would do
// the same, but not every set of server binaries has it. cp may miss files that
// PostgreSQL removes during the copy, because a backup does not need them; a
// backup that lacks more does not start.
func (s *Server) copyFrom(ctx context.Context, primary *Server, data string) (err error) {
	conn, err := pgx.Connect(ctx, primary.URL())
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	begin, end := "SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if primary.versionNum < 150000 {
		begin, end = "SELECT pg_start_backup('standby', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	const files = `cp -R -p "$1" "$2" 2>"$2.log" || :
rm -rf "$2/postmaster.pid" "$2/postmaster.opts" "$2/pg_wal" "$2"/pg_replslot/*`
	if err := s.shell(ctx, files, primary, data); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	// All of the WAL since the beginning of the backup is still there: none of
	// it is removed before max_wal_size has been written.
	const log = `cp -R -p "$1/pg_wal" "$2/pg_wal" && : >"$2/standby.signal" && printf %s "$3" >"$2/backup_label"`
	return s.shell(ctx, log, primary, data, label)
}

// shell runs a script as the user that owns the servers' directories, with the
// primary's data directory as its first argument.
func (s *Server) shell(ctx context.Context, script string, primary *Server, args ...string) error {
	args = append([]string{"-c", script, "pgtest", filepath.Join(primary.dir, "data")}, args...)
	cmd := exec.CommandContext(ctx, "/bin/sh", args...)
	cmd.Dir = "/"
	cmd.Env = environment(os.Environ())
	if err := detach(cmd); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: copy the primary: %w\n%s", err, out)
	}
	return nil
}
