package main

import (
	"errors"
	"maps"
	"slices"

	"github.com/fencepost-go/fencepost/guard"
)

// summary is the machine-readable outcome, printed by -json.
type summary struct {
	Fenced        bool     `json:"fenced"`
	Resource      string   `json:"resource"`
	Holders       []holder `json:"holders"`
	ClosedBy      string   `json:"closedBy"`
	Closes        int      `json:"closes"`
	StaleAttempts int      `json:"staleAttempts"`
	StaleRefused  int      `json:"staleRefused"`
	// MisdirectedAttempts counts writes under a token of another resource.
	MisdirectedAttempts int `json:"misdirectedAttempts"`
	MisdirectedRefused  int `json:"misdirectedRefused"`
	// LostUpdates counts acknowledged writes that the final state does not
	// show, because an older holder wrote over them.
	LostUpdates int `json:"lostUpdates"`
	// ExportOverwritten says that one of these is the month's export.
	ExportOverwritten bool `json:"exportOverwritten,omitempty"`
	OK                bool `json:"ok"`
}

type holder struct {
	Worker string      `json:"worker"`
	Token  guard.Token `json:"token"`
}

// promised reports whether the flags' promise held: with the guards on, nothing
// stale was written; with the guards off, something was.
func (s summary) promised() bool {
	if s.Fenced {
		return s.OK
	}
	return !s.OK && s.StaleAttempts > s.StaleRefused && s.LostUpdates > 0 && s.ExportOverwritten
}

// judge keeps the acknowledged writes and compares them with the state.
type judge struct {
	summary
	acknowledged map[string]invoice
}

func newJudge(fenced bool) *judge {
	return &judge{summary: summary{Fenced: fenced, Resource: resource()}, acknowledged: map[string]invoice{}}
}

// note records a report. late marks reports of a holder whose lease is gone.
func (j *judge) note(name string, r report, late bool) {
	if r.What == "granted" {
		j.Holders = append(j.Holders, holder{Worker: name, Token: r.Token})
	}
	if late && slices.Contains([]string{"invoices", "close", "ledger", "export"}, r.What) {
		j.StaleAttempts++
		if r.Reason == guard.ReasonStale {
			j.StaleRefused++
		}
		return
	}
	for customer, cents := range r.Invoices {
		j.acknowledged[customer] = invoice{Cents: cents, IssuedBy: name}
	}
}

// noteMisdirected records the response to a write under another resource's token.
func (j *judge) noteMisdirected(refusal error) {
	j.MisdirectedAttempts++
	if errors.Is(refusal, guard.ErrMisdirected) {
		j.MisdirectedRefused++
	}
}

// judge compares the state before the stale holder continued with the one
// after.
func (j *judge) judge(before, after state) summary {
	s := j.summary
	s.ClosedBy, s.Closes = after.ClosedBy, after.Closes
	for customer, want := range j.acknowledged {
		if after.Invoices[customer] != want {
			s.LostUpdates++
		}
	}
	if after.ClosedBy != before.ClosedBy || after.Total != before.Total {
		s.LostUpdates++
	}
	if !slices.Equal(after.Postings, before.Postings) {
		s.LostUpdates++
	}
	if s.ExportOverwritten = after.Export != before.Export; s.ExportOverwritten {
		s.LostUpdates++
	}
	var total int64
	amounts := map[string]int64{}
	for customer, i := range after.Invoices {
		amounts[customer] = i.Cents
		total += i.Cents
	}
	s.OK = s.LostUpdates == 0 &&
		s.StaleAttempts == 4 && s.StaleRefused == s.StaleAttempts &&
		s.MisdirectedAttempts == 1 && s.MisdirectedRefused == 1 &&
		s.Closes == 1 && s.ClosedBy == "b" && after.Status == "closed" &&
		len(after.Postings) == 1 && after.Postings[0].Cents == total && after.Total == total &&
		maps.Equal(after.Invoices, j.acknowledged) &&
		after.Export == export{Content: string(exportOf(amounts)), ExportedBy: "b"} &&
		len(s.Holders) == 2 && s.Holders[0].Token < s.Holders[1].Token &&
		guard.Token(after.Token) == s.Holders[1].Token
	return s
}
