package client

import (
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"localnet.dev/go/internal/loop"
	pb "localnet.dev/go/localnet/v1"
)

// Reason returns why the brain has refused a call, with the metadata that the comment of the reason lists. It understands errors of [Run]
// and of the generated clients. ERROR_REASON_UNSPECIFIED stands for all errors without a reason, such as those of the network, and for
// reasons that this version does not know: go by the gRPC code then.
func Reason(err error) (reason pb.ErrorReason, metadata map[string]string) {
	failed, _ := status.FromError(err)
	for _, detail := range failed.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Domain == "localnet.dev" {
			reason := pb.ErrorReason(pb.ErrorReason_value["ERROR_REASON_"+info.Reason])
			if reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
				return reason, info.Metadata
			}
		}
	}
	return pb.ErrorReason_ERROR_REASON_UNSPECIFIED, nil
}

// failed describes why a call failed.
func failed(err error) error {
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("the brain does not serve localnet.v1: %w; start it with --draft-v1, or read localnetv1", err)
	}
	return loop.Failed(err)
}
