package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// Standby starts another private server which replicates this one by
// asynchronous streaming and answers queries that read. It has this server's
// password, and its settings but for the defaults of this package.
// SELECT pg_promote() makes it a primary of its own.
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

// follow takes a copy of the primary in the place of what initdb made.
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
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "pg_basebackup"), "--pgdata", data, "--write-recovery-conf",
		"--wal-method=stream", "--checkpoint=fast", "--no-sync", "--host", "127.0.0.1", "--port", strconv.Itoa(primary.port), "--username", "postgres")
	cmd.Dir = "/"
	cmd.Env = append(environment(os.Environ()), "PGPASSWORD="+primary.password)
	if err := detach(cmd); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: pg_basebackup: %w\n%s", err, out)
	}
	own, err := os.ReadFile(filepath.Join(s.dir, "server.conf"))
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	_, err = file.Write(own)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return s.serve(ctx)
}
