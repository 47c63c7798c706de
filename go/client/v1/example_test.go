package client_test

import (
	"context"
	"fmt"
	"log"

	"localnet.dev/go/client/v1"
	"localnet.dev/go/localnet/v1"
)

// A backend that follows source filters. It prints which endpoints have changed, and reports to the brain.
func Example() {
	brain, err := client.Dial("unix:///run/localnet/brain.sock", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer brain.Close()
	sync := func(_ context.Context, state *client.State, changes *client.Changes) error {
		for key, changed := range changes.Services {
			of := state.Services[key] // nil if the Service was deleted.
			for at := range changed.Endpoints {
				if of == nil || of.Endpoints[at] == nil {
					fmt.Println("delete", key, at.Address)
				} else {
					fmt.Println("set", key, at.Address, of.Endpoints[at].Ports)
				}
			}
		}
		return nil
	}
	options := client.Options{
		Name:         "example",
		Capabilities: []localnetv1.Capability{localnetv1.Capability_CAPABILITY_SOURCE_FILTERS},
	}
	if err := client.Run(context.Background(), brain, sync, options); err != nil {
		log.Fatal(err)
	}
}

// printer prints each change of an endpoint.
type printer struct{}

func (printer) SetNode(*localnetv1.NodeState)                     {}
func (printer) SetService(client.ServiceKey, *localnetv1.Service) {}
func (printer) DeleteService(client.ServiceKey)                   {}
func (printer) Reset()                                            {}
func (printer) Commit(_ context.Context, _ client.Revision) error { return nil }
func (printer) SetEndpoint(of client.ServiceKey, e client.PortEndpoint) {
	fmt.Println("set", of, e.Address)
}
func (printer) DeleteEndpoint(of client.ServiceKey, e client.PortEndpoint) {
	fmt.Println("delete", of, e.Address)
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

// A program that reads the labels of the Services once. The brain refuses a label that its operator does not publish.
func ExampleReason() {
	brain, err := client.Dial("unix:///run/localnet/brain.sock", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer brain.Close()
	sync := func(_ context.Context, state *client.State, _ *client.Changes) error {
		for key, of := range state.Services {
			fmt.Println(key, of.Service.Labels)
		}
		return nil
	}
	metadata := &localnetv1.MetadataSelector{LabelKeys: []string{"app.kubernetes.io/name"}}
	err = client.Run(context.Background(), brain, sync, client.Options{Once: true, Observer: true, Metadata: metadata})
	if reason, about := client.Reason(err); reason == localnetv1.ErrorReason_ERROR_REASON_NOT_PUBLISHED {
		log.Fatalf("start the brain with --publish-label=%s", about["key"])
	} else if err != nil {
		log.Fatal(err)
	}
}
