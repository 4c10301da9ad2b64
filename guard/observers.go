package guard

import (
	"context"
	"log/slog"
)

// Observers returns an observer that calls each of the given ones in turn; nil
// ones are skipped. It returns nil, which costs nothing, if none remains.
func Observers(observers ...Observer) Observer {
	var all manyObservers
	for _, o := range observers {
		if o != nil {
			all = append(all, o)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

type manyObservers []Observer

func (m manyObservers) Observe(ctx context.Context, e Event) {
	for _, o := range m {
		o.Observe(ctx, e)
	}
}

// LogObserver returns an observer that logs what a fence refused or could not
// carry out, as fencing_rejected with the attributes op, surface, reason,
// resource, fencingToken, leaseId, mark, route, reportOnly and error; nil for
// a nil logger. A conflict, a mark ahead of the issuer and an unknown outcome
// are logged as errors, the rest as warnings. It skips a check, which refuses
// nothing by itself; what has no error, because a handler has responded for
// itself; and the events of the lease client, which has its own logger. It is
// the only logger of refusals: httpfence, which responds to them instead of
// returning them, uses it unless it is given another observer.
func LogObserver(logger *slog.Logger) Observer {
	if logger == nil {
		return nil
	}
	return ObserverFunc(func(ctx context.Context, e Event) {
		if e.Reason == ReasonNone || e.Err == nil || e.Op == OpCheck || e.Surface == SurfaceLock {
			return
		}
		level := slog.LevelWarn
		switch e.Reason {
		case ReasonConflict, ReasonMarkAhead, ReasonOutcomeUnknown:
			level = slog.LevelError
		}
		if !logger.Enabled(ctx, level) {
			return
		}
		logger.LogAttrs(ctx, level, "fencing_rejected",
			slog.String("op", string(e.Op)), slog.String("surface", string(e.Surface)), slog.String("reason", string(e.Reason)),
			slog.String("resource", e.Claim.Resource), slog.String("fencingToken", e.Claim.Token.String()),
			slog.String("leaseId", e.Claim.LeaseID), slog.String("mark", e.Mark.Token.String()),
			slog.String("route", e.Route), slog.Bool("reportOnly", e.ReportOnly),
			slog.String("error", e.Err.Error()))
	})
}
