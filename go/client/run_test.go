package client

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	fakebrain "localnet.dev/go/internal/fake"
	pb "localnet.dev/go/localnetv1"
)

// equals fails the test if the values differ.
func equals[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// requested fails the test if the request differs.
func requested(t *testing.T, request *pb.NextFilter, instance, rev uint64, delta bool) {
	t.Helper()
	if want := (&pb.NextFilter{InstanceID: instance, Rev: rev, Delta: delta}); !proto.Equal(request, want) {
		t.Errorf("the loop requested %v instead of %v", request, want)
	}
}

// testLoop runs a test of the loop in fake time. It ends when nothing is left to do, so no test waits for real time.
func testLoop(t *testing.T, options Options, test func(t *testing.T, f *fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options)
		test(t, f)
		f.stop(errStop)
		<-f.returned
	})
}

func TestDeltasBecomeStatesWithTheirChanges(t *testing.T) {
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		requested(t, f.Answer(nil, full(1, service("a"), service("b", "10.0.0.1"), continued("b", "10.0.0.2"))...), 0, 0, false)
		equals(t, "first sync", f.end(nil), synced{Revision{7, 1}, []string{"a", "b"}, Changes{true, false, true, keys("a", "b")}})
		requested(t, f.Answer(nil, delta(2, service("c"), removed("a"), service("b", "10.0.0.1", "10.0.0.2"))...), 7, 1, true)
		equals(t, "only b is unchanged", f.end(nil), synced{Revision{7, 2}, []string{"b", "c"}, Changes{false, false, false, keys("a", "c")}})
		requested(t, f.Answer(nil, delta(3, node)...), 7, 2, true)
		equals(t, "the node is unchanged", f.end(nil), synced{Revision{7, 3}, []string{"b", "c"}, Changes{false, false, false, keys()}})
	})
}

func TestARestartedBrainChangesOnlyWhatDiffers(t *testing.T) {
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		f.Answer(nil, full(5, service("a"), service("b"), service("c"))...)
		f.end(nil)
		requested(t, f.Answer(nil, token(8, 1, false), node, service("b"), service("c", "10.0.0.1")), 7, 5, true)
		equals(t, "sync", f.end(nil), synced{Revision{8, 1}, []string{"b", "c"}, Changes{false, false, false, keys("a", "c")}})
	})
}

func TestATornOrInvalidAnswerIsNeverApplied(t *testing.T) {
	bad := service("b", "10.0.0.1")
	bad.Endpoints.Endpoints[0].IPs.V4[0] = "10.0.0.256"
	port := service("b", "10.0.0.1")
	port.Endpoints.Endpoints[0].PortOverrides[0].Port = 65536
	nameless := service("")
	for name, answer := range map[string]struct {
		items []*pb.NextItem
		err   error
	}{
		"unavailable":                      {nil, errDown},
		"cut after the token":              {delta(2), errDown},
		"cut after a Service":              {delta(2, service("b")), errDown},
		"cut full state":                   {full(2, service("b")), errDown},
		"cut, but with an unknown error":   {full(2), errors.New("stream terminated by RST_STREAM")},
		"empty":                            {nil, nil},
		"no token":                         {[]*pb.NextItem{node, service("b")}, nil},
		"two tokens":                       {delta(2, token(7, 3, true)), nil},
		"full state without a node":        {[]*pb.NextItem{token(7, 2, false), service("b")}, nil},
		"full state that removes":          {full(2, removed("a")), nil},
		"sent and removed":                 {delta(2, service("b"), removed("b")), nil},
		"sent twice":                       {delta(2, service("b"), service("b")), nil},
		"continues nothing":                {delta(2, continued("b")), nil},
		"continues not the previous item":  {delta(2, service("b"), service("c"), continued("b")), nil},
		"a Service without a name":         {delta(2, nameless), nil},
		"an endpoint with a wrong address": {delta(2, bad), nil},
		"an endpoint with a wrong port":    {delta(2, port), nil},
	} {
		t.Run(name, func(t *testing.T) {
			testLoop(t, Options{}, func(t *testing.T, f *fake) {
				f.Answer(nil, full(1, service("a"))...)
				f.end(nil)
				requested(t, f.Answer(answer.err, answer.items...), 7, 1, true)
				requested(t, f.Answer(nil, delta(3, service("d"))...), 7, 1, true)
				equals(t, "sync", f.end(nil), synced{Revision{7, 3}, []string{"a", "d"}, Changes{false, false, false, keys("d")}})
			})
		})
	}
	t.Run("changes instead of the first full state", func(t *testing.T) {
		testLoop(t, Options{}, func(t *testing.T, f *fake) {
			f.Answer(nil, delta(1, node, service("a"))...)
			requested(t, f.Answer(nil, full(1)...), 0, 0, false)
			equals(t, "sync", f.end(nil), synced{Revision{7, 1}, []string{}, Changes{true, false, true, keys()}})
		})
	})
}

func TestPortsWithUnknownProtocolsAreSkipped(t *testing.T) {
	item := service("a", "10.0.0.1")
	of := item.Endpoints
	of.Service.Ports = append(of.Service.Ports, &pb.PortMapping{Name: "new", Protocol: 99, Port: 81})
	of.Endpoints[0].PortOverrides = append(of.Endpoints[0].PortOverrides, &pb.PortName{Name: "new", Port: 8081})
	a := &answer{services: map[ServiceKey]*pb.ServiceEndpoints{}}
	if err := errors.Join(a.add(token(7, 1, true), true), a.add(item, false)); err != nil {
		t.Fatal(err)
	}
	equals(t, "ports", len(of.Service.Ports), 1)
	endpoints := PortEndpoints(of)
	equals(t, "endpoints", len(endpoints), 1)
	equals(t, "endpoint", endpoints[0].Address.String(), "10.0.0.1:8080")
}

func TestRequestsAreRetriedWithBackoff(t *testing.T) {
	testLoop(t, Options{MaxBackoff: time.Second}, func(t *testing.T, f *fake) {
		fails := func() {
			f.Answer(errDown)
			for _, millis := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
				began := time.Now()
				f.Answer(errDown)
				fakebrain.Within(t, millis*time.Millisecond, time.Since(began))
			}
		}
		fails()
		f.Answer(nil, full(1)...)
		f.end(nil)
		fails() // A success starts the delays again.
	})
}

func TestAFailedSyncIsRetriedAndANewerStateWins(t *testing.T) {
	refused := errors.New("refused")
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		f.Answer(nil, full(1, service("a"))...)
		f.end(nil)
		f.Answer(nil, delta(2, service("b"))...)
		f.end(refused)
		began := time.Now()
		got := f.end(refused) // The same state, although the brain sends no other.
		fakebrain.Within(t, 100*time.Millisecond, time.Since(began))
		equals(t, "retry", got, synced{Revision{7, 2}, []string{"a", "b"}, Changes{false, false, false, keys("b")}})
		requested(t, f.Answer(nil, delta(3, service("c"))...), 7, 2, true)
		equals(t, "newer state", f.end(nil), synced{Revision{7, 3}, []string{"a", "b", "c"}, Changes{false, false, false, keys("b", "c")}})
		f.Answer(nil, delta(4)...)
		equals(t, "after a success", f.end(refused).changes, Changes{false, false, false, keys()})
		began = time.Now()
		f.end(nil)
		fakebrain.Within(t, 100*time.Millisecond, time.Since(began)) // A success starts the delays again.
	})
}

func TestAResyncNeedsNoBrain(t *testing.T) {
	resync := make(chan struct{})
	testLoop(t, Options{Resync: resync}, func(t *testing.T, f *fake) {
		f.Answer(nil, full(1, service("a"))...)
		f.end(nil)
		<-f.Requests // The brain does not answer.
		resync <- struct{}{}
		equals(t, "resync", f.end(nil), synced{Revision{7, 1}, []string{"a"}, Changes{true, true, false, keys()}})
		f.Replies <- reply{Messages: delta(2, service("b"))}
		equals(t, "the stream was not interrupted", f.end(nil).services, []string{"a", "b"})
		close(resync)
		f.Answer(nil, delta(3)...)
		equals(t, "a closed channel is ignored", f.end(nil).revision, Revision{7, 3})
	})
}

func TestResumeWaitsForAnotherRevision(t *testing.T) {
	testLoop(t, Options{Resume: Revision{7, 3}}, func(t *testing.T, f *fake) {
		requested(t, f.Answer(errDown), 7, 3, false)
		requested(t, f.Answer(nil, full(4)...), 7, 3, false)
		equals(t, "sync", f.end(nil).revision, Revision{7, 4})
	})
}

func TestTheNextStateIsRequestedAfterTheInterval(t *testing.T) {
	testLoop(t, Options{MinInterval: time.Minute}, func(t *testing.T, f *fake) {
		f.Answer(nil, full(1)...)
		f.end(nil)
		began := time.Now()
		f.Answer(nil, delta(2)...)
		equals(t, "pause", time.Since(began), time.Minute)
		f.end(nil)
	})
}

