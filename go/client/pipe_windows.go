package client

import (
	"context"
	"net"
	"os"
	"syscall"
	"time"

	"localnet.dev/go/internal/loop"
)

const hasPipes = true

const errorPipeBusy = syscall.Errno(231) // All instances of the pipe are in use. The server will offer another one soon.

// dialPipe opens a named pipe. It needs no library: Go 1.25 and later can read and write such a file at the same time.
func dialPipe(ctx context.Context, path string) (net.Conn, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	for {
		handle, err := syscall.CreateFile(name, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil, syscall.OPEN_EXISTING,
			syscall.FILE_FLAG_OVERLAPPED|securityIdentification, 0)
		if err == nil {
			return pipe{os.NewFile(uintptr(handle), path)}, nil
		} else if err != errorPipeBusy {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		} else if !loop.Sleep(ctx, 20*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
}

// securityIdentification lets the server identify this process, but not act in its name.
const securityIdentification = 0x00110000 // SECURITY_SQOS_PRESENT | SECURITY_IDENTIFICATION

// pipe is a named pipe as a connection.
type pipe struct{ *os.File }

func (p pipe) LocalAddr() net.Addr  { return pipeAddr(p.Name()) }
func (p pipe) RemoteAddr() net.Addr { return pipeAddr(p.Name()) }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }
