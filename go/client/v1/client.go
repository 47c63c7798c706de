// Package client is the library for backends of localnet that read the draft localnet.v1: after the first state, the brain sends only what
// changes, down to a single endpoint. It has the same shape as [localnet.dev/go/client], which reads localnetv1, and shares its loop,
// connections, flags and [DiffStore]. A backend imports one of the two.
//
// Nothing is promised yet: a brain serves the draft only with --draft-v1, and any release may change the draft and this package.
//
// Differences from localnet.dev/go/client:
//
//   - [State] contains the records of localnet.v1. A [ServiceEndpoints] has its endpoints by key.
//   - [Changes] lists the endpoints that have changed.
//   - [Options] says what the backend understands (Capabilities), and which data it needs (Metadata, EndpointDetails, View). The brain
//     withholds a Service that needs more: it arrives without endpoints and with the verdict "drop".
//   - [Reason] returns why the brain has refused a call.
//
// The package localnetv1 in localnet.dev/go/localnet/v1 contains the messages, and documents their fields.
package client

import (
	"google.golang.org/grpc"
	"localnet.dev/go/client"
)

type (
	// Revision identifies a state. InstanceID is the hexadecimal instance of the message Revision as a number.
	Revision = client.Revision
	// ServiceKey identifies a Service.
	ServiceKey = client.ServiceKey
	// TLSFiles are the files for TLS.
	TLSFiles = client.TLSFiles
	// DiffStore contains the desired and the applied entries of a backend, and computes their difference.
	DiffStore[K comparable, V any] = client.DiffStore[K, V]
	// Diff is what turns the applied entries into the desired ones.
	Diff[K comparable, V any] = client.Diff[K, V]
)

// Dial returns a connection to the brain, as [client.Dial] does.
func Dial(address string, files *TLSFiles) (*grpc.ClientConn, error) {
	return client.Dial(address, files)
}

// Flags are the flags that select the brain and set the options of [Run].
type Flags struct{ client.Flags }

// Options returns the options that the flags set, for a backend with this name.
func (f *Flags) Options(name string) Options {
	return Options{Name: name, Once: f.Once, Resume: f.Resume, MinInterval: f.MinInterval}
}
