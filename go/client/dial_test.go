package client

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	pb "localnet.dev/go/localnetv1"
)

// brain is a fake brain on a real connection. It has one state. If torn is set, its answers stop before their end.
type brain struct {
	pb.UnimplementedEndpointsServer
	instance uint64
	torn     chan struct{}
}

func (b *brain) Next(request *pb.NextFilter, stream grpc.ServerStreamingServer[pb.NextItem]) error {
	if request.InstanceID == b.instance {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	for _, item := range []*pb.NextItem{token(b.instance, 1, false), node, service("a")} {
		if err := stream.Send(item); err != nil {
			return err
		}
	}
	if b.torn != nil {
		b.torn <- struct{}{}
		<-stream.Context().Done()
	}
	return nil
}

// serve runs a brain on a listener until the test calls the function that it returns.
func serve(t *testing.T, listener net.Listener, err error, b *brain, options ...grpc.ServerOption) (stop func()) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	pb.RegisterEndpointsServer(server, b)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return server.Stop
}

// follow runs a backend that passes on the instance of each state.
func follow(t *testing.T, conn *grpc.ClientConn) <-chan uint64 {
	ctx, cancel := context.WithCancel(t.Context())
	synced, done := make(chan uint64), make(chan struct{})
	go func() {
		defer close(done)
		Run(ctx, conn, func(ctx context.Context, state *State, _ *Changes) error {
			select {
			case synced <- state.Revision.InstanceID:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, Options{})
	}()
	t.Cleanup(func() { cancel(); <-done; conn.Close() })
	return synced
}

func TestAUnixSocketIsFollowedWhenTheBrainRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "brain.sock")
	conn, err := Dial("unix://"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	synced := follow(t, conn) // The brain does not run yet.
	listener, err := net.Listen("unix", path)
	stop := serve(t, listener, err, &brain{instance: 1})
	equals(t, "first", <-synced, 1)
	stop()
	torn := make(chan struct{})
	listener, err = net.Listen("unix", path)
	stop = serve(t, listener, err, &brain{instance: 2, torn: torn})
	<-torn
	stop()
	listener, err = net.Listen("unix", path)
	serve(t, listener, err, &brain{instance: 3})
	equals(t, "the torn state was discarded", <-synced, 3)
}

// authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func issue(t *testing.T, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (cert, key []byte, private *ecdsa.PrivateKey) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if signer == nil {
		signer = private
	}
	template.SerialNumber, template.NotAfter = big.NewInt(1), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), private
}

func newAuthority(t *testing.T) *authority {
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	cert, _, key := issue(t, template, template, nil)
	block, _ := pem.Decode(cert)
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, parsed, key, cert}
}

func (a *authority) issue() (cert, key []byte) {
	cert, key, _ = issue(a.t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, a.cert, a.key)
	return cert, key
}

// secure requires TLS, with client certificates of the authority.
func (a *authority) secure() grpc.ServerOption {
	cert, key := a.issue()
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		a.t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(a.pem)
	return grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
	}))
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTLSFilesAreReadAtEachConnectionAndTheLastUsableOnesStay(t *testing.T) {
	folder := t.TempDir()
	files := TLSFiles{filepath.Join(folder, "ca"), filepath.Join(folder, "cert"), filepath.Join(folder, "key")}
	renew := func(a *authority) {
		cert, key := a.issue()
		write(t, files.CA, a.pem)
		write(t, files.Cert, cert)
		write(t, files.Key, key)
	}
	old, renewed := newAuthority(t), newAuthority(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	stop := serve(t, listener, err, &brain{instance: 1}, old.secure())
	address := listener.Addr().String()
	if _, err := Dial("tcp://"+address, &files); err == nil || !strings.Contains(err.Error(), files.CA) {
		t.Errorf("without files: %v", err)
	}
	renew(old)
	conn, err := Dial("tcp://"+address, &files)
	if err != nil {
		t.Fatal(err)
	}
	synced := follow(t, conn)
	equals(t, "first", <-synced, 1)

	stop()
	write(t, files.Cert, bytes.Repeat([]byte("x"), 100))
	listener, err = net.Listen("tcp", address)
	stop = serve(t, listener, err, &brain{instance: 2}, old.secure())
	equals(t, "with the last usable files", <-synced, 2)

	stop()
	renew(renewed)
	listener, err = net.Listen("tcp", address)
	serve(t, listener, err, &brain{instance: 3}, renewed.secure())
	equals(t, "with the renewed files", <-synced, 3)
}

func TestAnUntrustedBrainIsAnError(t *testing.T) {
	trusted := newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca")
	write(t, file, trusted.pem)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	serve(t, listener, err, &brain{instance: 1}, newAuthority(t).secure())
	conn, err := Dial("tcp://"+listener.Addr().String(), &TLSFiles{CA: file})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = Run(t.Context(), conn, func(context.Context, *State, *Changes) error { return nil }, Options{Once: true})
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Run returned %v", err)
	}
}

func TestTheErrorForAnInvalidAddressNamesTheProblem(t *testing.T) {
	for address, problem := range map[string]string{
		"/run/brain.sock":              "unknown scheme",
		"unix://brain.sock":            "the path must be absolute",
		"unix:///":                     "the path must be absolute",
		"npipe:////./pipe/":            "not a pipe on this machine",
		"npipe:////other/pipe/a":       "not a pipe on this machine",
		`npipe:////./pipe/..\a`:        "not a pipe on this machine",
		"tcp://127.0.0.1":              "missing port",
		"tcp://127.0.0.1:http":         "the port is not a number from 0 to 65535",
		"tcp://:80":                    "the host is missing",
		"tcp://::1:80":                 "too many colons",
		"http://localhost/brain:12090": "unknown scheme",
	} {
		if _, err := Dial(address, nil); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"unix:///run/localnet/brain.sock", "tcp://127.0.0.1:12090", "tcp://[::1]:1", "tcp://brain.example:0"} {
		conn, err := Dial(address, nil)
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		conn.Close()
	}
	if _, err := Dial("unix:///run/localnet/brain.sock", &TLSFiles{}); err == nil || !strings.Contains(err.Error(), "does not use TLS") {
		t.Errorf("TLS on a unix socket: %v", err)
	}
}
