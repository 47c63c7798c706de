package client

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	pb "localnet.dev/go/localnet/v1"
)

// answer is a complete answer of NextState with the right sum: a full state, or changes of the state that the reader has.
type answer struct {
	revision Revision
	full     bool
	node     *pb.NodeState // nil if the answer does not change it.
	updates  []update
}

// update is a valid ServiceUpdate, with the digests apart from the records.
type update struct {
	key              ServiceKey
	removed, replace bool
	service          *pb.Service // nil if unchanged.
	digest           uint64      // The digest of service.
	gone             []EndpointKey
	endpoints        []endpoint
}

type endpoint struct {
	key    EndpointKey
	digest uint64
	record *pb.Endpoint
}

// held is what the reader must remember to read the next answer. The records themselves are in the [State].
type held struct {
	token    string
	sum      uint64 // The sum of all digests, modulo 2^64.
	node     *uint64
	services map[ServiceKey]*digests
}

// digests are the digests of the records of one Service.
type digests struct {
	service   uint64
	endpoints map[EndpointKey]uint64
}

// accept checks an answer to a request with the token, whose stream has ended with OK. The steps are those in the comment of
// StateService. An answer without its end changes nothing. After any other error, nothing is held, so that the next answer is a full
// state.
func (h *held) accept(messages []*pb.NextStateResponse) (*answer, error) {
	if len(messages) == 0 || messages[len(messages)-1].Commit == nil {
		return nil, errors.New("the brain sent an answer without its end")
	}
	a, err := h.read(messages)
	if err != nil {
		*h = held{}
		return nil, err
	}
	return a, nil
}

func (h *held) read(messages []*pb.NextStateResponse) (*answer, error) {
	begin, commit := messages[0].Begin, messages[len(messages)-1].Commit
	if begin == nil {
		return nil, invalid("begin is missing from the first message")
	}
	instance, err := strconv.ParseUint(begin.Revision.GetInstance(), 16, 64)
	if err != nil {
		return nil, invalid("begin.revision.instance: %w", err)
	}
	a := &answer{revision: Revision{InstanceID: instance, Rev: begin.Revision.GetNumber()}, full: begin.Base == ""}
	if a.full {
		*h = held{services: map[ServiceKey]*digests{}}
	} else if begin.Base != h.token {
		return nil, lost("the answer continues another state")
	}
	for _, message := range messages {
		if message.Node != nil {
			h.setNode(message.Node)
			a.node = message.Node
		}
		for _, record := range message.Services {
			update, err := decode(record)
			if err != nil {
				return nil, err
			}
			if err := h.update(update); err != nil {
				return nil, err
			}
			a.updates = append(a.updates, update)
		}
	}
	switch {
	case h.sum != commit.Digest:
		return nil, lost("the sum of the digests differs")
	case h.node == nil:
		return nil, lost("there are no facts about the node")
	}
	h.token = commit.Token
	return a, nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("the brain sent an invalid state: %w", fmt.Errorf(format, args...))
}

func lost(what string) error {
	return fmt.Errorf("the state is incomplete: %s; reading it again", what)
}

// setNode counts the digest of the node, and takes it out of the record.
func (h *held) setNode(record *pb.NodeState) {
	if h.node != nil {
		h.sum -= *h.node
	}
	digest := record.Digest
	record.Digest, h.node = 0, &digest
	h.sum += digest
}

// update counts the records of an update, in the order of the numbers of its fields.
func (h *held) update(u update) error {
	of := h.services[u.key]
	if of != nil && (u.removed || u.replace) {
		h.sum -= of.service
		for _, digest := range of.endpoints {
			h.sum -= digest
		}
		delete(h.services, u.key)
		of = nil
	}
	if u.removed {
		return nil
	}
	if of == nil {
		if u.service == nil {
			return lost("the answer changes a Service that the reader does not have")
		}
		of = &digests{endpoints: map[EndpointKey]uint64{}}
		h.services[u.key] = of
	}
	if u.service != nil {
		h.sum += u.digest - of.service
		of.service = u.digest
	}
	for _, key := range u.gone {
		h.sum -= of.endpoints[key]
		delete(of.endpoints, key)
	}
	for _, endpoint := range u.endpoints {
		h.sum += endpoint.digest - of.endpoints[endpoint.key]
		of.endpoints[endpoint.key] = endpoint.digest
	}
	return nil
}

// decode checks an update, and takes the digests out of its records.
func decode(record *pb.ServiceUpdate) (update, error) {
	u := update{
		key:     ServiceKey{Namespace: record.Key.GetNamespace(), Name: record.Key.GetName()},
		removed: record.Removed, replace: record.Replace, service: record.Service,
	}
	if u.key.Namespace == "" || u.key.Name == "" {
		return u, invalid("Service %q lacks its namespace or name", u.key)
	}
	if u.service != nil {
		u.digest, u.service.Digest = u.service.Digest, 0
		if err := checkService(u.service); err != nil {
			return u, invalid("Service %s: %w", u.key, err)
		}
	}
	for _, gone := range record.RemovedEndpoints {
		address, err := netip.ParseAddr(gone.Address)
		if err != nil {
			return u, invalid("Service %s: removed_endpoints.address: %w", u.key, err)
		}
		u.gone = append(u.gone, EndpointKey{address, gone.Ordinal})
	}
	for _, record := range record.Endpoints {
		address, err := netip.ParseAddr(record.Address)
		if err != nil {
			return u, invalid("Service %s: endpoints.address: %w", u.key, err)
		}
		for _, port := range record.Ports {
			if !isPort(port.Number) {
				return u, invalid("Service %s: endpoints.ports.number: %d is not a port number", u.key, port.Number)
			}
		}
		u.endpoints = append(u.endpoints, endpoint{EndpointKey{address, record.Ordinal}, record.Digest, record})
		record.Digest = 0
	}
	return u, nil
}

// checkService checks the fields that backends parse, and removes what only a newer version knows.
func checkService(service *pb.Service) error {
	service.Ports = slices.DeleteFunc(service.Ports, func(port *pb.ServicePort) bool {
		_, known := pb.Protocol_name[int32(port.Protocol)]
		return !known || port.Protocol == pb.Protocol_PROTOCOL_UNSPECIFIED
	})
	service.Addresses = slices.DeleteFunc(service.Addresses, func(address *pb.ServiceAddress) bool {
		_, known := pb.AddressKind_name[int32(address.Kind)]
		return !known || address.Kind == pb.AddressKind_ADDRESS_KIND_UNSPECIFIED
	})
	for _, port := range service.Ports {
		if !isPort(port.Number) {
			return fmt.Errorf("ports.number: %d is not a port number", port.Number)
		} else if port.NodePort != 0 && !isPort(port.NodePort) {
			return fmt.Errorf("ports.node_port: %d is not a port number", port.NodePort)
		}
	}
	for _, address := range service.Addresses {
		if _, err := netip.ParseAddr(address.Address); err != nil {
			return fmt.Errorf("addresses.address: %w", err)
		}
	}
	return nil
}

func isPort(number uint32) bool { return number >= 1 && number <= 65535 }
