package loop

import (
	"context"
	"math/rand/v2"
	"time"
)

// delays computes delays before retries: they double from 100 ms up to a limit, with jitter.
type delays struct {
	limit time.Duration
	full  time.Duration // The longest possible value of the next delay; 0 before the first failure.
}

// next returns the delay after one more failure, between half and all of the full delay.
func (d *delays) next() time.Duration {
	d.full = min(max(2*d.full, 100*time.Millisecond), d.limit)
	return d.full/2 + rand.N(d.full/2+1)
}

// reset starts again with the shortest delay, after a success.
func (d *delays) reset() { d.full = 0 }

// wait waits for the delay after one more failure. It returns false if the context ends first.
func (d *delays) wait(ctx context.Context) bool { return Sleep(ctx, d.next()) }

// Sleep waits. It returns false if the context ends first.
func Sleep(ctx context.Context, duration time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(duration):
		return true
	}
}
