package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/lockclient/lockadmin"

	"github.com/urfave/cli/v3"
)

func (a *app) forceUnlockCommand() *cli.Command {
	return &cli.Command{
		Name: "force-unlock", Category: categoryAct, ArgsUsage: "RESOURCE",
		Usage: "take a lease away from its holder, whoever that is",
		Description: "Invalidates a token: the next holder's is above it. The cut holder does not learn\n" +
			"of it before its next renewal, and it MAY STILL WRITE until a higher token\n" +
			"arrives at the resource. With --raise that is done at once, for what is fenced by\n" +
			"sqlfence's marks. Recorded in the audit, with --actor and --reason.",
		Flags: append(accountFlags(),
			&cli.BoolFlag{Name: "raise", Usage: "and fence the cut holder: raise the mark to the invalidated claim"},
			raiseTimeoutFlag(),
			&cli.StringFlag{Name: "expect", Usage: "`LEASE-ID` to cut; a successor's lease is not cut"},
			&cli.StringFlag{Name: "request-id", Usage: "`ID` of this request: repeated under the same one it is done once"},
			yesFlag(),
		),
		Action: a.forceUnlock,
	}
}

// unlocked is the result for programs.
type unlocked struct {
	lockadmin.ForceUnlocked
	// Raised says that no holder below the invalidated token can write any more
	// where sqlfence's marks are compared.
	Raised bool `json:"raised"`
	// Mark is the resource's mark afterwards, if it was raised: the invalidated
	// claim or a newer holder's.
	Mark *guard.Mark `json:"mark,omitempty"`
	// Warning says who can still write.
	Warning string `json:"warning,omitempty"`
}

func (a *app) forceUnlock(ctx context.Context, cmd *cli.Command) error {
	given, err := arguments(cmd, "RESOURCE")
	if err != nil {
		return err
	}
	resource, actor, reason := given[0], cmd.String("actor"), cmd.String("reason")
	if err := accountable("force-unlock", actor, reason); err != nil {
		return err
	}
	if err := guard.ValidateResource(resource); err != nil {
		return err
	}
	for _, flag := range []string{"expect", "request-id"} {
		if cmd.IsSet(flag) && cmd.String(flag) == "" { // an empty variable in a script would mean "whatever there is"
			return usage("force-unlock: --%s is empty", flag)
		}
	}
	needed := []string{leasesComponent}
	if cmd.Bool("raise") { // check before the lease is cut
		needed = append(needed, marksComponent)
	}
	s, err := connect(ctx, cmd, needed...)
	if err != nil {
		return err
	}
	defer s.close()
	opts := &lockadmin.ForceUnlockOptions{ExpectedLeaseID: cmd.String("expect"), RequestID: cmd.String("request-id")}
	if err := a.confirmUnlock(ctx, cmd, s, resource, opts); err != nil {
		return err
	}
	done, err := s.op.ForceUnlock(ctx, resource, actor, reason, opts)
	if err != nil {
		return withRequest(noSuchLease(err, resource))
	}
	result := unlocked{ForceUnlocked: done}
	var raising error
	if cmd.Bool("raise") {
		result.Mark, raising = s.raiseInvalidated(ctx, cmd, done.Invalidated)
		result.Raised = raising == nil
	}
	again := raiseCommand(done.Invalidated)
	if !result.Raised {
		result.Warning = stillWrites(done.Cut) + ": " + again
	}
	printing := a.printUnlocked(cmd, result, raising)
	switch {
	case errors.Is(raising, guard.ErrOutcomeUnknown):
		return fmt.Errorf("the token is invalidated, and it is not known whether the mark was raised: %w; go on with: %s", raising, again)
	case raising != nil:
		return &coded{exitPartial, "partial", fmt.Errorf("the token is invalidated and the mark was not raised, so %s: %w; go on with: %s", stillWrites(done.Cut), raising, again)}
	}
	return printing
}

// stillWrites says who may still write until the mark is raised to the invalidated claim, unless
// the resource's mark refuses it already.
func stillWrites(cut lockadmin.LeaseInfo) string {
	who := "whoever had a lower token"
	switch cut.State {
	case lockadmin.StateHeld:
		who = "the cut holder"
	case lockadmin.StateExpired:
		who = "the holder whose lease had run out"
	}
	return who + " may still write until a higher token arrives at the resource"
}

// accountFlags are on every command that writes a record; see accountable.
func accountFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "actor", Usage: "`WHO` does it (required)", Sources: cli.EnvVars("FENCECTL_ACTOR")},
		&cli.StringFlag{Name: "reason", Usage: "`WHY` (required)"},
	}
}

// accountable refuses what nobody could be asked about later.
func accountable(what, actor, reason string) error {
	for _, required := range []struct{ flag, value string }{{"actor", actor}, {"reason", reason}} {
		if strings.TrimSpace(required.value) == "" {
			return usage("%s needs --%s, with more than spaces in it", what, required.flag)
		}
	}
	return nil
}

