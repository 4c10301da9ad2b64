//go:build long && unix

package main

import (
	"bufio"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLongListOf200000: a list of 200,000 leases takes no more memory than a page.
func TestLongListOf200000(t *testing.T) {
	const leases = 200_000
	url, pool := database(t)
	exec1(t, pool, `INSERT INTO fencepost.leases (resource, token, lease_id, owner, acquired_at, expires_at)
		SELECT 'tenant_' || g % 1000 || ':billing-close:' || g, g, gen_random_uuid(), 'worker-' || g % 50, clock_timestamp(), clock_timestamp() + interval '1 hour'
		FROM generate_series(1, $1::bigint) g ORDER BY 1`, leases)
	exec1(t, pool, "ANALYZE fencepost.leases")
	page := listAll(t, url, "--limit", "100").peak // of the test program's size, which the kernel counts as well
	for _, format := range []string{"table", "json"} {
		l := listAll(t, url, "-o", format)
		t.Logf("%s: first line after %v, all %d after %v, peak memory %.1f MiB", format, l.first, l.lines, l.all, float64(l.peak)/(1<<20))
		if l.lines != leases {
			t.Errorf("%s: %d lines for %d leases", format, l.lines, leases)
		}
		if l.peak > page+16<<20 { // all leases together would take more than 60
			t.Errorf("%s: %d bytes of memory, of which a page takes %d", format, l.peak, page)
		}
	}
}

// listing is what a run of list cost.
type listing struct {
	first, all time.Duration // until the first line with a lease, and the last
	lines      int
	peak       int64 // bytes of resident memory
}

func listAll(t *testing.T, url string, args ...string) (l listing) {
	t.Helper()
	cmd := program(t, []string{"DATABASE_URL=" + url}, append([]string{"list"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(line, "STATE") && !strings.HasPrefix(line, "(more") {
			l.lines++
		}
		if l.lines == 1 && l.first == 0 {
			l.first = time.Since(began)
		}
	}
	l.all = time.Since(began)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	l.peak = peakMemory(cmd.ProcessState)
	return l
}

// peakMemory is the most resident memory that the process had (getrusage(2):
// kilobytes, but bytes on macOS).
func peakMemory(p *os.ProcessState) int64 {
	peak := int64(p.SysUsage().(*syscall.Rusage).Maxrss)
	if runtime.GOOS == "darwin" {
		return peak
	}
	return peak * 1024
}
