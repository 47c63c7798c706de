package client

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	fakebrain "localnet.dev/go/internal/fake"
	pb "localnet.dev/go/localnetv1"
)

// fake is both ends of a loop under test: a brain as a connection, and a backend. The test plays both.
type fake struct {
	*connection
	syncs    chan synced             // Each call of Sync, with its result in results.
	results  chan error              //
	returned chan error              // What Run returned.
	stop     context.CancelCauseFunc // Ends the context of Run.
}

type (
	connection = fakebrain.Brain[*pb.NextFilter, *pb.NextItem, *pb.BackendReport]
	reply      = fakebrain.Reply[*pb.NextItem]
)

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
		fakebrain.New[*pb.NextFilter, *pb.NextItem, *pb.BackendReport](),
		make(chan synced), make(chan error), make(chan error, 1), nil,
	}
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancelCause(t.Context())
	f.stop = stop
	go func() { f.returned <- Run(ctx, f.connection, f.sync, options) }()
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

// end ends the next sync with this result, and returns what the sync received.
func (f *fake) end(err error) synced {
	got := <-f.syncs
	f.results <- err
	return got
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