func TestOnceReturnsAfterTheFirstSuccessOrFailure(t *testing.T) {
	refused, late := errors.New("refused"), errors.New("too late")
	for name, row := range map[string]struct {
		play func(f *fake)
		want error
	}{
		"applied":     {func(f *fake) { f.Answer(nil, full(1)...); f.end(nil) }, nil},
		"sync failed": {func(f *fake) { f.Answer(nil, full(1)...); f.end(refused) }, refused},
		"unavailable": {func(f *fake) { f.Answer(errDown) }, errDown},
		"canceled":    {func(f *fake) { <-f.Requests; f.stop(late) }, late},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				report := func(*pb.BackendReport) { t.Error("a reader with Once must not report") }
				f := start(t, Options{Name: "test", Once: true, Report: report})
				row.play(f)
				if err := <-f.returned; !errors.Is(err, row.want) {
					t.Errorf("Run returned %v", err)
				}
			})
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	for name, play := range map[string]func(f *fake){
		"while it waits for a state": func(f *fake) { <-f.Requests },
		"during backoff":             func(f *fake) { f.Answer(errDown); synctest.Wait() },
		"during a sync":              func(f *fake) { f.Answer(nil, full(1)...); <-f.syncs; f.stop(errStop); f.results <- nil },
		"after a failed sync":        func(f *fake) { f.Answer(nil, full(1)...); f.end(context.DeadlineExceeded) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, Options{})
				play(f)
				f.stop(errStop)
				equals(t, "Run", <-f.returned, nil)
			})
		})
	}
}

// appliedRevs returns the applied revision and the error of each family.
func appliedRevs(report *pb.BackendReport) (revs []uint64, errs []string) {
	for _, family := range report.Families {
		revs, errs = append(revs, family.AppliedRev), append(errs, family.Error)
	}
	return revs, errs
}

func TestReportsContainEachFamily(t *testing.T) {
	options := Options{Name: "test", Report: func(report *pb.BackendReport) { report.ProxyMode = "nftables" }}
	testLoop(t, options, func(t *testing.T, f *fake) {
		f.Answer(nil, full(1)...)
		f.end(FamilyErrors{pb.IPFamily_IPv6: errors.New("no IPv6")}.Err())
		report := f.Accept(nil)
		revs, errs := appliedRevs(report)
		equals(t, "applied", revs, []uint64{1, 0})
		equals(t, "errors", errs, []string{"", "no IPv6"})
		equals(t, "mode", report.ProxyMode, "nftables")
		equals(t, "failures", report.Families[1].Failures, 1)
		f.end(nil)
		report = f.Accept(nil)
		revs, _ = appliedRevs(report)
		equals(t, "applied later", revs, []uint64{1, 1})
		equals(t, "full syncs", report.Families[0].Full.Counts[0], 2)
		f.Answer(nil, token(8, 1, false), node)
		f.end(errors.New("refused"))
		report = f.Accept(nil)
		revs, _ = appliedRevs(report)
		equals(t, "nothing of the new instance", revs, []uint64{0, 0})
		equals(t, "instance", report.InstanceID, 8)
		equals(t, "partial failures", report.Families[0].PartialFailures, 1)
		f.end(nil)
		f.Accept(nil)
	})
}

func TestTheNewestReportIsSentUntilTheBrainAcceptsIt(t *testing.T) {
	testLoop(t, Options{Name: "test"}, func(t *testing.T, f *fake) {
		f.Answer(nil, full(1)...)
		f.end(nil)
		f.Refuse(errDown)
		began := time.Now()
		f.Refuse(status.Error(codes.InvalidArgument, "unknown family"))
		fakebrain.Within(t, 100*time.Millisecond, time.Since(began))
		f.Answer(nil, delta(2)...)
		f.end(nil)
		equals(t, "newest", f.Refuse(status.Error(codes.Unimplemented, "unknown service")).Rev, 2)
		select {
		case <-f.Reports:
			t.Error("a brain that does not implement reports needs none")
		case <-time.After(time.Hour):
		}
	})
}

func TestAttemptsAreCountedByDuration(t *testing.T) {
	var attempts *pb.Attempts
	for _, took := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, 4 * time.Millisecond, 16384 * time.Millisecond, time.Hour} {
		count(&attempts, took)
	}
	equals(t, "counts", attempts.Counts, slices.Concat([]uint64{2, 1, 1}, make([]uint64, 11), []uint64{1, 1}))
}
