package client

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnet/v1"
)

// Listener receives the changes of the state one by one. The calls describe the desired state. A Listener need not apply
// anything before Commit. The work for an answer is proportional to the number of changed records.
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
	a := &adapter{Listener: listener, delivered: map[ServiceKey]*ServiceEndpoints{}}
	return a.sync
}

type adapter struct {
	Listener
	node      *pb.NodeState
	delivered map[ServiceKey]*ServiceEndpoints // What was set on the listener, whether or not its Commit succeeded.
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
	slices.SortFunc(keys, func(a, b ServiceKey) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, key := range slices.Compact(keys) {
		var changed map[EndpointKey]struct{} // nil for all.
		if !changes.Everything {
			changed = changes.Services[key].Endpoints
		}
		a.deliver(key, state.Services[key], changed)
	}
	return a.Commit(ctx, state.Revision)
}

// deliver passes on the changes of one Service, which is nil if it was deleted.
func (a *adapter) deliver(key ServiceKey, now *ServiceEndpoints, changed map[EndpointKey]struct{}) {
	before := a.delivered[key]
	if before == nil {
		before = &ServiceEndpoints{Endpoints: map[EndpointKey]*pb.Endpoint{}}
	}
	next := now
	if next == nil {
		next = &ServiceEndpoints{}
	}
	old, current := protocols(before.Service), protocols(next.Service)
	all := changed == nil || !maps.Equal(old, current)
	if now != nil {
		if before.Service == nil || !proto.Equal(before.Service, now.Service) {
			a.SetService(key, now.Service)
		}
		before.Service = now.Service
		a.delivered[key] = before
	}
	var keys []EndpointKey
	if all {
		keys = slices.AppendSeq(slices.Collect(maps.Keys(before.Endpoints)), maps.Keys(next.Endpoints))
	} else {
		keys = slices.Collect(maps.Keys(changed))
	}
	slices.SortFunc(keys, EndpointKey.compare)
	// A port of an address may move from one key to another. Then both keys have changed.
	var was, is []PortEndpoint
	for _, at := range slices.Compact(keys) {
		was = appendPorts(was, old, at, before.Endpoints[at])
		is = appendPorts(is, current, at, next.Endpoints[at])
		if next.Endpoints[at] == nil {
			delete(before.Endpoints, at)
		} else {
			before.Endpoints[at] = next.Endpoints[at]
		}
	}
	a.deliverEndpoints(key, was, is)
	if now == nil && before.Service != nil {
		a.DeleteService(key)
		delete(a.delivered, key)
	}
}

// deliverEndpoints passes on how the endpoints of a Service differ.
func (a *adapter) deliverEndpoints(key ServiceKey, was, is []PortEndpoint) {
	type id struct {
		port    string
		address netip.AddrPort
	}
	old := map[id]PortEndpoint{}
	for _, endpoint := range was {
		old[id{endpoint.PortName, endpoint.Address}] = endpoint
	}
	for _, endpoint := range is {
		id := id{endpoint.PortName, endpoint.Address}
		if was, ok := old[id]; !ok || was.Protocol != endpoint.Protocol || !proto.Equal(was.Endpoint, endpoint.Endpoint) {
			a.SetEndpoint(key, endpoint)
		}
		delete(old, id)
	}
	for _, endpoint := range was {
		if _, gone := old[id{endpoint.PortName, endpoint.Address}]; gone {
			a.DeleteEndpoint(key, endpoint)
		}
	}
}
