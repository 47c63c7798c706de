package client

import (
	"context"
	"errors"
	"fmt"
	"testing"

	pb "localnet.dev/go/localnet/v1"
)

// calls records the calls of a Listener.
type calls struct {
	log  []string
	fail bool
}

func (c *calls) add(format string, args ...any) { c.log = append(c.log, fmt.Sprintf(format, args...)) }

func (c *calls) SetNode(node *pb.NodeState) { c.add("node %s", node.Name) }
func (c *calls) SetService(key ServiceKey, service *pb.Service) {
	c.add("set %s %d", key, service.Type)
}
func (c *calls) DeleteService(key ServiceKey) { c.add("delete %s", key) }
func (c *calls) SetEndpoint(key ServiceKey, at PortEndpoint) {
	c.add("set %s %s %d %v", key, at.Address, at.Protocol, at.Endpoint.Local)
}
func (c *calls) DeleteEndpoint(key ServiceKey, at PortEndpoint) {
	c.add("delete %s %s", key, at.Address)
}
func (c *calls) Reset() { c.add("reset") }
func (c *calls) Commit(_ context.Context, revision Revision) error {
	c.add("commit %d", revision.Rev)
	if c.fail {
		return errors.New("refused")
	}
	return nil
}

// numbered is an endpoint with this port and ordinal.
func numbered(address string, ordinal, port uint32) *pb.Endpoint {
	endpoint := at(address, 1)
	endpoint.Ordinal, endpoint.Ports[0].Number = ordinal, port
	return endpoint
}

func TestAListenerReceivesOnlyChangesInTheirOrder(t *testing.T) {
	local := at("10.0.0.1", 1)
	local.Local = true
	typed := service("a")
	typed.Service.Type = pb.ServiceType_SERVICE_TYPE_NODE_PORT
	udp := service("c")
	udp.Service.Ports[0].Protocol = pb.Protocol_PROTOCOL_UDP
	// The first of two endpoints at one address goes, so the second one gets its ordinal.
	shifted := endpoints("c", numbered("10.0.0.1", 0, 8081))
	shifted.RemovedEndpoints = []*pb.EndpointKey{{Address: "10.0.0.1", Ordinal: 1}}
	swapped := without("a", "10.0.0.2")
	swapped.Endpoints = []*pb.Endpoint{local, at("10.0.0.3", 1)}
	state := State{Services: map[ServiceKey]*ServiceEndpoints{}}
	changes := Changes{Everything: true, Services: map[ServiceKey]*ServiceChanges{}}
	c := &calls{}
	sync := Incremental(c)
	for _, step := range []struct {
		name    string
		full    bool
		updates []*pb.ServiceUpdate
		fail    bool
		want    []string
	}{
		{"full state", true, []*pb.ServiceUpdate{service("b"), service("a", at("10.0.0.1", 1), at("10.0.0.2", 2))}, false,
			[]string{"node node-a", "set ns/a 1", "set ns/a 10.0.0.1:8080 1 false", "set ns/a 10.0.0.2:8080 1 false", "set ns/b 1", "commit 0"}},
		{"endpoints", false, []*pb.ServiceUpdate{swapped}, false,
			[]string{"set ns/a 10.0.0.1:8080 1 true", "set ns/a 10.0.0.3:8080 1 false", "delete ns/a 10.0.0.2:8080", "commit 0"}},
		{"a commit that fails", false, []*pb.ServiceUpdate{typed, without("a", "10.0.0.1")}, true,
			[]string{"set ns/a 2", "delete ns/a 10.0.0.1:8080", "commit 0"}},
		{"the retry repeats nothing", false, nil, false, []string{"commit 0"}},
		{"deleted", false, []*pb.ServiceUpdate{removed("a")}, false, []string{"delete ns/a 10.0.0.3:8080", "delete ns/a", "commit 0"}},
		{"created again", false, []*pb.ServiceUpdate{typed}, false, []string{"set ns/a 2", "commit 0"}},
		{"deleted again", false, []*pb.ServiceUpdate{removed("a")}, false, []string{"delete ns/a", "commit 0"}},
		{"one address twice", false, []*pb.ServiceUpdate{service("c", numbered("10.0.0.1", 0, 8080), numbered("10.0.0.1", 1, 8081))}, false,
			[]string{"set ns/c 1", "set ns/c 10.0.0.1:8080 1 false", "set ns/c 10.0.0.1:8081 1 false", "commit 0"}},
		{"another ordinal", false, []*pb.ServiceUpdate{shifted}, false,
			[]string{"set ns/c 10.0.0.1:8081 1 false", "delete ns/c 10.0.0.1:8080", "commit 0"}},
		{"another protocol", false, []*pb.ServiceUpdate{udp}, false, []string{"set ns/c 1", "set ns/c 10.0.0.1:8081 2 false", "commit 0"}},
		{"a full state without changes", true, []*pb.ServiceUpdate{service("b"), udp, endpoints("c", numbered("10.0.0.1", 0, 8081))}, false,
			[]string{"commit 0"}},
	} {
		a := &answer{full: step.full, node: &pb.NodeState{Name: "node-a"}}
		for _, update := range step.updates {
			decoded, err := decode(update)
			if err != nil {
				t.Fatal(err)
			}
			a.updates = append(a.updates, decoded)
		}
		state.apply(a, &changes)
		c.log, c.fail = nil, step.fail
		if err := sync(t.Context(), &state, &changes); err == nil {
			changes = Changes{Services: map[ServiceKey]*ServiceChanges{}}
		}
		equals(t, step.name, c.log, step.want)
	}
	c.log = nil
	sync(t.Context(), &state, &Changes{Everything: true, Resync: true})
	equals(t, "resync", c.log, []string{"reset", "node node-a", "set ns/b 1", "set ns/c 1", "set ns/c 10.0.0.1:8081 2 false", "commit 0"})
}

// In the view for DNS, an endpoint may have ports that its Service lacks.
func TestPortEndpointsContainEachPortInOrder(t *testing.T) {
	two := at("10.0.0.2", 1)
	two.Ports = append(two.Ports, &pb.EndpointPort{Name: "dns", Number: 53, Protocol: pb.Protocol_PROTOCOL_UDP}, &pb.EndpointPort{Name: "other", Number: 1})
	of := &ServiceEndpoints{service("a").Service, map[EndpointKey]*pb.Endpoint{}}
	for _, record := range []*pb.Endpoint{at("fd00::1", 1), at("10.0.0.10", 1), two} {
		decoded, err := decode(endpoints("a", record))
		if err != nil {
			t.Fatal(err)
		}
		of.Endpoints[decoded.endpoints[0].key] = record
	}
	var got []string
	for _, one := range PortEndpoints(of) {
		got = append(got, fmt.Sprintf("%s %d %v", one.PortName, one.Protocol, one.Address))
	}
	equals(t, "endpoints", got, []string{"http 1 10.0.0.2:8080", "dns 2 10.0.0.2:53", "http 1 10.0.0.10:8080", "http 1 [fd00::1]:8080"})
	equals(t, "no Service", len(PortEndpoints(nil)), 0)
}
