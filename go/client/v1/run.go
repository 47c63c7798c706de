package client

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"localnet.dev/go/internal/loop"
	pb "localnet.dev/go/localnet/v1"
)

// Sync makes the backend apply exactly this state: everything that the state does not contain is deleted. changes
// describes the difference from the state in the last Sync that succeeded.
//
// If Sync returns an error, [Run] calls it again, with the same state or a newer one. If Sync failed in only one address
// family, it returns [FamilyErrors]. A problem with one Service should not prevent the others from being applied: skip
// this Service, and report it ([Options.Report]).
//
// Sync must not modify the state, and must not use it after it has returned. It may keep the messages in the state, which
// never change. Run does not interrupt a Sync. Once ctx is done, a Sync that takes long may return early, with an error.
type Sync func(ctx context.Context, state *State, changes *Changes) error

// Options are the options of [Run]. The zero value is useful.
type Options struct {
	// Name is the backend's name, in requests and reports: lower-case letters, digits and hyphens. Run sends no reports if Name is
	// empty, or with Observer, Once or View.
	Name string
	// Version is the version of the backend, for people.
	Version string
	// Observer means that the program forwards no traffic. The brain then sends every Service, whatever its capabilities are.
	Observer bool
	// Capabilities are what the backend understands. The brain withholds each Service that needs more.
	Capabilities []pb.Capability
	// Metadata selects the labels and annotations of Services. nil selects none.
	Metadata *pb.MetadataSelector
	// EndpointDetails requests the details of each endpoint: its node, its zone and its Pod.
	EndpointDetails bool
	// View selects the state that DNS needs instead of that for backends.
	View pb.View
	// Once lets Run return after the first Sync that succeeds, or after the first failure.
	Once bool
	// Resume is the revision of the state that the backend has already applied. The first Sync waits for a state with
	// another revision. Run reads the state of this revision once more, because it needs the records.
	Resume Revision
	// MinInterval is the shortest time between the end of a Sync and the start of the next one. Changes in between are
	// merged. It is at least 5 ms.
	MinInterval time.Duration
	// MaxBackoff is the longest delay between two attempts after failures. The default is 10 s. Requests to the brain
	// and calls of Sync have separate delays.
	MaxBackoff time.Duration
	// Resync lets Run call Sync again without a new state, once for each value. Send a value if another program may have
	// changed what the backend has applied.
	Resync <-chan struct{}
	// Report adds to a report before Run sends it, for instance the Skipped parts, the Warnings or the Traffic settings that the
	// backend follows. Run calls it after each Sync. It has then set the name, the revisions, the families, and Skipped to an empty
	// list. Add everything that is skipped each time: Run leaves out what the brain knows. Run itself adds the Services that the brain
	// withholds.
	Report func(report *pb.ReportStatusRequest)
	// Logger receives the log. The default is [slog.Default].
	Logger *slog.Logger
}

// Run runs a backend until ctx is done, and then returns nil. Failures are logged and retried with backoff.
//
// With [Options.Once], Run returns nil after the first Sync that succeeds, and otherwise the first error; see [Reason]. It returns the
// error of ctx if ctx is done earlier.
//
// Run calls backend from one goroutine. It requests the next state when backend has returned and [Options.MinInterval] has
// passed. Streams are read and reports are sent concurrently, so a slow or unavailable brain delays no retry. A state is passed on only
// when its answer is complete and the sum of all digests is right. If it is not, Run reads the full state again.
func Run(ctx context.Context, conn grpc.ClientConnInterface, backend Sync, options Options) error {
	role := pb.ReaderRole_READER_ROLE_BACKEND
	if options.Observer {
		role = pb.ReaderRole_READER_ROLE_OBSERVER
	}
	r := &reader{
		Options: options,
		conn:    conn,
		sync:    backend,
		request: &pb.NextStateRequest{
			Reader: &pb.Reader{
				Name: options.Name, Version: options.Version, Role: role, Capabilities: options.Capabilities,
			},
			Metadata: options.Metadata, EndpointDetails: options.EndpointDetails, View: options.View,
		},
		state:   State{Services: map[ServiceKey]*ServiceEndpoints{}},
		changes: Changes{Everything: true, Services: map[ServiceKey]*ServiceChanges{}},
	}
	return loop.Run(ctx, r, loop.Options{
		Once:        options.Once,
		MinInterval: options.MinInterval,
		MaxBackoff:  options.MaxBackoff,
		Resync:      options.Resync,
		Logger:      options.Logger,
	})
}

// reader is the [loop.Backend] that reads localnet.v1.
type reader struct {
	Options
	conn    grpc.ClientConnInterface
	sync    Sync
	request *pb.NextStateRequest // What the reader wants, without the token.
	held    held                 // Ahead of the state only by the answer that waits for Apply.

	state    State
	changes  Changes // What has changed in state since the last sync that succeeded.
	progress progress
	accepted *pb.SkippedParts // What the brain knows of the skipped parts.
}

func (r *reader) Next(ctx context.Context) (*answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	request := proto.CloneOf(r.request)
	request.Token = r.held.token
	stream, err := pb.NewStateServiceClient(r.conn).NextState(ctx, request, grpc.MaxCallRecvMsgSize(loop.MaxMessage))
	if err != nil {
		return nil, failed(err)
	}
	var messages []*pb.NextStateResponse
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return r.held.accept(messages)
		} else if err != nil {
			return nil, failed(err)
		}
		messages = append(messages, message)
	}
}

// Apply returns false for the state from which the backend resumes.
func (r *reader) Apply(a *answer) bool {
	first := r.state.Revision == Revision{}
	r.state.apply(a, &r.changes)
	return !first || a.revision != r.Resume
}

func (r *reader) Distrust() { r.changes.Everything, r.changes.Resync = true, true }

func (r *reader) Sync(ctx context.Context) error { return r.sync(ctx, &r.state, &r.changes) }

func (r *reader) Summary() loop.Summary {
	at := r.state.Revision
	return loop.Summary{
		Revision: at,
		Resume:   fmt.Sprintf("--instance-id %d --rev %d", at.InstanceID, at.Rev),
		Changed:  len(r.changes.Services),
		Services: len(r.state.Services),
	}
}

func (r *reader) Synced(_ time.Duration, err error) *pb.ReportStatusRequest {
	r.progress.add(r.state.Revision, err)
	if err == nil {
		r.changes = Changes{Services: map[ServiceKey]*ServiceChanges{}}
	}
	// The states of a view are no states that a node could apply.
	if r.Name == "" || r.Observer || r.Once || r.View != pb.View_VIEW_UNSPECIFIED {
		return nil
	}
	report := r.progress.report(r.Name, r.state.Revision)
	if r.Report != nil {
		r.Report(report)
	}
	report.Skipped = r.withWithheld(report.Skipped)
	return report
}
