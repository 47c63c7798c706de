package loop

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const reportTimeout = 2 * time.Second

// deliverReports sends the newest report until the brain accepts it, because the brain's health answers depend on it.
func (l *loop[A, R]) deliverReports(ctx context.Context) {
	backoff, refused := delays{limit: l.MaxBackoff}, ""
	for {
		var newest *R
		select {
		case <-ctx.Done():
			return
		case newest = <-l.reports:
		}
		for {
			err := l.deliver(ctx, newest)
			if err == nil {
				break
			}
			// read already logs an unavailable brain.
			if text := err.Error(); isRefusal(err) && text != refused {
				l.Logger.Warn("the brain refuses this backend's reports, so the brain's health checks cannot see that this node is programmed", "error", err)
				refused = text
			} else {
				l.Logger.Debug("the brain did not accept the report", "error", err)
			}
			if !backoff.wait(ctx) {
				return
			}
			select {
			case newest = <-l.reports:
			default:
			}
		}
		if refused != "" {
			l.Logger.Info("the brain accepts reports again")
		}
		refused = ""
		backoff.reset()
	}
}

func (l *loop[A, R]) deliver(ctx context.Context, report *R) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := l.backend.Deliver(ctx, report)
	if status.Code(err) == codes.Unimplemented { // This brain needs no reports.
		return nil
	}
	return err
}

// isRefusal returns whether the brain would refuse the same report again.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.ResourceExhausted, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.OutOfRange:
		return true
	}
	return false
}
