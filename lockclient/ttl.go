package lockclient

import (
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// RecommendTTL returns the TTL for a process whose pauses (garbage collection,
// a busy machine, a container without processor time) are at most pauseP99 in
// 99 of a hundred, whose renewals take at most renewalP99 as often
// ([Client.RenewalLatency] measures them), and that wants to have margin left
// then. The rule is
//
//	TTL >= p99 of a pause + p99 of a renewal + margin, renewed every TTL/3 or sooner
//
// A pause that begins just as a renewal was due finds a third of the TTL spent,
// so the TTL is also at least one and a half times the pause and the renewal.
// It is rounded up to a millisecond and is at least [MinTTL]. A TTL that is too
// short costs takeovers from healthy holders, one that is too long costs waiting
// after a crash; neither costs data, if what is written is fenced. Negative
// arguments count as zero.
func RecommendTTL(pauseP99, renewalP99, margin time.Duration) time.Duration {
	p, r, m := capped(pauseP99), capped(renewalP99), capped(margin)
	ttl := max(p+r+m, (p+r)*3/2, MinTTL)
	return (ttl + time.Millisecond - 1).Truncate(time.Millisecond)
}

// capped keeps sums of three from overflowing; it is far above [MaxTTL].
func capped(d time.Duration) time.Duration { return min(max(d, 0), 100*MaxTTL) }

// CheckTTL says why opts break the rule of [RecommendTTL]; nil if they keep it.
// The error is an InvalidError (errors.Is guard.ErrInvalid) that names the
// field: the TTL, or the RenewInterval if with a shorter one the TTL would do.
func CheckTTL(opts *HoldOptions, pauseP99, renewalP99, margin time.Duration) error {
	_, every, err := opts.validate()
	if err != nil {
		return err
	}
	p, r, m := capped(pauseP99), capped(renewalP99), capped(margin)
	if least := p + r + m; opts.TTL < least {
		return guard.Invalid("TTL", opts.TTL.String(), "is less than the pause, the renewal and the margin, which are "+least.String())
	}
	if left := opts.TTL - every; left < p+r {
		return guard.Invalid("RenewInterval", every.String(),
			"leaves "+left.String()+" of the TTL for a pause and a renewal, which take "+(p+r).String())
	}
	return nil
}

// lowMargin is the part of the TTL below which lock_margin_low warns: with less
// than a third left when a renewal is answered, another renewal interval would
// have lost the lease.
const lowMargin = 3
