// Package fake plays the brain in tests of backends: a connection whose calls the test answers.
package fake

import (
	"context"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Brain is a connection. Requests for states have the type Q and are answered by streams of M. Reports have the type P.
type Brain[Q, M, P proto.Message] struct {
	Requests chan Q             // Each request for a state, with the test's answer in Replies.
	Replies  chan Reply[M]      //
	Reports  chan P             // Each report, with the test's answer in Accepts.
	Accepts  chan proto.Message // nil for an empty message.
	Refusals chan error
}

// Reply is an answer to a request for a state. A nil error stands for OK.
type Reply[M proto.Message] struct {
	Messages []M
	Err      error
}

// New returns a connection without calls.
func New[Q, M, P proto.Message]() *Brain[Q, M, P] {
	return &Brain[Q, M, P]{make(chan Q), make(chan Reply[M]), make(chan P), make(chan proto.Message), make(chan error)}
}

// Answer answers the next request for a state, and returns it.
func (b *Brain[Q, M, P]) Answer(err error, messages ...M) Q {
	request := <-b.Requests
	b.Replies <- Reply[M]{messages, err}
	return request
}

// Accept answers the next report, and returns it.
func (b *Brain[Q, M, P]) Accept(response proto.Message) P {
	report := <-b.Reports
	b.Accepts <- response
	return report
}

// Refuse answers the next report with an error, and returns the report.
func (b *Brain[Q, M, P]) Refuse(err error) P {
	report := <-b.Reports
	b.Refusals <- err
	return report
}

// NewStream plays a call for a state.
func (b *Brain[Q, M, P]) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &stream[Q, M, P]{ctx: ctx, brain: b}, nil
}

// Invoke plays a call with a report.
func (b *Brain[Q, M, P]) Invoke(ctx context.Context, _ string, report, response any, _ ...grpc.CallOption) error {
	select {
	case b.Reports <- proto.Clone(report.(P)).(P):
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case accepted := <-b.Accepts:
		if accepted != nil {
			proto.Merge(response.(proto.Message), accepted)
		}
		return nil
	case err := <-b.Refusals:
		return err
	}
}

type stream[Q, M, P proto.Message] struct {
	grpc.ClientStream
	ctx   context.Context
	brain *Brain[Q, M, P]
	left  *Reply[M]
}

func (s *stream[Q, M, P]) SendMsg(request any) error {
	select {
	case s.brain.Requests <- request.(Q):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *stream[Q, M, P]) CloseSend() error { return nil }

func (s *stream[Q, M, P]) RecvMsg(message any) error {
	if s.left == nil {
		select {
		case reply := <-s.brain.Replies:
			s.left = &reply
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
	if len(s.left.Messages) == 0 {
		if s.left.Err == nil {
			return io.EOF
		}
		return s.left.Err
	}
	proto.Merge(message.(proto.Message), s.left.Messages[0])
	s.left.Messages = s.left.Messages[1:]
	return nil
}

// Within fails the test unless a delay of the loop's backoff is between half and all of this duration.
func Within(t *testing.T, full, delay time.Duration) {
	t.Helper()
	if delay < full/2 || delay > full {
		t.Errorf("the delay is %v, and not between %v and %v", delay, full/2, full)
	}
}
