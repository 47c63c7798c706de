package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc/credentials"
)

// TLSFiles are the files for TLS, in PEM. They are read each time the client connects. If they are unusable at that time,
// for instance during their replacement, the client logs a warning and uses the last usable contents.
type TLSFiles struct {
	CA   string // Certificates of the authorities that may have issued the brain's certificate.
	Cert string // The client's own certificate; empty if the brain requires none.
	Key  string // The private key of Cert.
}

func (f TLSFiles) load() (credentials.TransportCredentials, error) {
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s contains no certificate in PEM", f.CA)
	}
	if f.Cert != "" || f.Key != "" {
		own, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("certificate %q with key %q: %w", f.Cert, f.Key, err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return credentials.NewTLS(config), nil
}

// reloading reads the files at each handshake.
type reloading struct {
	credentials.TransportCredentials // With the contents at the start.

	files  TLSFiles
	mutex  sync.Mutex
	usable credentials.TransportCredentials // With the last usable contents.
	logged string                           // The problem with the current contents, if it was logged.
}

func newReloading(files TLSFiles) (*reloading, error) {
	loaded, err := files.load()
	return &reloading{TransportCredentials: loaded, files: files, usable: loaded}, err
}

func (r *reloading) Clone() credentials.TransportCredentials { return r }

func (r *reloading) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return r.newest().ClientHandshake(ctx, authority, conn)
}

func (r *reloading) newest() credentials.TransportCredentials {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	problem := ""
	if loaded, err := r.files.load(); err == nil {
		r.usable = loaded
	} else if problem = err.Error(); problem != r.logged {
		slog.Warn("cannot use the changed TLS files; keeping the previous ones", "error", err)
	}
	r.logged = problem
	return r.usable
}
