package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Dial returns a connection to the brain at an address: unix:///absolute/path, tcp://host:port or, on Windows,
// npipe:////./pipe/name. It connects at the first call, and again after each failure. Without files, a TCP connection
// does not use TLS.
//
// Dial fails if the address is invalid, if this system does not support such addresses, if a TLS file cannot be used, or
// if there are files for an address that does not use TLS.
func Dial(address string, files *TLSFiles) (*grpc.ClientConn, error) {
	connect, authority, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("%q: %w; expected unix:///absolute/path or tcp://host:port (or, on Windows, npipe:////./pipe/name)", address, err)
	}
	var secured credentials.TransportCredentials = insecure.NewCredentials()
	if files != nil {
		if !strings.HasPrefix(address, "tcp://") {
			return nil, fmt.Errorf("%q does not use TLS: use a tcp:// address, or omit the TLS files", address)
		}
		if secured, err = newReloading(*files); err != nil {
			return nil, fmt.Errorf("failed to load the TLS files: %w", err)
		}
	}
	// The name is resolved each time the connection is opened, and no HTTP proxy is used.
	return grpc.NewClient("passthrough:///"+authority,
		grpc.WithTransportCredentials(secured),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return connect(ctx) }),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		// By default, gRPC's own backoff grows to two minutes. Run has its own.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}))
}

type connector func(ctx context.Context) (net.Conn, error)

// parse returns a function that connects to an address, and the name of its host.
func parse(address string) (connect connector, authority string, err error) {
	var dialer net.Dialer
	scheme, rest, _ := strings.Cut(address, "://")
	switch scheme {
	case "unix":
		if !path.IsAbs(rest) || rest == "/" {
			return nil, "", errors.New("the path must be absolute")
		}
		return func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "unix", rest) }, "localhost", nil
	case "npipe":
		name, found := strings.CutPrefix(rest, "//./pipe/")
		if !found || name == "" || strings.Contains(name, `\`) {
			return nil, "", errors.New("not a pipe on this machine")
		}
		if !hasPipes {
			return nil, "", errors.New("only Windows has named pipes")
		}
		return func(ctx context.Context) (net.Conn, error) { return dialPipe(ctx, `\\.\pipe\`+name) }, "localhost", nil
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return nil, "", err
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return nil, "", errors.New("the port is not a number from 0 to 65535")
		} else if host == "" {
			return nil, "", errors.New("the host is missing")
		}
		return func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", rest) }, rest, nil
	}
	return nil, "", errors.New("unknown scheme")
}
