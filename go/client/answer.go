package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"localnet.dev/go/internal/loop"
	pb "localnet.dev/go/localnetv1"
)

// answer is a complete answer of Next: a full state, or the changes since the revision in the request.
type answer struct {
	revision Revision
	delta    bool
	node     *pb.NodeState // nil if a delta does not change it.
	services map[ServiceKey]*pb.ServiceEndpoints
	removed  []ServiceKey
	last     ServiceKey // The Service of the previous item, which the next item may continue.
}

// next waits for a state other than `have`. The caller sets delta if it can apply changes to `have`. An answer whose
// stream did not end with OK is an error.
func next(ctx context.Context, conn grpc.ClientConnInterface, have Revision, delta bool) (*answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // Ends the stream of an invalid answer.
	request := &pb.NextFilter{InstanceID: have.InstanceID, Rev: have.Rev, Delta: delta}
	stream, err := pb.NewEndpointsClient(conn).Next(ctx, request, grpc.MaxCallRecvMsgSize(loop.MaxMessage))
	if err != nil {
		return nil, loop.Failed(err)
	}
	a := &answer{services: map[ServiceKey]*pb.ServiceEndpoints{}}
	for first := true; ; first = false {
		item, err := stream.Recv()
		if err == io.EOF {
			break
		} else if err != nil {
			return nil, loop.Failed(err)
		} else if err := a.add(item, first); err != nil {
			return nil, fmt.Errorf("the brain sent an invalid state: %w", err)
		}
	}
	if err := a.check(delta); err != nil {
		return nil, fmt.Errorf("the brain sent an invalid state: %w", err)
	}
	return a, nil
}

// add adds the next item of the stream.
func (a *answer) add(item *pb.NextItem, first bool) error {
	switch token := item.Next; {
	case first && token == nil:
		return errors.New("Next is missing from the first item")
	case !first && token != nil:
		return errors.New("Next is allowed only in the first item")
	case first:
		a.revision, a.delta = Revision{token.InstanceID, token.Rev}, token.Delta
	}
	if item.Node != nil {
		a.node = item.Node
	}
	if key := item.Removed; key != nil {
		a.removed = append(a.removed, ServiceKey{key.Namespace, key.Name})
	}
	if item.Endpoints != nil {
		return a.addService(item.Endpoints)
	}
	return nil
}

func (a *answer) addService(item *pb.ServiceEndpoints) error {
	key := ServiceKey{item.GetService().GetNamespace(), item.GetService().GetName()}
	if key.Namespace == "" || key.Name == "" {
		return fmt.Errorf("Service %q lacks its namespace or name", key)
	}
	for _, endpoint := range item.Endpoints {
		if _, err := addressOf(endpoint); err != nil {
			return fmt.Errorf("Service %s: Endpoints.IPs: %w", key, err)
		}
		for _, at := range endpoint.PortOverrides {
			if at.Port < 1 || at.Port > 65535 {
				return fmt.Errorf("Service %s: PortOverrides: %d is not a port number", key, at.Port)
			}
		}
	}
	// A newer brain may send ports with protocols that this version does not know.
	item.Service.Ports = slices.DeleteFunc(item.Service.Ports, func(port *pb.PortMapping) bool {
		_, known := pb.Protocol_name[int32(port.Protocol)]
		return !known || port.Protocol == pb.Protocol_UnknownProtocol
	})
	before := a.services[key]
	switch {
	case item.Continues && (before == nil || a.last != key):
		return fmt.Errorf("Service %s: Continues does not follow an item of the Service", key)
	case item.Continues:
		before.Endpoints = append(before.Endpoints, item.Endpoints...)
	case before != nil:
		return fmt.Errorf("Service %s is sent twice", key)
	default:
		a.services[key], a.last = item, key
	}
	return nil
}

// check checks an answer whose stream has ended with OK.
func (a *answer) check(delta bool) error {
	switch {
	case a.revision == Revision{}:
		return errors.New("the answer is empty")
	case a.delta && !delta:
		// There is no state to which the changes could be applied.
		return errors.New("changes instead of the requested full state")
	case !a.delta && a.node == nil:
		return errors.New("Node is missing from a full state")
	case !a.delta && len(a.removed) > 0:
		return errors.New("Removed is not allowed in a full state")
	}
	for _, key := range a.removed {
		if a.services[key] != nil {
			return fmt.Errorf("Service %s is both sent and removed", key)
		}
	}
	return nil
}
