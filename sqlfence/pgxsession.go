package sqlfence

import "github.com/jackc/pgx/v5"

// pgxSession is what decides how the callback's first statement is sent in a session, and is
// kept with the connection.
type pgxSession struct {
	// separate: BEGIN always goes by itself, since a tracer would see the statement as part of a batch, the simple protocol takes
	// several statements for one, and a mode that describes each one first would do so
	// before BEGIN.
	separate bool
	// caches: pgx prepares or describes a text once, with a round trip before BEGIN, in
	// which the text would wait for locks without lock_timeout, and before the claim was
	// judged. So only a text that it should have goes with BEGIN; if it has dropped one for
	// others since, that text is prepared before.
	caches bool
	cached map[string]bool
	named  bool // the callback of some transaction has prepared a statement of its own
}

// maxCached bounds the texts that are noted; later ones do not go with BEGIN.
const maxCached = 256

// sessionOf returns the session of a connection.
func sessionOf(c *pgx.Conn) *pgxSession {
	const key = "fencepost"
	data := c.PgConn().CustomData()
	if s, known := data[key].(*pgxSession); known {
		return s
	}
	s, config := &pgxSession{cached: map[string]bool{}}, c.Config()
	switch config.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe:
		s.caches = true
	case pgx.QueryExecModeExec:
	default:
		s.separate = true
	}
	s.separate = s.separate || config.Tracer != nil
	data[key] = s
	return s
}

// together reports whether queries are sent with BEGIN.
func (s *pgxSession) together(queries []*pgx.QueuedQuery) bool {
	if s.separate {
		return false
	}
	for _, q := range queries {
		if s.caches && !s.cached[q.SQL] {
			return false
		}
	}
	return len(queries) > 0
}

// keep notes what pgx has cached, or has dropped because it failed. It hears of no eviction.
func (s *pgxSession) keep(texts []string, cached bool) {
	for _, text := range texts {
		switch {
		case !s.caches:
		case !cached:
			delete(s.cached, text)
		case len(s.cached) < maxCached:
			s.cached[text] = true
		}
	}
}
