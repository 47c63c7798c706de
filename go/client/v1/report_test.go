package client

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnet/v1"
)

func TestReportsContainEachFamily(t *testing.T) {
	testLoop(t, Options{Name: "test"}, func(t *testing.T, f *fake) {
		seven := func(number uint64) *pb.Revision { return &pb.Revision{Instance: "0000000000000007", Number: number} }
		expect := func(what string, got *pb.ReportStatusRequest, received *pb.Revision, families ...*pb.FamilyStatus) {
			got.Skipped = nil
			want := &pb.ReportStatusRequest{ReaderName: "test", Received: received, Families: families}
			if !proto.Equal(got, want) {
				t.Errorf("%s: %v instead of %v", what, got, want)
			}
		}
		const v4, v6 = pb.IpFamily_IP_FAMILY_IPV4, pb.IpFamily_IP_FAMILY_IPV6
		f.token(nil, full(1, 0)...)
		f.end(FamilyErrors{v6: errors.New("no IPv6")}.Err())
		expect("one family", f.Accept(nil), seven(1), &pb.FamilyStatus{Family: v4, Applied: seven(1)}, &pb.FamilyStatus{Family: v6, Error: "no IPv6"})
		f.end(nil)
		expect("both", f.Accept(nil), seven(1), &pb.FamilyStatus{Family: v4, Applied: seven(1)}, &pb.FamilyStatus{Family: v6, Applied: seven(1)})
		f.token(nil, delta(2, "full", 0))
		f.end(errors.New(strings.Repeat("é", 600)))
		long := strings.Repeat("é", 512)
		expect("neither", f.Accept(nil), seven(2), &pb.FamilyStatus{Family: v4, Applied: seven(1), Error: long}, &pb.FamilyStatus{Family: v6, Applied: seven(1), Error: long})
		f.end(nil)
		f.Accept(nil)
	})
	err := FamilyErrors{pb.IpFamily_IP_FAMILY_IPV6: errors.New("no IPv6"), pb.IpFamily_IP_FAMILY_IPV4: errors.New("full")}.Err()
	equals(t, "text", err.Error(), "IPV4: full; IPV6: no IPv6")
	equals(t, "cut character", strings.ToValidUTF8(("a" + strings.Repeat("é", 600))[:longestError], ""), "a"+strings.Repeat("é", 511))
}

func TestSkippedPartsAreSentUntilTheBrainKnowsThem(t *testing.T) {
	parts := &pb.SkippedParts{Count: 1}
	options := Options{Name: "test", Report: func(report *pb.ReportStatusRequest) { report.Skipped = parts }}
	testLoop(t, options, func(t *testing.T, f *fake) {
		next := func(number uint64) {
			f.token(nil, delta(number, map[bool]string{true: "full", false: "delta"}[number == 2], 0))
			f.end(nil)
		}
		has := func(what string, got *pb.ReportStatusRequest, want *pb.SkippedParts) {
			t.Helper()
			if !proto.Equal(got.Skipped, want) {
				t.Errorf("%s: skipped is %v", what, got.Skipped)
			}
		}
		f.token(nil, full(1, 0)...)
		f.end(nil)
		has("failed", f.Refuse(errDown), parts)
		has("first", f.Accept(nil), parts)
		next(2)
		has("known", f.Accept(nil), nil)
		parts = &pb.SkippedParts{}
		next(3)
		has("nothing any more", f.Accept(&pb.ReportStatusResponse{CompleteReportWanted: true}), parts)
		next(4)
		has("known", f.Accept(&pb.ReportStatusResponse{CompleteReportWanted: true}), nil)
		has("a restarted brain", f.Accept(nil), parts)
		next(5)
		has("known again", f.Refuse(status.Error(codes.Unimplemented, "unknown service")), nil)
		select {
		case <-f.Reports:
			t.Error("a brain that does not implement reports needs none")
		case <-time.After(time.Hour):
		}
	})
}
