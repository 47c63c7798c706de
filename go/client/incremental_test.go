package client

import (
	"context"
	"errors"
	"fmt"
	"testing"

	pb "localnet.dev/go/localnetv1"
)

// calls records the calls of a Listener.
type calls struct {
	log  []string
	fail bool
}

func (c *calls) add(format string, args ...any) { c.log = append(c.log, fmt.Sprintf(format, args...)) }

func (c *calls) SetNode(node *pb.NodeState) { c.add("node %s", node.Name) }
func (c *calls) SetService(key ServiceKey, service *pb.Service) {
	c.add("set %s %s", key, service.Type)
}
func (c *calls) DeleteService(key ServiceKey) { c.add("delete %s", key) }
func (c *calls) SetEndpoint(key ServiceKey, at PortEndpoint) {
	c.add("set %s %s %v", key, at.Address, at.Local)
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

func TestAListenerReceivesOnlyChangesInTheirOrder(t *testing.T) {
	local := service("a", "10.0.0.1", "10.0.0.3")
	local.Endpoints.Endpoints[0].Local = true
	typed := service("a", "10.0.0.3")
	typed.Endpoints.Service.Type = "NodePort"
	var state State
	state.Services = map[ServiceKey]*pb.ServiceEndpoints{}
	changes := Changes{Everything: true, Services: keys()}
	c := &calls{}
	sync := Incremental(c)
	for _, step := range []struct {
		name  string
		items []*pb.NextItem
		fail  bool
		want  []string
	}{
		{"full state", full(1, service("b"), service("a", "10.0.0.1", "10.0.0.2")), false,
			[]string{"node node-a", "set ns/a ", "set ns/a 10.0.0.1:8080 false", "set ns/a 10.0.0.2:8080 false", "set ns/b ", "commit 1"}},
		{"endpoints", delta(2, local), false,
			[]string{"set ns/a 10.0.0.1:8080 true", "set ns/a 10.0.0.3:8080 false", "delete ns/a 10.0.0.2:8080", "commit 2"}},
		{"a commit that fails", delta(3, typed), true, []string{"set ns/a NodePort", "delete ns/a 10.0.0.1:8080", "commit 3"}},
		{"the retry repeats nothing", delta(3), false, []string{"commit 3"}},
		{"deleted", delta(4, removed("a")), false, []string{"delete ns/a 10.0.0.3:8080", "delete ns/a", "commit 4"}},
	} {
		a := &answer{services: map[ServiceKey]*pb.ServiceEndpoints{}}
		for i, item := range step.items {
			if err := a.add(item, i == 0); err != nil {
				t.Fatal(err)
			}
		}
		state.apply(a, &changes)
		c.log, c.fail = nil, step.fail
		if err := sync(t.Context(), &state, &changes); err == nil {
			changes = Changes{Services: keys()}
		}
		equals(t, step.name, c.log, step.want)
	}
	c.log = nil
	sync(t.Context(), &state, &Changes{Everything: true, Resync: true})
	equals(t, "resync", c.log, []string{"reset", "node node-a", "set ns/b ", "commit 4"})
}

func TestPortEndpointsContainEachPortOfAnEndpoint(t *testing.T) {
	of := &pb.ServiceEndpoints{
		Service: &pb.Service{Ports: []*pb.PortMapping{{Name: "dns", Protocol: pb.Protocol_UDP}, {Name: "http", Protocol: pb.Protocol_TCP}}},
		Endpoints: []*pb.Endpoint{{
			IPs:           &pb.IPSet{V6: []string{"fd00::1"}},
			PortOverrides: []*pb.PortName{{Name: "dns", Port: 53}, {Name: "http", Port: 80}, {Name: "other", Port: 1}},
		}},
	}
	var got []string
	for _, one := range PortEndpoints(of) {
		got = append(got, fmt.Sprintf("%s %v %v", one.PortName, one.Protocol, one.Address))
	}
	equals(t, "endpoints", got, []string{"dns UDP [fd00::1]:53", "http TCP [fd00::1]:80"})
	equals(t, "no Service", len(PortEndpoints(nil)), 0)
}
