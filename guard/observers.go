package guard

import (
	"context"
	"log/slog"
)

// LogObserver returns an observer that logs what a fence did not let through; nil
// for a nil logger. There is one line for each [Outcome]:
//
//	fencing_rejected  the claim was compared, or could not be, because of the caller
//	fencing_failed    the claim could not be judged, or the write not carried out
//	fencing_lost      the lease was over by the holder's clock; nothing was sent
//
// Each has the attributes op, surface, reason, resource, fencingToken, leaseId, route,
// reportOnly and error, and mark if it is known. A conflict, a mark ahead of the issuer
// and an unknown outcome are logged as errors, the rest as warnings.
//
// It skips a check, which refuses nothing by itself; a raise that waits; what has no
// error, because a handler has responded for itself; and the events of the lease
// client, which has its own logger.
func LogObserver(logger *slog.Logger) Observer {
	if logger == nil {
		return nil
	}
	return ObserverFunc(func(ctx context.Context, e Event) {
		if e.Reason == ReasonNone || e.Err == nil || e.Op == OpCheck || e.Op == OpContend || e.Surface == SurfaceLock {
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
		attrs := []slog.Attr{
			slog.String("op", string(e.Op)), slog.String("surface", string(e.Surface)), slog.String("reason", string(e.Reason)),
			slog.String("resource", e.Claim.Resource), slog.String("fencingToken", e.Claim.Token.String()),
			slog.String("leaseId", e.Claim.LeaseID), slog.String("route", e.Route), slog.Bool("reportOnly", e.ReportOnly),
			slog.String("error", e.Err.Error()),
		}
		if e.Mark.Token != NoToken {
			attrs = append(attrs, slog.String("mark", e.Mark.Token.String()))
		}
		logger.LogAttrs(ctx, level, "fencing_"+string(e.Reason.Outcome()), attrs...)
	})
}
