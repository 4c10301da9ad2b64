package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// timeline prints events as they happen: who, under which token, what, and the
// response.
type timeline struct {
	out   io.Writer
	start time.Time
}

func (t *timeline) line(who string, token guard.Token, what, answer string) {
	shown := ""
	if token != guard.NoToken {
		shown = "token " + token.String()
	}
	text := fmt.Sprintf("%6.2fs  %-9s %-8s %s", time.Since(t.start).Seconds(), who, shown, what)
	if answer != "" {
		text = fmt.Sprintf("%-72s %s", text, answer)
	}
	fmt.Fprintln(t.out, text)
}

// worker prints a worker's report. late says that its lease is long gone.
func (t *timeline) worker(name string, r report, late bool) {
	if r.What == "done" {
		return
	}
	t.line("worker "+name, r.Token, r.Text, answerOf(r, late))
}

func answerOf(r report, late bool) string {
	switch {
	case r.What == "granted" || r.What == "takeover":
		return ""
	case r.What == "lost":
		return r.Reason.Err().Error()
	case r.Reason == guard.ReasonNone && late:
		return "✗ APPLIED, a stale write"
	case r.Reason == guard.ReasonNone:
		return "✓ done"
	case r.Reason == guard.ReasonStale && r.What == "ledger":
		return "✓ refused with 412: stale"
	case r.Reason == guard.ReasonStale:
		return "✓ refused: stale" + r.Error[strings.LastIndexByte(r.Error, ','):]
	}
	return "✗ failed: " + r.Error
}

// final prints the rows that the story leaves.
func (t *timeline) final(s state) {
	fmt.Fprintf(t.out, "\n  tenant_billing_close  %s %s: %s, total %s, closed by %s, %s, last_fencing_token %d\n",
		tenant, period, s.Status, money(s.Total), s.ClosedBy, times(s.Closes), s.Token)
	var invoices []string
	var total int64
	for _, customer := range slices.Sorted(maps.Keys(s.Invoices)) {
		i := s.Invoices[customer]
		invoices = append(invoices, fmt.Sprintf("%s %s (%s)", customer, money(i.Cents), i.IssuedBy))
		total += i.Cents
	}
	fmt.Fprintf(t.out, "  invoices              %s; together %s\n", strings.Join(invoices, ", "), money(total))
	var postings []string
	for _, p := range s.Postings {
		postings = append(postings, fmt.Sprintf("%s (%s)", money(p.Cents), p.PostedBy))
	}
	fmt.Fprintf(t.out, "  ledger postings       %s\n", strings.Join(postings, ", "))
	fmt.Fprintf(t.out, "  export                s3://%s/%s, %d invoices (%s)\n\n",
		exportBucket, exportKey, strings.Count(s.Export.Content, "\n"), s.Export.ExportedBy)
}

func (t *timeline) verdict(s summary) {
	switch {
	case s.Fenced && s.OK:
		fmt.Fprintf(t.out, "FENCED: %d stale attempts, %d refused; the period was closed %s, by worker %s, and no update was lost.\n",
			s.StaleAttempts, s.StaleRefused, times(s.Closes), s.ClosedBy)
	case s.Fenced:
		fmt.Fprintf(t.out, "BROKEN: %d stale attempts, %d refused, closed %s, %d updates lost.\n",
			s.StaleAttempts, s.StaleRefused, times(s.Closes), s.LostUpdates)
	default:
		overwritten := ""
		if s.ExportOverwritten {
			overwritten = "the export was overwritten, "
		}
		fmt.Fprintf(t.out, "UNFENCED: %d stale attempts, %d refused; the period was closed %s, last by worker %s, %sand %d acknowledged updates were lost.\n",
			s.StaleAttempts, s.StaleRefused, times(s.Closes), s.ClosedBy, overwritten, s.LostUpdates)
	}
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

func names(amounts map[string]int64) string {
	return strings.Join(slices.Sorted(maps.Keys(amounts)), ", ")
}
