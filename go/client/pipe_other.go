//go:build !windows

package client

import (
	"context"
	"errors"
	"net"
)

const hasPipes = false

func dialPipe(context.Context, string) (net.Conn, error) { return nil, errors.ErrUnsupported }
