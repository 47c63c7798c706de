package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnet/v1"
)

// FamilyErrors is the error of a [Sync] that failed only in some address families. The families that it does not contain
// hold the state.
type FamilyErrors map[pb.IpFamily]error

// Err returns the errors as an error, or nil if there are none.
func (e FamilyErrors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// Error lists the errors, each with its family.
func (e FamilyErrors) Error() string {
	var texts []string
	for family, err := range e {
		texts = append(texts, fmt.Sprintf("%s: %v", strings.TrimPrefix(family.String(), "IP_FAMILY_"), err))
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the families.
func (e FamilyErrors) Unwrap() []error {
	var all []error
	for _, err := range e {
		all = append(all, err)
	}
	return all
}

// The maximum length of an error in a report, in bytes, and the maximum number of skipped parts.
const (
	longestError = 1024
	mostSkipped  = 256
)

// progress is what the reports of a backend contain about its syncs, for IPv4 and IPv6.
type progress [2]struct {
	applied Revision // The newest state that the backend has applied.
	err     string
}

func familyOf(i int) pb.IpFamily { return pb.IpFamily_IP_FAMILY_IPV4 + pb.IpFamily(i) }

// add adds a sync.
func (p *progress) add(revision Revision, err error) {
	var byFamily FamilyErrors
	isByFamily := errors.As(err, &byFamily)
	for i := range p {
		err := err
		if isByFamily {
			err = byFamily[familyOf(i)]
		}
		if p[i].err = ""; err == nil {
			p[i].applied = revision
			continue
		}
		text := err.Error()
		p[i].err = strings.ToValidUTF8(text[:min(len(text), longestError)], "")
	}
}

// report is the report after a sync of the state with this revision.
func (p *progress) report(name string, received Revision) *pb.ReportStatusRequest {
	report := &pb.ReportStatusRequest{ReaderName: name, Received: message(received), Skipped: &pb.SkippedParts{}}
	for i, family := range p {
		status := &pb.FamilyStatus{Family: familyOf(i), Applied: message(family.applied), Error: family.err}
		report.Families = append(report.Families, status)
	}
	return report
}

// withWithheld returns the skipped parts of a report with the Services that the brain withholds, as far as the list has room. nil
// stays nil: the brain keeps what it knows.
func (r *reader) withWithheld(skipped *pb.SkippedParts) *pb.SkippedParts {
	if len(r.state.Withheld) == 0 || skipped == nil {
		return skipped
	}
	withheld := slices.SortedFunc(maps.Keys(r.state.Withheld), func(a, b ServiceKey) int { return strings.Compare(a.String(), b.String()) })
	skipped = proto.CloneOf(skipped)
	skipped.Count += uint32(len(withheld))
	for _, key := range withheld[:min(len(withheld), max(0, mostSkipped-len(skipped.Parts)))] {
		var lacks []string
		for _, required := range r.state.Services[key].Service.Requires {
			if !slices.Contains(r.Capabilities, required) {
				lacks = append(lacks, required.String())
			}
		}
		skipped.Parts = append(skipped.Parts, &pb.SkippedPart{
			Service: &pb.ServiceKey{Namespace: key.Namespace, Name: key.Name},
			Diagnostic: &pb.Diagnostic{
				Code:     "service-withheld",
				Severity: pb.Severity_SEVERITY_ERROR,
				Problem:  "the brain withholds the Service, because the backend lacks " + strings.Join(lacks, " and "),
				Remedy:   "Use a version of the backend that has the capabilities that the message names.",
			},
		})
	}
	return skipped
}

// message is the message of a revision; nil for no state.
func message(revision Revision) *pb.Revision {
	if revision == (Revision{}) {
		return nil
	}
	return &pb.Revision{Instance: fmt.Sprintf("%016x", revision.InstanceID), Number: revision.Rev}
}

// Deliver sends a report without the skipped parts that the brain knows. A restarted brain knows none, and asks for them.
func (r *reader) Deliver(ctx context.Context, report *pb.ReportStatusRequest) error {
	backend, request := pb.NewBackendServiceClient(r.conn), report
	if proto.Equal(r.accepted, report.Skipped) {
		request = proto.CloneOf(report)
		request.Skipped = nil
	}
	response, err := backend.ReportStatus(ctx, request)
	if err == nil && response.CompleteReportWanted && request != report {
		_, err = backend.ReportStatus(ctx, report)
	}
	if err == nil && report.Skipped != nil {
		r.accepted = report.Skipped
	}
	return err
}
