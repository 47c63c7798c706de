package client

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnetv1"
)

// Listener receives the changes of the state one by one. The calls describe the desired state. A Listener need not apply
// anything before Commit.
//
// The order within one commit: SetNode comes first. For each changed Service, SetService precedes its SetEndpoint calls,
// and these precede its DeleteEndpoint calls. DeleteService comes after all endpoints of the Service are deleted.
type Listener interface {
	// SetNode sets the facts about the node. It is called before all other calls, and whenever they change.
	SetNode(node *pb.NodeState)
	// SetService adds a Service, or changes something other than its endpoints.
	SetService(key ServiceKey, service *pb.Service)
	// DeleteService deletes a Service.
	DeleteService(key ServiceKey)
	// SetEndpoint adds an endpoint, or changes something other than its PortName and Address.
	SetEndpoint(service ServiceKey, endpoint PortEndpoint)
	// DeleteEndpoint deletes an endpoint.
	DeleteEndpoint(service ServiceKey, endpoint PortEndpoint)
	// Reset discards everything that earlier calls have set. It is called after [Options.Resync], and everything is then
	// set again before the next Commit.
	Reset()
	// Commit applies the result of all calls so far, which is the complete state of this revision. After an error, it is
	// called again. Before that, other calls may set newer changes. See [Sync].
	Commit(ctx context.Context, revision Revision) error
}

// Incremental returns a [Sync] that passes each change to a Listener on which nothing has been set yet.
func Incremental(listener Listener) Sync {
	a := &adapter{Listener: listener, delivered: map[ServiceKey]*pb.ServiceEndpoints{}}
	return a.sync
}

type adapter struct {
	Listener
	node      *pb.NodeState
	delivered map[ServiceKey]*pb.ServiceEndpoints // What was set on the listener, whether or not its Commit succeeded.
}

func (a *adapter) sync(ctx context.Context, state *State, changes *Changes) error {
	if changes.Resync {
		a.Reset()
		clear(a.delivered)
		a.node = nil
	}
	if a.node == nil || !proto.Equal(a.node, state.Node) {
		a.SetNode(state.Node)
		a.node = state.Node
	}
	keys := slices.Collect(maps.Keys(changes.Services))
	if changes.Everything {
		keys = slices.AppendSeq(slices.Collect(maps.Keys(a.delivered)), maps.Keys(state.Services))
	}
	slices.SortFunc(keys, compareKeys)
	for _, key := range slices.Compact(keys) {
		a.deliver(key, state.Services[key])
	}
	return a.Commit(ctx, state.Revision)
}

// deliver passes on the changes of one Service, which is nil if it was deleted.
func (a *adapter) deliver(key ServiceKey, now *pb.ServiceEndpoints) {
	before := a.delivered[key]
	if before == now {
		return
	}
	if now != nil && (before == nil || !proto.Equal(before.Service, now.Service)) {
		a.SetService(key, now.Service)
	}
	type id struct {
		port    string
		address netip.AddrPort
	}
	old := map[id]PortEndpoint{}
	for _, endpoint := range PortEndpoints(before) {
		old[id{endpoint.PortName, endpoint.Address}] = endpoint
	}
	for _, endpoint := range PortEndpoints(now) {
		id := id{endpoint.PortName, endpoint.Address}
		if was, ok := old[id]; !ok || !equal(was, endpoint) {
			a.SetEndpoint(key, endpoint)
		}
		delete(old, id)
	}
	for _, endpoint := range PortEndpoints(before) {
		if _, gone := old[id{endpoint.PortName, endpoint.Address}]; gone {
			a.DeleteEndpoint(key, endpoint)
		}
	}
	if a.delivered[key] = now; now == nil {
		a.DeleteService(key)
		delete(a.delivered, key)
	}
}

func equal(a, b PortEndpoint) bool {
	scopes := proto.Equal(a.Scopes, b.Scopes)
	a.Scopes, b.Scopes = nil, nil
	return scopes && a == b
}
