// Package client is the library for backends of localnet in Go. A backend reads the state of one node from the brain
// (localnet-brain), and applies it, for example to a kernel subsystem or to its own proxy.
//
// [Run] is the main loop of a backend. It reads the newest state over a connection from [Dial], passes it to the
// backend's [Sync], and reports the result to the brain. It retries failures with backoff, resumes interrupted streams,
// and never passes on a state that it has received only in part. If the brain is unavailable, the backend keeps the
// state that it has applied.
//
// A backend can read the state in two ways:
//
//   - In full: Sync receives the whole state, and what has changed. A [DiffStore] remembers what the backend has
//     applied, and computes the difference.
//   - Incrementally: [Incremental] turns each change into a call of a [Listener].
//
// The package localnetv1 contains the messages, and documents their fields.
package client

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnetv1"
)

// Revision identifies a state. The zero Revision means "no state yet".
type Revision struct {
	InstanceID uint64 // A random number that the brain chooses when it starts.
	Rev        uint64 // The sequence number of the state within the instance, from 1.
}

// String returns the instance ID and the sequence number, separated by a colon.
func (r Revision) String() string { return fmt.Sprintf("%d:%d", r.InstanceID, r.Rev) }

// ServiceKey identifies a Service.
type ServiceKey struct {
	Namespace string // The namespace of the Service.
	Name      string // The name of the Service within its namespace.
}

// String returns the namespace and the name, separated by a slash.
func (k ServiceKey) String() string { return k.Namespace + "/" + k.Name }

func compareKeys(a, b ServiceKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// State is the complete state of the brain's node. It contains only ports whose protocol this version knows.
type State struct {
	Revision Revision                            // Identifies the state.
	Node     *pb.NodeState                       // Facts about the node.
	Services map[ServiceKey]*pb.ServiceEndpoints // All Services that the node serves, each with all of its endpoints.
}

// Changes describes how a state differs from the one in the last [Sync] that succeeded.
type Changes struct {
	// Everything means that the previous state is unknown, so each part of the state counts as changed. It is set until
	// the first Sync has succeeded, and after [Options.Resync].
	Everything bool
	// Resync means that the applied state may have been changed by another program ([Options.Resync]).
	Resync bool
	// Node means that the facts about the node have changed.
	Node bool
	// Services contains the Services that were added, changed or deleted. After a restart, the brain sends a full
	// state. Even then, Services contains only those that really differ.
	Services map[ServiceKey]struct{}
}

// apply changes the state as an answer of the brain requires, and records the changes.
func (s *State) apply(a *answer, changes *Changes) {
	if a.node != nil && !proto.Equal(s.Node, a.node) {
		s.Node, changes.Node = a.node, true
	}
	if !a.delta {
		for key := range s.Services {
			if a.services[key] == nil {
				a.removed = append(a.removed, key)
			}
		}
	}
	for key, service := range a.services {
		if !proto.Equal(s.Services[key], service) {
			s.Services[key] = service
			changes.Services[key] = struct{}{}
		}
	}
	for _, key := range a.removed {
		if s.Services[key] != nil {
			delete(s.Services, key)
			changes.Services[key] = struct{}{}
		}
	}
	s.Revision = a.revision
}

// PortEndpoint is an endpoint of one port of a Service. PortName and Address identify it within the Service.
type PortEndpoint struct {
	PortName string             // The name of the Service port.
	Protocol pb.Protocol        // The protocol of the Service port.
	Address  netip.AddrPort     // The address and port that receive the traffic.
	Local    bool               // Whether the endpoint is on this node.
	Scopes   *pb.EndpointScopes // The traffic for which the endpoint is eligible; see the getters of EndpointScopes.
}

// PortEndpoints returns the endpoints of each port of a Service, in the order of the message.
func PortEndpoints(service *pb.ServiceEndpoints) []PortEndpoint {
	protocols := map[string]pb.Protocol{}
	for _, port := range service.GetService().GetPorts() {
		protocols[port.Name] = port.Protocol
	}
	var all []PortEndpoint
	for _, endpoint := range service.GetEndpoints() {
		address, err := addressOf(endpoint)
		if err != nil {
			continue // Run accepts no such endpoint.
		}
		for _, at := range endpoint.PortOverrides {
			if protocol, ok := protocols[at.Name]; ok {
				to := netip.AddrPortFrom(address, uint16(at.Port))
				all = append(all, PortEndpoint{at.Name, protocol, to, endpoint.Local, endpoint.Scopes})
			}
		}
	}
	return all
}

func addressOf(endpoint *pb.Endpoint) (netip.Addr, error) {
	texts := slices.Concat(endpoint.GetIPs().GetV4(), endpoint.GetIPs().GetV6())
	if len(texts) != 1 {
		return netip.Addr{}, fmt.Errorf("an endpoint has %d addresses instead of one", len(texts))
	}
	return netip.ParseAddr(texts[0])
}
