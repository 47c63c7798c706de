// An incremental backend for localnet in Go that reads the draft localnet.v1: the brain sends only the endpoints that change. It receives
// each change as a call and writes the applied state to a file.
//
//	incremental-v1 --api unix:///run/localnet/brain.sock --dump FILE
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"localnet.dev/go/client/v1"
	"localnet.dev/go/localnet/v1"
)

type endpointID struct {
	service client.ServiceKey
	port    string
	address netip.AddrPort
}

// file contains the lines of each Service and of each endpoint. Each commit writes them. A real backend would program a
// kernel instead.
type file struct {
	path, node string
	services   map[client.ServiceKey]string
	endpoints  map[endpointID]string
}

func (f *file) SetNode(node *localnetv1.NodeState) { f.node = "node " + node.Name + "\n" }

func (f *file) SetService(key client.ServiceKey, service *localnetv1.Service) {
	lines := ""
	kinds := map[localnetv1.AddressKind]string{
		localnetv1.AddressKind_ADDRESS_KIND_CLUSTER_IP:       "cluster",
		localnetv1.AddressKind_ADDRESS_KIND_EXTERNAL_IP:      "external",
		localnetv1.AddressKind_ADDRESS_KIND_LOAD_BALANCER_IP: "balancer",
	}
	for _, vip := range service.Addresses {
		lines += fmt.Sprintf("vip %s %s %s\n", key, kinds[vip.Kind], vip.Address)
	}
	for _, port := range service.Ports {
		protocol := strings.TrimPrefix(port.Protocol.String(), "PROTOCOL_")
		lines += fmt.Sprintf("port %s %s %s %d %d\n", key, cmp.Or(port.Name, "-"), protocol, port.Number, port.NodePort)
	}
	if affinity := service.ClientIpAffinity; affinity != nil {
		lines += fmt.Sprintf("affinity %s %d\n", key, affinity.TimeoutSeconds)
	}
	f.services[key] = lines
}

func (f *file) DeleteService(key client.ServiceKey) { delete(f.services, key) }

func (f *file) SetEndpoint(service client.ServiceKey, endpoint client.PortEndpoint) {
	var scopes []string
	for _, scope := range []struct {
		of   localnetv1.Scope
		word string
	}{
		{localnetv1.Scope_SCOPE_INTERNAL, "internal"}, {localnetv1.Scope_SCOPE_EXTERNAL, "external"},
		{localnetv1.Scope_SCOPE_SHORT_CIRCUIT, "shortcircuit"}, {localnetv1.Scope_SCOPE_ESTABLISHED, "established"},
	} {
		if endpoint.Has(scope.of) {
			scopes = append(scopes, scope.word)
		}
	}
	port, address := cmp.Or(endpoint.PortName, "-"), endpoint.Address
	f.endpoints[endpointID{service, endpoint.PortName, address}] = fmt.Sprintf("endpoint %s %s %s %d %s\n",
		service, port, address.Addr(), address.Port(), cmp.Or(strings.Join(scopes, "+"), "-"))
}

func (f *file) DeleteEndpoint(service client.ServiceKey, endpoint client.PortEndpoint) {
	delete(f.endpoints, endpointID{service, endpoint.PortName, endpoint.Address})
}

func (f *file) Reset() { clear(f.services); clear(f.endpoints) }

func (f *file) Commit(_ context.Context, revision client.Revision) error {
	var text strings.Builder
	fmt.Fprintf(&text, "rev %d %d\n%s", revision.InstanceID, revision.Rev, f.node)
	for lines := range maps.Values(f.services) {
		text.WriteString(lines)
	}
	for line := range maps.Values(f.endpoints) {
		text.WriteString(line)
	}
	if err := os.WriteFile(f.path+".new", []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(f.path+".new", f.path)
}

func main() {
	var flags client.Flags
	flags.Register(flag.CommandLine)
	dump := flag.String("dump", "", "the `file`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	brain, err := flags.Dial()
	if err != nil {
		log.Fatal(err)
	}
	f := &file{path: *dump, services: map[client.ServiceKey]string{}, endpoints: map[endpointID]string{}}
	options := flags.Options("")
	// It programs nothing. So it sends no reports, and gets all Services, whatever they require of a backend.
	options.Observer = true
	if err := client.Run(ctx, brain, client.Incremental(f), options); err != nil {
		log.Fatal(err)
	}
}
