package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnetv1"
)

// fake is both ends of a loop under test: a brain as a connection, and a backend. The test plays both.
type fake struct {
	requests chan *pb.NextFilter     // Each request for a state, with the test's answer in replies.
	replies  chan reply              //
	reports  chan *pb.BackendReport  // Each report, with the test's answer in accepts.
	accepts  chan error              //
	syncs    chan synced             // Each call of Sync, with its result in results.
	results  chan error              //
	returned chan error              // What Run returned.
	stop     context.CancelCauseFunc // Ends the context of Run.
}

// reply is an answer of the brain. A nil error stands for OK.
type reply struct {
	items []*pb.NextItem
	err   error
}

// synced is what a Sync received.
type synced struct {
	revision Revision
	services []string // The names of all Services.
	changes  Changes
}

var (
	errStop = errors.New("the test is over")
	errDown = status.Error(codes.Unavailable, "connection refused")
)

func start(t *testing.T, options Options) *fake {
	f := &fake{
		make(chan *pb.NextFilter), make(chan reply), make(chan *pb.BackendReport), make(chan error),
		make(chan synced), make(chan error), make(chan error, 1), nil,
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancelCause(t.Context())
	f.stop = stop
	go func() { f.returned <- Run(ctx, f, f.sync, options) }()
	return f
}

func (f *fake) sync(ctx context.Context, state *State, changes *Changes) error {
	names := []string{}
	for key := range state.Services {
		names = append(names, key.Name)
	}
	slices.Sort(names)
	select {
	case f.syncs <- synced{state.Revision, names, Changes{changes.Everything, changes.Resync, changes.Node, maps.Clone(changes.Services)}}:
		return <-f.results
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answer answers the next request, and returns it.
func (f *fake) answer(err error, items ...*pb.NextItem) *pb.NextFilter {
	request := <-f.requests
	f.replies <- reply{items, err}
	return request
}

// end ends the next sync with this result, and returns what the sync received.
func (f *fake) end(err error) synced {
	got := <-f.syncs
	f.results <- err
	return got
}

// accept answers the next report, and returns it.
func (f *fake) accept(err error) *pb.BackendReport {
	report := <-f.reports
	f.accepts <- err
	return report
}

// NewStream plays the call Next.
func (f *fake) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &stream{ctx: ctx, fake: f}, nil
}

// Invoke plays the call Report.
func (f *fake) Invoke(ctx context.Context, _ string, report, _ any, _ ...grpc.CallOption) error {
	select {
	case f.reports <- proto.CloneOf(report.(*pb.BackendReport)):
		return <-f.accepts
	case <-ctx.Done():
		return ctx.Err()
	}
}

type stream struct {
	grpc.ClientStream
	ctx  context.Context
	fake *fake
	left *reply
}

func (s *stream) SendMsg(request any) error {
	select {
	case s.fake.requests <- request.(*pb.NextFilter):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *stream) CloseSend() error { return nil }

func (s *stream) RecvMsg(item any) error {
	if s.left == nil {
		select {
		case reply := <-s.fake.replies:
			s.left = &reply
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
	if len(s.left.items) == 0 {
		if s.left.err == nil {
			return io.EOF
		}
		return s.left.err
	}
	proto.Merge(item.(proto.Message), s.left.items[0])
	s.left.items = s.left.items[1:]
	return nil
}

func token(instance, rev uint64, delta bool) *pb.NextItem {
	return &pb.NextItem{Next: &pb.NextFilter{InstanceID: instance, Rev: rev, Delta: delta}}
}

var node = &pb.NextItem{Node: &pb.NodeState{Name: "node-a"}}

// service is a Service with one port, and an endpoint at each address.
func service(name string, addresses ...string) *pb.NextItem {
	of := &pb.ServiceEndpoints{Service: &pb.Service{
		Namespace: "ns", Name: name,
		Ports: []*pb.PortMapping{{Name: "http", Protocol: pb.Protocol_TCP, Port: 80}},
	}}
	for _, address := range addresses {
		of.Endpoints = append(of.Endpoints, &pb.Endpoint{
			IPs:           &pb.IPSet{V4: []string{address}},
			PortOverrides: []*pb.PortName{{Name: "http", Port: 8080}},
			Scopes:        &pb.EndpointScopes{Internal: true},
		})
	}
	return &pb.NextItem{Endpoints: of}
}

func continued(name string, addresses ...string) *pb.NextItem {
	item := service(name, addresses...)
	item.Endpoints.Continues = true
	item.Endpoints.Service.Ports = nil
	return item
}

func removed(name string) *pb.NextItem {
	return &pb.NextItem{Removed: &pb.ServiceKey{Namespace: "ns", Name: name}}
}

// full is a full state of the instance 7.
func full(rev uint64, services ...*pb.NextItem) []*pb.NextItem {
	return append([]*pb.NextItem{token(7, rev, false), node}, services...)
}

// delta is a delta of the instance 7.
func delta(rev uint64, changes ...*pb.NextItem) []*pb.NextItem {
	return append([]*pb.NextItem{token(7, rev, true)}, changes...)
}

func keys(names ...string) map[ServiceKey]struct{} {
	set := map[ServiceKey]struct{}{}
	for _, name := range names {
		set[ServiceKey{"ns", name}] = struct{}{}
	}
	return set
}

// within fails the test unless a delay of the loop's backoff is between half and all of this duration.
func within(t *testing.T, full, delay time.Duration) {
	t.Helper()
	if delay < full/2 || delay > full {
		t.Errorf("the delay is %v, and not between %v and %v", delay, full/2, full)
	}
}
