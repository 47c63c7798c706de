package client_test

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"os/signal"
	"slices"
	"syscall"

	"localnet.dev/go/client"
	"localnet.dev/go/localnetv1"
)

// A backend that prints the endpoints of each Service that has changed, until it receives SIGTERM.
func Example() {
	var flags client.Flags
	flags.Register(flag.CommandLine)
	flag.Parse()
	brain, err := flags.Dial()
	if err != nil {
		log.Fatal(err)
	}
	sync := func(_ context.Context, state *client.State, changes *client.Changes) error {
		for key := range changes.Services {
			for _, endpoint := range client.PortEndpoints(state.Services[key]) { // None if the Service was deleted.
				fmt.Println(key, endpoint.PortName, endpoint.Address)
			}
		}
		return nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := client.Run(ctx, brain, sync, flags.Options("")); err != nil {
		log.Fatal(err)
	}
}

// A program that reads the state once.
func ExampleRun_once() {
	brain, err := client.Dial("unix:///run/localnet/brain.sock", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer brain.Close()
	sync := func(_ context.Context, state *client.State, _ *client.Changes) error {
		fmt.Println(state.Node.Name, len(state.Services))
		return nil
	}
	if err := client.Run(context.Background(), brain, sync, client.Options{Once: true}); err != nil {
		log.Fatal(err)
	}
}

// A connection over TCP with mutual TLS. Other services of the brain can use it, too.
func ExampleDial() {
	brain, err := client.Dial("tcp://192.0.2.1:12090", &client.TLSFiles{CA: "ca.pem", Cert: "cert.pem", Key: "key.pem"})
	if err != nil {
		log.Fatal(err)
	}
	defer brain.Close()
	status, err := localnetv1.NewReasonsClient(brain).Status(context.Background(), &localnetv1.StatusRequest{})
	fmt.Println(status, err)
}

func ExampleDiffStore() {
	var targets client.DiffStore[string, []string]
	targets.Adopt(nil) // Nothing is applied yet.

	targets.Replace(map[string][]string{"10.96.0.10:80": {"10.1.0.1:8080"}, "10.96.0.11:80": {"10.1.0.2:8080"}})
	fmt.Println(targets.Diff().Set)
	targets.Commit()

	targets.Replace(map[string][]string{"10.96.0.10:80": {"10.1.0.1:8080", "10.1.0.3:8080"}})
	diff := targets.Diff()
	fmt.Println(diff.Set, slices.Collect(maps.Keys(diff.Removed)))
	// Output:
	// map[10.96.0.10:80:[10.1.0.1:8080] 10.96.0.11:80:[10.1.0.2:8080]]
	// map[10.96.0.10:80:[10.1.0.1:8080 10.1.0.3:8080]] [10.96.0.11:80]
}

// printer prints each change.
type printer struct{}

func (printer) SetNode(node *localnetv1.NodeState) { fmt.Println("node", node.Name) }
func (printer) SetService(key client.ServiceKey, service *localnetv1.Service) {
	fmt.Println("set", key, service.IPs.GetClusterIPs())
}
func (printer) DeleteService(key client.ServiceKey) { fmt.Println("delete", key) }
func (printer) SetEndpoint(service client.ServiceKey, endpoint client.PortEndpoint) {
	fmt.Println("set", service, endpoint.PortName, endpoint.Address)
}
func (printer) DeleteEndpoint(service client.ServiceKey, endpoint client.PortEndpoint) {
	fmt.Println("delete", service, endpoint.PortName, endpoint.Address)
}
func (printer) Reset() {}
func (printer) Commit(_ context.Context, revision client.Revision) error {
	fmt.Println("state", revision)
	return nil
}

func ExampleIncremental() {
	brain, err := client.Dial("unix:///run/localnet/brain.sock", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer brain.Close()
	if err := client.Run(context.Background(), brain, client.Incremental(printer{}), client.Options{}); err != nil {
		log.Fatal(err)
	}
}
