package client

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"localnet.dev/go/internal/loop"
	pb "localnet.dev/go/localnetv1"
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

// FamilyErrors is the error of a [Sync] that failed only in some address families. The families that it does not contain
// hold the state.
type FamilyErrors map[pb.IPFamily]error

// Err returns the errors as an error, or nil if there are none.
func (e FamilyErrors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// Error lists the errors, each with its family.
func (e FamilyErrors) Error() string {
	var texts []string
	for family, err := range e {
		texts = append(texts, fmt.Sprintf("%v: %v", family, err))
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the families.
func (e FamilyErrors) Unwrap() []error {
	var all []error
	for _, err := range e {
		all = append(all, err)
	}
	return all
}

// Options are the options of [Run]. The zero value is useful.
type Options struct {
	// Name is the backend's name in its reports to the brain. If Name is empty, Run sends no reports. A reader that
	// programs nothing must not report: after it exits, the brain's health answers would wait for its progress. For the
	// same reason, Run never reports with Once.
	Name string
	// Once lets Run return after the first Sync that succeeds, or after the first failure.
	Once bool
	// Resume is the revision of the state that the backend has already applied. The first Sync waits for a state with
	// another revision.
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
	// Report adds to a report before Run sends it, for instance the Skipped Services, Warnings or the Configuration.
	// Run calls it after each Sync, and has then set the Backend, the revisions and the Families.
	Report func(report *pb.BackendReport)
	// Logger receives the log. The default is [slog.Default].
	Logger *slog.Logger
}

// Run runs a backend until ctx is done, and then returns nil. Failures are logged and retried with backoff.
//
// With [Options.Once], Run returns nil after the first Sync that succeeds, and otherwise the first error. It returns the
// error of ctx if ctx is done earlier.
//
// Run calls backend from one goroutine. It requests the next state when backend has returned and [Options.MinInterval] has
// passed. Streams are read and reports are sent concurrently, so a slow or unavailable brain delays no retry.
func Run(ctx context.Context, conn grpc.ClientConnInterface, backend Sync, options Options) error {
	r := &reader{
		Options: options,
		conn:    conn,
		sync:    backend,
		have:    options.Resume,
		state:   State{Revision: options.Resume, Services: map[ServiceKey]*pb.ServiceEndpoints{}},
		changes: Changes{Everything: true, Services: map[ServiceKey]struct{}{}},
	}
	r.progress.init()
	return loop.Run(ctx, r, loop.Options{
		Once:        options.Once,
		MinInterval: options.MinInterval,
		MaxBackoff:  options.MaxBackoff,
		Resync:      options.Resync,
		Logger:      options.Logger,
	})
}

// reader is the [loop.Backend] that reads localnetv1.
type reader struct {
	Options
	conn grpc.ClientConnInterface
	sync Sync

	have  Revision // The state of the last answer.
	delta bool     // Whether there was an answer. The first one is a full state.

	state    State
	changes  Changes // What has changed in state since the last sync that succeeded.
	progress progress
}

// Next requests a state. `have` is ahead of the state only by the answer that waits for Apply, so each delta is applied to the state for
// which it was requested.
func (r *reader) Next(ctx context.Context) (*answer, error) {
	a, err := next(ctx, r.conn, r.have, r.delta)
	if err == nil {
		r.have, r.delta = a.revision, true
	}
	return a, err
}

func (r *reader) Apply(a *answer) bool {
	r.state.apply(a, &r.changes)
	return true
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

func (r *reader) Synced(took time.Duration, err error) *pb.BackendReport {
	r.progress.add(r.state.Revision, r.changes.Everything, took, err)
	if err == nil {
		r.changes = Changes{Services: map[ServiceKey]struct{}{}}
	}
	if r.Name == "" || r.Once {
		return nil
	}
	report := r.progress.report(r.Name, r.state.Revision)
	if r.Report != nil {
		r.Report(report)
	}
	return report
}

func (r *reader) Deliver(ctx context.Context, report *pb.BackendReport) error {
	_, err := pb.NewBackendsClient(r.conn).Report(ctx, report)
	return err
}
