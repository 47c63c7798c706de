// Prints each change of the state as a line. It reads the draft localnet.v1, so the brain sends only the endpoints that change.
//
//	changes --api unix:///run/localnet/brain.sock
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"localnet.dev/go/client/v1"
	"localnet.dev/go/localnet/v1"
)

type printer struct{}

func (printer) SetNode(node *localnetv1.NodeState) { fmt.Println("node", node.Name) }
func (printer) SetService(key client.ServiceKey, service *localnetv1.Service) {
	fmt.Printf("set %s, withheld: %v\n", key, service.Withheld)
}
func (printer) DeleteService(key client.ServiceKey) { fmt.Println("delete", key) }
func (printer) SetEndpoint(service client.ServiceKey, endpoint client.PortEndpoint) {
	fmt.Println("set", service, endpoint.Address)
}
func (printer) DeleteEndpoint(service client.ServiceKey, endpoint client.PortEndpoint) {
	fmt.Println("delete", service, endpoint.Address)
}
func (printer) Reset() {}
func (printer) Commit(_ context.Context, revision client.Revision) error {
	fmt.Println("state", revision.Rev)
	return nil
}

func main() {
	var flags client.Flags
	flags.Register(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	brain, err := flags.Dial()
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Run(ctx, brain, client.Incremental(printer{}), flags.Options("")); err != nil {
		log.Fatal(err)
	}
}
