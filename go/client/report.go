package client

import (
	"errors"
	"math/bits"
	"time"

	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnetv1"
)

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
