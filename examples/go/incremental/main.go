// An incremental backend for localnet in Go: it receives each change as a call and writes the applied state to a file.
//
//	incremental --api unix:///run/localnet/brain.sock --dump FILE
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
	"slices"
	"strings"
	"syscall"

	"localnet.dev/go/client"
	"localnet.dev/go/localnetv1"
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
	for _, vips := range []struct {
		kind string
		of   *localnetv1.IPSet
	}{{"cluster", service.IPs.GetClusterIPs()}, {"external", service.IPs.GetExternalIPs()}, {"balancer", service.IPs.GetLoadBalancerIPs()}} {
		for _, vip := range slices.Concat(vips.of.GetV4(), vips.of.GetV6()) {
			lines += fmt.Sprintf("vip %s %s %s\n", key, vips.kind, vip)
		}
	}
	for _, port := range service.Ports {
		lines += fmt.Sprintf("port %s %s %s %d %d\n", key, cmp.Or(port.Name, "-"), port.Protocol, port.Port, port.NodePort)
	}
	if affinity := service.GetClientIP(); affinity != nil {
		lines += fmt.Sprintf("affinity %s %d\n", key, affinity.TimeoutSeconds)
	}
	f.services[key] = lines
}

func (f *file) DeleteService(key client.ServiceKey) { delete(f.services, key) }

func (f *file) SetEndpoint(service client.ServiceKey, endpoint client.PortEndpoint) {
	var scopes []string
	for _, scope := range []struct {
		has  bool
		word string
	}{
		{endpoint.Scopes.GetInternal(), "internal"}, {endpoint.Scopes.GetExternal(), "external"},
		{endpoint.Scopes.GetShortCircuit(), "shortcircuit"}, {endpoint.Scopes.GetEstablished(), "established"},
	} {
		if scope.has {
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
	// Without a name, it sends no reports, because it programs nothing.
	if err := client.Run(ctx, brain, client.Incremental(f), flags.Options("")); err != nil {
		log.Fatal(err)
	}
}
