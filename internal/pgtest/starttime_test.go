package pgtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestStartIsQuick: a start takes less than three seconds or, on a busy or slow
// machine, not much longer than its main part: initdb, which wrote the first and
// the last file of an empty data directory.
func TestStartIsQuick(t *testing.T) {
	var took, made time.Duration
	for range 5 { // a busy machine may be slow once
		begin := time.Now()
		server := start(t, nil)
		took = time.Since(begin)
		made = initdbTook(t, server)
		t.Logf("PostgreSQL %s (%d) in %s after %v, of which initdb took %v", server.Version(), server.VersionNum(),
			server.Dir(), took.Round(time.Millisecond), made.Round(time.Millisecond))
		if major, _, _ := strings.Cut(server.Version(), "."); major != strconv.Itoa(server.VersionNum()/10000) {
			t.Errorf("version %s has the number %d", server.Version(), server.VersionNum())
		}
		if took < 3*time.Second || took < 3*made {
			return
		}
	}
	t.Errorf("Start took %v, initdb %v of it", took, made)
}

// initdbTook returns the time between initdb's first file and its end, by the
// supervisor's log of it.
func initdbTook(t *testing.T, server *Server) time.Duration {
	t.Helper()
	first, err := os.Stat(filepath.Join(server.Dir(), "data", "PG_VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	last, err := os.Stat(filepath.Join(server.Dir(), "initdb.log"))
	if err != nil {
		t.Fatal(err)
	}
	return last.ModTime().Sub(first.ModTime())
}
