// Package loop is the main loop of a backend, whichever package of messages it reads. client and client/v1 document its behavior.
package loop

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Options are the options of Run that do not depend on the messages.
type Options struct {
	Once        bool            // Whether to return after the first sync.
	MinInterval time.Duration   // The shortest time between two syncs.
	MaxBackoff  time.Duration   // The longest delay between two attempts after failures; 0 for 10 s.
	Resync      <-chan struct{} // Requests syncs without a new state.
	Logger      *slog.Logger    // nil for the default.
}

// Backend is the state that a backend reads, and what it does with it. A is an answer of the brain, and R a report.
//
// Next and Deliver are each called from a goroutine of their own, and all other methods from the goroutine of Run.
type Backend[A, R any] interface {
	// Next waits for the next answer. It is called after the previous answer was passed to Apply, or waits to be. After an error, it is
	// called again.
	Next(ctx context.Context) (A, error)
	// Apply folds an answer into the state. It returns whether to sync the state.
	Apply(answer A) bool
	// Distrust marks the whole state as changed.
	Distrust()
	// Sync passes the state to the backend.
	Sync(ctx context.Context) error
	// Summary describes the state that Sync passes, for the log.
	Summary() Summary
	// Synced ends a Sync that took this long. It returns the next report; nil if there is none.
	Synced(took time.Duration, err error) *R
	// Deliver sends a report to the brain.
	Deliver(ctx context.Context, report *R) error
}

// Summary describes a state.
type Summary struct {
	Revision any    // Identifies the state.
	Resume   string // The flags that resume after this state.
	Changed  int    // The number of changed Services.
	Services int    // The number of Services.
}

// The shortest pause between two syncs. If states change faster, the brain merges them into one answer.
const pause = 5 * time.Millisecond

// Run runs a backend until ctx is done, and then returns nil. With Once, it returns nil after the first Sync that succeeds, and
// otherwise the first error.
func Run[A, R any](ctx context.Context, backend Backend[A, R], options Options) error {
	options.MaxBackoff = cmp.Or(options.MaxBackoff, 10*time.Second)
	options.Logger = cmp.Or(options.Logger, slog.Default())
	l := &loop[A, R]{
		Options: options,
		backend: backend,
		ready:   make(chan struct{}, 1),
		answers: make(chan A, 1),
		failed:  make(chan error, 1),
		reports: make(chan *R, 1),
		backoff: delays{limit: options.MaxBackoff},
	}
	inner, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	others.Go(func() { l.read(inner) })
	others.Go(func() { l.deliverReports(inner) })
	defer others.Wait()
	defer cancel()
	return l.run(ctx)
}

type loop[A, R any] struct {
	Options
	backend Backend[A, R]
	ready   chan struct{} // Lets read request the next state.
	answers chan A
	failed  chan error // With Once: the error of the first request.
	reports chan *R    // Contains the newest report that was not sent.
	backoff delays
	logged  string // The error of the last sync, if it was logged.
}

// read requests a state each time the loop is ready for one.
func (l *loop[A, R]) read(ctx context.Context) {
	failing, backoff := false, delays{limit: l.MaxBackoff}
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.ready:
		}
		for {
			a, err := l.backend.Next(ctx)
			if err == nil {
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
			l.Logger.Info("connected to the brain")
		}
		failing = false
		backoff.reset()
	}
}

// run calls Sync for each state, and again after failures and disturbances.
func (l *loop[A, R]) run(ctx context.Context) error {
	var resync <-chan struct{} // nil until the first state has arrived.
	var retry <-chan time.Time // nil unless the last sync failed.
	l.ready <- struct{}{}
	for {
		taken, due := false, true
		select {
		case <-ctx.Done():
			return l.ended(ctx)
		case err := <-l.failed:
			return err
		case a := <-l.answers:
			taken, due = true, l.backend.Apply(a)
		case _, ok := <-resync:
			if !ok {
				resync = nil
				continue
			}
			l.Logger.Info("resyncing: another program may have changed the applied state")
			l.backend.Distrust()
		case <-retry:
		}
		select {
		case a := <-l.answers: // The newest state is the one to apply.
			taken, due = true, l.backend.Apply(a)
		default:
		}
		if due {
			resync, retry = l.Resync, nil
			err := l.attempt(ctx)
			if l.Once {
				return err
			} else if err != nil {
				retry = time.After(l.backoff.next())
			}
			if !Sleep(ctx, max(l.MinInterval, pause)) {
				return nil
			}
		}
		if taken {
			l.ready <- struct{}{}
		}
	}
}

func (l *loop[A, R]) ended(ctx context.Context) error {
	if l.Once {
		return context.Cause(ctx)
	}
	return nil
}

// attempt calls Sync once, and offers a report.
func (l *loop[A, R]) attempt(ctx context.Context) error {
	state, began := l.backend.Summary(), time.Now()
	err := l.backend.Sync(ctx)
	took := time.Since(began)
	if err == nil {
		l.log(state, took)
		l.logged = ""
		l.backoff.reset()
	} else if text := err.Error(); text == l.logged { // An equal error is logged only once.
		l.Logger.Debug("still cannot apply the state", "revision", state.Revision, "error", err)
	} else {
		l.Logger.Warn("cannot apply the state; retrying with backoff", "revision", state.Revision, "error", err)
		l.logged = text
	}
	if report := l.backend.Synced(took, err); report != nil && !l.Once {
		select {
		case <-l.reports: // An older one.
		default:
		}
		l.reports <- report
	}
	return err
}

// log logs a sync that succeeded.
func (l *loop[A, R]) log(state Summary, took time.Duration) {
	logger := l.Logger.With("revision", state.Revision, "changed", state.Changed, "services", state.Services)
	if l.Once {
		logger.Info("applied; to resume this watch, use " + state.Resume)
	} else {
		logger.Debug("applied", "took_ms", float64(took.Microseconds())/1000)
	}
}

// MaxMessage is the largest accepted message. The brain's messages are far smaller, so a peer that sends more is not a brain.
const MaxMessage = 16 << 20

// Failed describes why a call failed.
func Failed(err error) error {
	if status.Code(err) == codes.Unavailable {
		return fmt.Errorf("the brain is unavailable: %w; check that localnet-brain runs and serves this address", err)
	}
	return err
}