// confirmUnlock shows whose lease is cut. Only the lease that the operator has
// seen is cut: a successor that comes while the question is open is not cut.
func (a *app) confirmUnlock(ctx context.Context, cmd *cli.Command, s *session, resource string, opts *lockadmin.ForceUnlockOptions) error {
	if cmd.Bool("yes") || !isTerminal(a.in) {
		return a.confirm(ctx, cmd, "")
	}
	now, err := s.op.Get(ctx, resource)
	if err != nil {
		return noSuchLease(err, resource)
	}
	question := fmt.Sprintf("Invalidate a token of %s: it is %s, nobody holds it.", shown(resource), now.State)
	if now.State == lockadmin.StateHeld {
		question = fmt.Sprintf("Cut the lease on %s.\n  held by %s for %s\n  token %s, lease %s",
			shown(resource), shown(now.Owner), span(now.HeldFor), now.Token, shown(now.LeaseID))
	}
	if !cmd.Bool("raise") {
		question += "\nWithout --raise " + stillWrites(now) + "."
	}
	if opts.ExpectedLeaseID == "" {
		opts.ExpectedLeaseID = now.LeaseID
	}
	if err := a.confirm(ctx, cmd, question); err != nil || opts.ExpectedLeaseID != "" {
		return err
	}
	// It was free, and there is no lease ID to expect.
	later, err := s.op.Get(ctx, resource)
	if err == nil && later.LeaseID != "" {
		err = &lockadmin.LeaseChangedError{Now: later}
	}
	return err
}

// raiseInvalidated raises the mark to the invalidated claim. A mark that is already above it, a newer
// holder's, also fences the cut holder.
func (s *session) raiseInvalidated(ctx context.Context, cmd *cli.Command, invalidated guard.Claim) (*guard.Mark, error) {
	err := s.raise(ctx, cmd, invalidated)
	var refused *guard.RejectedError
	switch {
	case err == nil:
		return &guard.Mark{Token: invalidated.Token, LeaseID: invalidated.LeaseID}, nil
	case errors.Is(err, guard.ErrStale) && errors.As(err, &refused):
		return &refused.Mark, nil
	}
	return nil, err
}

func (a *app) printUnlocked(cmd *cli.Command, u unlocked, raising error) error {
	if asJSON(cmd) {
		return a.printJSON(u)
	}
	was := string(u.Cut.State)
	if u.Cut.State == lockadmin.StateHeld {
		was += " for " + span(u.At.Sub(u.Cut.AcquiredAt))
	}
	mark := "not raised"
	switch {
	case u.Mark != nil:
		mark = u.Mark.Token.String() + ": every older claim is refused"
	case errors.Is(raising, guard.ErrOutcomeUnknown):
		mark = "not known"
	}
	repeated := orNothing(u.Repeated, " (done before, under the same request ID)")
	if err := fields(a.out,
		"resource", shown(u.Invalidated.Resource)+repeated,
		"was", was,
		"held by", holderOf(u.Cut),
		"token then", u.Cut.Token.String(),
		"lease ID then", leaseID(u.Cut.LeaseID),
		"invalidated token", u.Invalidated.Token.String(),
		"invalidated lease ID", leaseID(u.Invalidated.LeaseID),
		"audit record", fmt.Sprint(u.AuditID),
		"mark", mark); err != nil {
		return err
	}
	if u.Warning != "" {
		fmt.Fprintf(a.errOut, "warning: %s\n", u.Warning)
	}
	return nil
}

// withRequest adds the ID under which to repeat an unlock whose outcome is
// unknown.
func withRequest(err error) error {
	var lost *guard.FailedError
	if errors.Is(err, guard.ErrOutcomeUnknown) && errors.As(err, &lost) && lost.Claim.LeaseID != "" {
		return fmt.Errorf("%w; repeat it with --request-id %s, which does it once", err, quoted(lost.Claim.LeaseID))
	}
	return err
}

// raiseCommand returns the command that raises a claim, to be copied.
func raiseCommand(claim guard.Claim) string {
	return fmt.Sprintf("fencectl marks raise %s %s --lease-id %s", quoted(claim.Resource), claim.Token, quoted(claim.LeaseID))
}

// quoted returns s as a word of the operator's shell.
func quoted(s string) string {
	if s != "" && strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-.:/@%+,=", r))
	}) < 0 && s[0] != '-' {
		return s
	}
	if !plain(s) {
		return shown(s) // cannot be pasted, but does no harm either
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// yesFlag is on every command that cannot be taken back.
func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask for confirmation", Local: true}
}

var errNotConfirmed = &coded{exitCancelled, "cancelled", errors.New("not confirmed, nothing was changed")}

// confirm asks the operator. It asks on standard error, so that redirected
// output does not hide the question, and only where standard input is a
// terminal: a script must say --yes.
func (a *app) confirm(ctx context.Context, cmd *cli.Command, question string) error {
	if cmd.Bool("yes") {
		return nil
	}
	if !isTerminal(a.in) {
		return usage("%s asks for confirmation and standard input is not a terminal: say --yes", cmd.Name)
	}
	fmt.Fprintf(a.errOut, "%s\nType \"yes\" to go on: ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(a.in, 256)).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case got := <-answer:
		if strings.EqualFold(got, "yes") {
			return nil
		}
	case <-ctx.Done():
		fmt.Fprintln(a.errOut)
	}
	return errNotConfirmed
}

// isTerminal reports whether somebody sits at f. The null device is a character
// device too.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat() // of a nil file: an error
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
