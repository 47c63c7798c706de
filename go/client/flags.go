package client

import (
	"errors"
	"flag"
	"runtime"
	"strconv"
	"time"

	"google.golang.org/grpc"
)

// Flags are the flags that select the brain and set the options of [Run]. The backends of localnet have the same flags.
type Flags struct {
	API         string        // --api: the address of the brain.
	TLS         TLSFiles      // --tls-ca, --tls-cert, --tls-key: the files for TLS.
	Once        bool          // --once: whether to apply one state and exit.
	Resume      Revision      // --instance-id, --rev: the state that is already applied.
	MinInterval time.Duration // --min-sync-interval: the shortest time between two syncs, in milliseconds.
}

// Register adds the flags to a set, such as [flag.CommandLine].
func (f *Flags) Register(set *flag.FlagSet) {
	address := "unix:///run/localnet/brain.sock"
	if runtime.GOOS == "windows" {
		address = "tcp://127.0.0.1:12090"
	}
	set.StringVar(&f.API, "api", address, "`address` of the brain: unix:///path or tcp://host:port (or, on Windows, npipe:////./pipe/name)")
	set.StringVar(&f.TLS.CA, "tls-ca", "", "`file` with CA certificates that verify the brain's TLS certificate")
	set.StringVar(&f.TLS.Cert, "tls-cert", "", "`file` with the client TLS certificate")
	set.StringVar(&f.TLS.Key, "tls-key", "", "`file` with the private key of the client TLS certificate")
	set.BoolVar(&f.Once, "once", false, "apply one state, print how to resume, and exit")
	set.Uint64Var(&f.Resume.InstanceID, "instance-id", 0, "brain instance of the last applied state; needs --rev")
	set.Uint64Var(&f.Resume.Rev, "rev", 0, "revision of the last applied state: wait for a state with another revision")
	set.Func("min-sync-interval", "minimum time between two syncs, in `milliseconds`; changes in between are merged", func(text string) error {
		millis, err := strconv.ParseUint(text, 10, 31)
		f.MinInterval = time.Duration(millis) * time.Millisecond
		return err
	})
}

// Dial calls [Dial] with the address and the files.
//
// It fails for the same reasons, and if a flag lacks another flag that it needs.
func (f *Flags) Dial() (*grpc.ClientConn, error) {
	switch {
	case (f.Resume.InstanceID == 0) != (f.Resume.Rev == 0):
		return nil, errors.New("--instance-id and --rev need each other")
	case (f.TLS.Cert == "") != (f.TLS.Key == ""):
		return nil, errors.New("--tls-cert and --tls-key need each other")
	case f.TLS.CA != "":
		return Dial(f.API, &f.TLS)
	case f.TLS.Cert != "":
		return nil, errors.New("--tls-cert needs --tls-ca")
	}
	return Dial(f.API, nil)
}

// Options returns the options that the flags set, for a backend that reports to the brain under this name.
func (f *Flags) Options(name string) Options {
	return Options{Name: name, Once: f.Once, Resume: f.Resume, MinInterval: f.MinInterval}
}
