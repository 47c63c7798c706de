package client

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
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

// The shortest pause between two syncs. If states change faster, the brain merges them into one answer.
const pause = 5 * time.Millisecond

// Run runs a backend until ctx is done, and then returns nil. Failures are logged and retried with backoff.
//
// With [Options.Once], Run returns nil after the first Sync that succeeds, and otherwise the first error. It returns the
// error of ctx if ctx is done earlier.
//
// Run calls backend from one goroutine. It requests the next state when backend has returned and [Options.MinInterval] has
// passed. Streams are read and reports are sent concurrently, so a slow or unavailable brain delays no retry.
func Run(ctx context.Context, conn grpc.ClientConnInterface, backend Sync, options Options) error {
	options.MaxBackoff = cmp.Or(options.MaxBackoff, 10*time.Second)
	options.Logger = cmp.Or(options.Logger, slog.Default())
	l := &loop{
		Options: options,
		conn:    conn,
		sync:    backend,
		ready:   make(chan struct{}, 1),
		answers: make(chan *answer, 1),
		failed:  make(chan error, 1),
		reports: make(chan *pb.BackendReport, 1),
		state:   State{Revision: options.Resume, Services: map[ServiceKey]*pb.ServiceEndpoints{}},
		changes: Changes{Everything: true, Services: map[ServiceKey]struct{}{}},
		backoff: delays{limit: options.MaxBackoff},
	}
	l.progress.init()
	inner, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	others.Go(func() { l.read(inner) })
	others.Go(func() { l.deliverReports(inner) })
	defer others.Wait()
	defer cancel()
	return l.run(ctx)
}

type loop struct {
	Options
	conn    grpc.ClientConnInterface
	sync    Sync
	ready   chan struct{} // Lets read request the next state.
	answers chan *answer
	failed  chan error             // With Once: the error of the first request.
	reports chan *pb.BackendReport // Contains the newest report that was not sent.

	state    State
	changes  Changes // What has changed in state since the last sync that succeeded.
	progress progress
	backoff  delays
	logged   string // The error of the last sync, if it was logged.
}

// read requests a state each time the loop is ready for one.
func (l *loop) read(ctx context.Context) {
	// `have` is ahead of l.state only by the answer in the channel, so each delta is applied to the state for which it
	// was requested. The first answer is a full state.
	have, delta, failing, backoff := l.Resume, false, false, delays{limit: l.MaxBackoff}
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ready:
		}
		for {
			a, err := next(ctx, l.conn, have, delta)
			if err == nil {
				have, delta = a.revision, true
				l.answers <- a
				break
			} else if ctx.Err() != nil {
				return
			} else if l.Once {
				l.failed <- fmt.Errorf("failed to get the state: %w", err)
				return
			}
			if failing {
				l.Logger.Debug("still cannot get the state", "error", err)
			} else {
				l.Logger.Warn("cannot get the state from the brain; keeping the applied state; retrying with backoff", "error", err)
			}
			failing = true
			if !backoff.wait(ctx) {
				return
			}
		}
		if failing {
			l.Logger.Info("connected to the brain again")
		}
		failing = false
		backoff.reset()
	}
}

// run calls sync for each state, and again after failures and disturbances.
func (l *loop) run(ctx context.Context) error {
	var resync <-chan struct{} // nil until the first state has arrived.
	var retry <-chan time.Time // nil unless the last sync failed.
	l.ready <- struct{}{}
	for {
		taken := false
		select {
		case <-ctx.Done():
			return l.ended(ctx)
		case err := <-l.failed:
			return err
		case a := <-l.answers:
			taken = true
			l.state.apply(a, &l.changes)
		case _, ok := <-resync:
			if !ok {
				resync = nil
				continue
			}
			l.Logger.Info("resyncing: another program may have changed the applied state")
			l.changes.Everything, l.changes.Resync = true, true
		case <-retry:
		}
		select {
		case a := <-l.answers: // The newest state is the one to apply.
			taken = true
			l.state.apply(a, &l.changes)
		default:
		}
		resync, retry = l.Resync, nil
		err := l.attempt(ctx)
		if l.Once {
			return err
		} else if err != nil {
			retry = time.After(l.backoff.next())
		}
		if !sleep(ctx, max(l.MinInterval, pause)) {
			return nil
		}
		if taken {
			l.ready <- struct{}{}
		}
	}
}

func (l *loop) ended(ctx context.Context) error {
	if l.Once {
		return context.Cause(ctx)
	}
	return nil
}

// attempt calls sync once, and offers a report.
func (l *loop) attempt(ctx context.Context) error {
	revision, began := l.state.Revision, time.Now()
	err := l.sync(ctx, &l.state, &l.changes)
	took := time.Since(began)
	l.progress.add(revision, l.changes.Everything, took, err)
	if err == nil {
		l.log(revision, took)
		l.changes = Changes{Services: map[ServiceKey]struct{}{}}
		l.logged = ""
		l.backoff.reset()
	} else if text := err.Error(); text == l.logged { // An equal error is logged only once.
		l.Logger.Debug("still cannot apply the state", "revision", revision, "error", err)
	} else {
		l.Logger.Warn("cannot apply the state; retrying with backoff", "revision", revision, "error", err)
		l.logged = text
	}
	if l.Name != "" && !l.Once {
		report := l.progress.report(l.Name, revision)
		if l.Report != nil {
			l.Report(report)
		}
		select {
		case <-l.reports: // An older one.
		default:
		}
		l.reports <- report
	}
	return err
}

// log logs a sync that succeeded.
func (l *loop) log(revision Revision, took time.Duration) {
	logger := l.Logger.With("revision", revision, "changed", len(l.changes.Services), "services", len(l.state.Services))
	if l.Once {
		logger.Info(fmt.Sprintf("applied; to resume this watch, use --instance-id %d --rev %d", revision.InstanceID, revision.Rev))
	} else {
		logger.Debug("applied", "took_ms", float64(took.Microseconds())/1000)
	}
}
