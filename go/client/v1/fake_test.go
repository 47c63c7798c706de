package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	fakebrain "localnet.dev/go/internal/fake"
	pb "localnet.dev/go/localnet/v1"
)

// fake is both ends of a loop under test: a brain as a connection, and a backend. The test plays both.
type fake struct {
	*fakebrain.Brain[*pb.NextStateRequest, *pb.NextStateResponse, *pb.ReportStatusRequest]
	syncs    chan synced // Each call of Sync, with its result in results.
	results  chan error
	returned chan error // What Run returned.
	stop     context.CancelCauseFunc
}

// synced is what a Sync received: the number of the revision, the state, and the changes, as texts.
type synced struct {
	number         uint64
	state, changes string
}

var (
	errStop = errors.New("the test is over")
	errDown = status.Error(codes.Unavailable, "connection refused")
)

// equals fails the test if the values differ.
func equals[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
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

func start(t *testing.T, options Options) *fake {
	f := &fake{
		fakebrain.New[*pb.NextStateRequest, *pb.NextStateResponse, *pb.ReportStatusRequest](),
		make(chan synced), make(chan error), make(chan error, 1), nil,
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancelCause(t.Context())
	f.stop = stop
	go func() { f.returned <- Run(ctx, f.Brain, f.sync, options) }()
	return f
}

func (f *fake) sync(ctx context.Context, state *State, changes *Changes) error {
	select {
	case f.syncs <- synced{state.Revision.Rev, describe(state), describeChanges(changes)}:
		return <-f.results
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end ends the next sync with this result, and returns what the sync received.
func (f *fake) end(err error) synced {
	got := <-f.syncs
	f.results <- err
	return got
}

// token answers the next request, and returns its token.
func (f *fake) token(err error, messages ...*pb.NextStateResponse) string {
	return f.Answer(err, messages...).Token
}

// describe lists the Services, each with its type's number and its endpoints.
func describe(state *State) string {
	var all []string
	for key, of := range state.Services {
		var endpoints []string
		for at, record := range of.Endpoints {
			endpoints = append(endpoints, fmt.Sprintf("%s/%d:%v", at.Address, at.Ordinal, record.Local))
		}
		slices.Sort(endpoints)
		all = append(all, fmt.Sprintf("%s(%d)%v", key.Name, of.Service.Type, endpoints))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func describeChanges(changes *Changes) string {
	var all []string
	for key, of := range changes.Services {
		endpoints := []string{}
		for at := range of.Endpoints {
			endpoints = append(endpoints, fmt.Sprintf("%s/%d", at.Address, at.Ordinal))
		}
		slices.Sort(endpoints)
		text := fmt.Sprintf("%s%v", key.Name, endpoints)
		if of.Service {
			text = "+" + text
		}
		all = append(all, text)
	}
	slices.Sort(all)
	for _, flag := range []struct {
		is   bool
		text string
	}{{changes.Everything, "everything"}, {changes.Resync, "resync"}, {changes.Node, "node"}} {
		if flag.is {
			all = append(all, flag.text)
		}
	}
	return strings.Join(all, " ")
}

// The digests in the tests: that of the node is the largest number, so the sum exceeds 64 bits.
const digestOfNode = ^uint64(0)

// full is a full state of the instance 7, in two messages. Its token is "full".
func full(number, sum uint64, updates ...*pb.ServiceUpdate) []*pb.NextStateResponse {
	return []*pb.NextStateResponse{
		{Begin: begin(number, ""), Node: &pb.NodeState{Name: "node-a", Digest: digestOfNode}},
		{Services: updates, Commit: &pb.Commit{Token: "full", Digest: sum + digestOfNode}},
	}
}

// delta is an answer with changes of the state with the token base. Its own token is "delta".
func delta(number uint64, base string, sum uint64, updates ...*pb.ServiceUpdate) *pb.NextStateResponse {
	return &pb.NextStateResponse{
		Begin: begin(number, base), Services: updates, Commit: &pb.Commit{Token: "delta", Digest: sum + digestOfNode},
	}
}

func begin(number uint64, base string) *pb.Begin {
	return &pb.Begin{Revision: &pb.Revision{Instance: "0000000000000007", Number: number}, Base: base}
}

// service is the Service with a port and these endpoints. Its digest is 100.
func service(name string, endpoints ...*pb.Endpoint) *pb.ServiceUpdate {
	record := &pb.Service{
		Digest: 100, Type: pb.ServiceType_SERVICE_TYPE_CLUSTER_IP,
		Ports: []*pb.ServicePort{{Name: "http", Protocol: pb.Protocol_PROTOCOL_TCP, Number: 80}},
	}
	return &pb.ServiceUpdate{Key: &pb.ServiceKey{Namespace: "ns", Name: name}, Service: record, Endpoints: endpoints}
}

// endpoints changes endpoints of a Service.
func endpoints(name string, endpoints ...*pb.Endpoint) *pb.ServiceUpdate {
	update := service(name, endpoints...)
	update.Service = nil
	return update
}

// without removes the endpoint at an address.
func without(name, address string) *pb.ServiceUpdate {
	update := endpoints(name)
	update.RemovedEndpoints = []*pb.EndpointKey{{Address: address}}
	return update
}

func removed(name string) *pb.ServiceUpdate {
	update := endpoints(name)
	update.Removed = true
	return update
}

// at is the endpoint at an address. Its digest is that number.
func at(address string, digest uint64) *pb.Endpoint {
	return &pb.Endpoint{
		Digest: digest, Address: address,
		Ports:  []*pb.EndpointPort{{Name: "http", Number: 8080}},
		Scopes: []pb.Scope{pb.Scope_SCOPE_INTERNAL},
	}
}
