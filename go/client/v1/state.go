package client

import (
	"cmp"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnet/v1"
)

// EndpointKey identifies an endpoint within its Service. The ordinal tells endpoints with one address apart, and may change. Flows are
// identified by the address and the port number instead ([PortEndpoint]).
type EndpointKey struct {
	Address netip.Addr // The endpoint's address.
	Ordinal uint32     // 0, 1, 2 and so on; nearly always 0.
}

func (k EndpointKey) compare(other EndpointKey) int {
	return cmp.Or(k.Address.Compare(other.Address), cmp.Compare(k.Ordinal, other.Ordinal))
}

// ServiceEndpoints is a Service with its endpoints.
type ServiceEndpoints struct {
	Service   *pb.Service                  // The Service. It contains only ports and addresses whose protocol and kind this version knows.
	Endpoints map[EndpointKey]*pb.Endpoint // All of its endpoints.
}

// State is the complete state of the brain's node. The field Digest of its records is not set.
type State struct {
	Revision Revision                         // Identifies the state.
	Node     *pb.NodeState                    // Facts about the node.
	Services map[ServiceKey]*ServiceEndpoints // All Services that the node serves.
	Withheld map[ServiceKey]struct{}          // Those that the brain withholds: the backend lacks capabilities. They have no endpoints.
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
	Services map[ServiceKey]*ServiceChanges
}

// ServiceChanges says what of a Service has changed.
type ServiceChanges struct {
	Service   bool                     // Whether something other than the endpoints has changed, or the Service was added or deleted.
	Endpoints map[EndpointKey]struct{} // The endpoints that were added, changed or deleted.
}

// former contains what an answer has changed, as it was. Its entries without a Service or with nil endpoints did not exist.
type former map[ServiceKey]*ServiceEndpoints

// apply changes the state as an answer of the brain requires, and records the changes.
func (s *State) apply(a *answer, changes *Changes) {
	if a.node != nil && !proto.Equal(s.Node, a.node) {
		s.Node, changes.Node = a.node, true
	}
	before := former{}
	if a.full {
		for key := range s.Services {
			s.remove(key, s.touch(key, before))
		}
	}
	for _, update := range a.updates {
		s.update(update, before)
	}
	for key, was := range before {
		s.compare(key, was, changes)
	}
	s.Revision = a.revision
}

// touch returns the entry of a Service in before, and adds it with the current Service.
func (s *State) touch(key ServiceKey, before former) *ServiceEndpoints {
	was := before[key]
	if was == nil {
		was = &ServiceEndpoints{Endpoints: map[EndpointKey]*pb.Endpoint{}}
		if now := s.Services[key]; now != nil {
			was.Service = now.Service
		}
		before[key] = was
	}
	return was
}

func (s *State) remove(key ServiceKey, was *ServiceEndpoints) {
	if now := s.Services[key]; now != nil {
		for at := range now.Endpoints {
			was.keep(at, now)
		}
		delete(s.Services, key)
	}
}

// keep remembers an endpoint of the Service, unless an earlier update of the same answer has changed it.
func (e *ServiceEndpoints) keep(at EndpointKey, now *ServiceEndpoints) {
	if _, known := e.Endpoints[at]; !known {
		e.Endpoints[at] = now.Endpoints[at]
	}
}

// update applies an update in the order of the numbers of its fields.
func (s *State) update(u update, before former) {
	was := s.touch(u.key, before)
	if u.removed || u.replace {
		s.remove(u.key, was)
	}
	if u.removed {
		return
	}
	now := s.Services[u.key]
	if now == nil {
		now = &ServiceEndpoints{Endpoints: map[EndpointKey]*pb.Endpoint{}}
		s.Services[u.key] = now
	}
	if u.service != nil {
		now.Service = u.service
	}
	for _, at := range u.gone {
		was.keep(at, now)
		delete(now.Endpoints, at)
	}
	for _, endpoint := range u.endpoints {
		was.keep(endpoint.key, now)
		now.Endpoints[endpoint.key] = endpoint.record
	}
}

// compare records what really differs from what the Service was. The state keeps the messages of equal records.
func (s *State) compare(key ServiceKey, was *ServiceEndpoints, changes *Changes) {
	now := s.Services[key]
	if now == nil {
		now = &ServiceEndpoints{}
	}
	if !now.Service.GetWithheld() {
		delete(s.Withheld, key)
	} else if s.Withheld == nil {
		s.Withheld = map[ServiceKey]struct{}{key: {}}
	} else {
		s.Withheld[key] = struct{}{}
	}
	changed := changes.Services[key]
	if changed == nil {
		changed = &ServiceChanges{Endpoints: map[EndpointKey]struct{}{}}
	}
	if proto.Equal(was.Service, now.Service) {
		now.Service = was.Service
	} else {
		changed.Service = true
	}
	for at, before := range was.Endpoints {
		if !proto.Equal(before, now.Endpoints[at]) {
			changed.Endpoints[at] = struct{}{}
		} else if before != nil {
			now.Endpoints[at] = before
		}
	}
	if changed.Service || len(changed.Endpoints) > 0 {
		changes.Services[key] = changed
	}
}

// PortEndpoint is an endpoint of one port of a Service. PortName and Address identify it within the Service.
type PortEndpoint struct {
	PortName string         // The name of the Service port.
	Protocol pb.Protocol    // The protocol of the port.
	Address  netip.AddrPort // The address and port that receive the traffic.
	Endpoint *pb.Endpoint   // The endpoint with all of its ports.
}

// Has returns whether the endpoint is eligible for this traffic.
func (e PortEndpoint) Has(scope pb.Scope) bool { return slices.Contains(e.Endpoint.Scopes, scope) }

// PortEndpoints returns the endpoints of each port of a Service, in ascending order of their keys. There are none if the Service is nil.
func PortEndpoints(of *ServiceEndpoints) []PortEndpoint {
	if of == nil {
		return nil
	}
	keys := make([]EndpointKey, 0, len(of.Endpoints))
	for key := range of.Endpoints {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, EndpointKey.compare)
	var all []PortEndpoint
	protocols := protocols(of.Service)
	for _, key := range keys {
		all = appendPorts(all, protocols, key, of.Endpoints[key])
	}
	return all
}

// protocols returns the protocol of each port of a Service, by name.
func protocols(service *pb.Service) map[string]pb.Protocol {
	all := map[string]pb.Protocol{}
	for _, port := range service.GetPorts() {
		all[port.Name] = port.Protocol
	}
	return all
}

// appendPorts appends an endpoint for each of its ports. In VIEW_DNS, these have protocols of their own.
func appendPorts(all []PortEndpoint, protocols map[string]pb.Protocol, key EndpointKey, endpoint *pb.Endpoint) []PortEndpoint {
	for _, port := range endpoint.GetPorts() {
		protocol := cmp.Or(port.Protocol, protocols[port.Name])
		if _, known := pb.Protocol_name[int32(protocol)]; known && protocol != pb.Protocol_PROTOCOL_UNSPECIFIED {
			all = append(all, PortEndpoint{port.Name, protocol, netip.AddrPortFrom(key.Address, uint16(port.Number)), endpoint})
		}
	}
	return all
}
