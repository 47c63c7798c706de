package client

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	pb "localnet.dev/go/localnet/v1"
)

// model is a state: each Service with the digest of its record, and those of its endpoints. A record's content depends on its digest.
type model map[string]struct {
	digest    uint64
	endpoints map[string]uint64
}

func (m model) sum() uint64 {
	var sum uint64
	for _, of := range m {
		sum += of.digest
		for _, digest := range of.endpoints {
			sum += digest
		}
	}
	return sum
}

// change makes a random change, and returns the update that describes it.
func (m model) change(random *rand.Rand) *pb.ServiceUpdate {
	name := fmt.Sprint("service-", random.IntN(4))
	of, exists := m[name]
	update := &pb.ServiceUpdate{Key: &pb.ServiceKey{Namespace: "ns", Name: name}}
	if random.IntN(5) == 0 {
		update.Removed = true
		delete(m, name)
		return update
	}
	update.Replace = random.IntN(5) == 0
	if !exists || update.Replace {
		of.endpoints = map[string]uint64{}
	}
	if !exists || update.Replace || random.IntN(3) == 0 {
		of.digest = random.Uint64N(3) << 62
		update.Service = &pb.Service{Digest: of.digest, Uid: fmt.Sprint(of.digest)}
	}
	for range random.IntN(3) {
		gone := fmt.Sprint("10.0.0.", random.IntN(6))
		update.RemovedEndpoints = append(update.RemovedEndpoints, &pb.EndpointKey{Address: gone})
		delete(of.endpoints, gone)
	}
	for range random.IntN(3) {
		address, digest := fmt.Sprint("10.0.0.", random.IntN(6)), random.Uint64N(3)<<62
		update.Endpoints = append(update.Endpoints, &pb.Endpoint{Digest: digest, Address: address, Hostname: fmt.Sprint(digest)})
		of.endpoints[address] = digest
	}
	m[name] = of
	return update
}

// whole describes the state without a previous one.
func (m model) whole() (updates []*pb.ServiceUpdate) {
	for name, of := range m {
		update := &pb.ServiceUpdate{Key: &pb.ServiceKey{Namespace: "ns", Name: name}}
		update.Service = &pb.Service{Digest: of.digest, Uid: fmt.Sprint(of.digest)}
		for address, digest := range of.endpoints {
			update.Endpoints = append(update.Endpoints, &pb.Endpoint{Digest: digest, Address: address, Hostname: fmt.Sprint(digest)})
		}
		updates = append(updates, update)
	}
	return updates
}

// records lists the content of each record of a state.
func records(state *State) map[string]string {
	all := map[string]string{}
	for key, of := range state.Services {
		all[key.Name] = of.Service.Uid
		for at, endpoint := range of.Endpoints {
			all[key.Name+" "+at.Address.String()] = endpoint.Hostname
		}
	}
	return all
}

func TestAnyChangesLeadToTheStateOfTheBrain(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		var reader held
		state, brain := State{Services: map[ServiceKey]*ServiceEndpoints{}}, model{}
		for step := range uint64(20) {
			var messages []*pb.NextStateResponse
			if step == 0 || random.IntN(6) == 0 {
				for range random.IntN(4) {
					brain.change(random)
				}
				messages = full(step+1, brain.sum(), brain.whole()...)
			} else {
				message := delta(step+1, reader.token, 0)
				for range random.IntN(4) {
					message.Services = append(message.Services, brain.change(random))
				}
				message.Commit.Digest = brain.sum() + digestOfNode
				messages = []*pb.NextStateResponse{message}
			}
			for i, message := range messages {
				messages[i] = proto.CloneOf(message) // The reader changes them.
			}
			a, err := reader.accept(messages)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			before, changes := records(&state), Changes{Services: map[ServiceKey]*ServiceChanges{}}
			state.apply(a, &changes)
			after, want := records(&state), map[string]string{}
			for name, of := range brain {
				want[name] = fmt.Sprint(of.digest)
				for address, digest := range of.endpoints {
					want[name+" "+address] = fmt.Sprint(digest)
				}
			}
			equals(t, fmt.Sprintf("seed %d, step %d: state", seed, step), after, want)
			differing := map[string]bool{}
			for _, either := range []map[string]string{before, after} {
				for record := range either {
					if before[record] != after[record] { // No content is empty.
						differing[record] = true
					}
				}
			}
			found := map[string]bool{}
			for key, of := range changes.Services {
				if of.Service {
					found[key.Name] = true
				}
				for at := range of.Endpoints {
					found[key.Name+" "+at.Address.String()] = true
				}
			}
			equals(t, fmt.Sprintf("seed %d, step %d: changes", seed, step), found, differing)
			if t.Failed() {
				return
			}
		}
	}
}
