package client

import (
	"context"
	"errors"
	"math/bits"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnetv1"
)

const reportTimeout = 2 * time.Second

// progress is what the reports of a backend contain about its syncs, for each address family.
type progress [2]struct {
	applied Revision // The newest state that the backend has applied.
	counts  *pb.FamilyReport
}

func (p *progress) init() {
	for i, family := range []pb.IPFamily{pb.IPFamily_IPv4, pb.IPFamily_IPv6} {
		p[i].counts = &pb.FamilyReport{Family: family}
	}
}

// add adds a sync.
func (p *progress) add(revision Revision, full bool, took time.Duration, err error) {
	var byFamily FamilyErrors
	isByFamily := errors.As(err, &byFamily)
	for i := range p {
		counts, err := p[i].counts, err
		if isByFamily {
			err = byFamily[counts.Family]
		}
		attempts := &counts.Partial
		if full {
			attempts = &counts.Full
		}
		count(attempts, took)
		if counts.Error = ""; err == nil {
			p[i].applied = revision
			continue
		}
		counts.Error = err.Error()
		counts.Failures++
		if !full {
			counts.PartialFailures++
		}
	}
}

// count adds a duration to a histogram. Its buckets end at 1 ms, 2 ms, 4 ms and so on; the last one has no end.
func count(attempts **pb.Attempts, took time.Duration) {
	if *attempts == nil {
		*attempts = &pb.Attempts{Counts: make([]uint64, 16)}
	}
	millis := uint64(max((took+time.Millisecond-1)/time.Millisecond, 1)) // Rounded up.
	(*attempts).Counts[min(bits.Len64(millis-1), 15)]++
	(*attempts).SumMicros += uint64(took.Microseconds())
}

// report is the report after a sync of the state with this revision.
func (p *progress) report(name string, received Revision) *pb.BackendReport {
	report := &pb.BackendReport{Backend: name, InstanceID: received.InstanceID, Rev: received.Rev}
	for i := range p {
		family := proto.CloneOf(p[i].counts)
		if p[i].applied.InstanceID == received.InstanceID {
			family.AppliedRev = p[i].applied.Rev
		}
		report.Families = append(report.Families, family)
	}
	return report
}

// deliverReports sends the newest report until the brain accepts it, because the brain's health answers depend on it.
func (l *loop) deliverReports(ctx context.Context) {
	backoff, refused := delays{limit: l.MaxBackoff}, ""
	for {
		var newest *pb.BackendReport
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

func (l *loop) deliver(ctx context.Context, report *pb.BackendReport) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	_, err := pb.NewBackendsClient(l.conn).Report(ctx, report)
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
