// A backend for localnet in Go: a userspace proxy for TCP and UDP that reads full states. It adds the ClusterIPs to the
// loopback interface, listens there, forwards connections to the endpoints in turn, and reports the applied revision. It
// needs CAP_NET_ADMIN.
//
//	go-proxy --api unix:///run/localnet/brain.sock
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"localnet.dev/go/client"
)

type forward struct { // A socket on an address of a Service, and the endpoints to which it forwards.
	io.Closer
	targets atomic.Pointer[[]string]
	turn    atomic.Uint64
}

func (f *forward) dial(network string) (net.Conn, error) {
	targets := *f.targets.Load()
	return net.Dial(network, targets[f.turn.Add(1)%uint64(len(targets))])
}

func (f *forward) tcp(listener net.Listener) {
	for {
		here, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer here.Close()
			if there, err := f.dial("tcp"); err == nil {
				defer there.Close()
				go func() { io.Copy(there, here); there.(*net.TCPConn).CloseWrite() }()
				io.Copy(here, there)
			}
		}()
	}
}

type back struct { // Writes to a client.
	net.PacketConn
	client net.Addr
}

func (b back) Write(answer []byte) (int, error) { return b.WriteTo(answer, b.client) }

func (f *forward) udp(socket net.PacketConn) {
	clients, buffer := sync.Map{}, make([]byte, 65536) // One socket per client, until 30 seconds without a packet.
	for {
		length, client, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		known, _ := clients.Load(client.String())
		there, _ := known.(net.Conn)
		if there == nil {
			if there, err = f.dial("udp"); err != nil {
				continue
			}
			clients.Store(client.String(), there)
			go func() { io.Copy(back{socket, client}, there); clients.Delete(client.String()); there.Close() }()
		}
		there.SetDeadline(time.Now().Add(30 * time.Second))
		there.Write(buffer[:length])
	}
}

type proxy struct { // The applied state: addresses, and sockets by protocol and address.
	vips     client.DiffStore[netip.Addr, struct{}]
	forwards map[string]*forward
}

func (p *proxy) sync(_ context.Context, state *client.State, _ *client.Changes) error {
	vips, wanted := map[netip.Addr]struct{}{}, map[string][]string{}
	for _, of := range state.Services {
		endpoints, ips := client.PortEndpoints(of), of.Service.IPs.GetClusterIPs()
		for _, text := range slices.Concat(ips.GetV4(), ips.GetV6()) {
			vip, _ := netip.ParseAddr(text)
			vips[vip] = struct{}{}
			for _, port := range of.Service.Ports {
				key := strings.ToLower(port.Protocol.String()) + " " + netip.AddrPortFrom(vip, uint16(port.Port)).String()
				for _, to := range endpoints {
					if to.PortName == port.Name && to.Scopes.GetInternal() && to.Address.Addr().Is4() == vip.Is4() {
						wanted[key] = append(wanted[key], to.Address.String())
					}
				}
			}
		}
	}
	for key, f := range p.forwards {
		if wanted[key] == nil {
			f.Close()
			delete(p.forwards, key)
		}
	}
	p.vips.Replace(vips)
	p.give(p.vips.Diff())
	p.vips.Commit()
	// The kernel rejects packets to a port without a socket, as the verdict Reject requires.
	for key, targets := range wanted {
		if f := p.forwards[key]; f != nil {
			f.targets.Store(&targets)
		} else if f, err := open(key, targets); err == nil {
			p.forwards[key] = f
		} else {
			log.Printf("skipped %s: %v", key, err)
		}
	}
	return nil
}

func open(key string, targets []string) (*forward, error) { // Fails for other protocols than TCP and UDP.
	network, address, _ := strings.Cut(key, " ")
	f := &forward{}
	f.targets.Store(&targets)
	if socket, err := net.ListenPacket(network, address); err == nil {
		f.Closer = socket
		go f.udp(socket)
		return f, nil
	}
	listener, err := net.Listen(network, address)
	if err == nil {
		f.Closer = listener
		go f.tcp(listener)
	}
	return f, err
}

// give changes the addresses of lo, and adds routes, because the kernel adds its own IPv6 routes only a moment later.
func (p *proxy) give(diff client.Diff[netip.Addr, struct{}]) {
	lines := ""
	for vip := range diff.Set {
		flags := ""
		if vip.Is6() {
			flags = " nodad"
		}
		lines += "addr replace " + vip.String() + " dev lo" + flags + "\nroute replace local " + vip.String() + " dev lo table local metric 1024\n"
	}
	for vip := range diff.Removed {
		lines += "addr del " + vip.String() + " dev lo\nroute del local " + vip.String() + " dev lo table local metric 1024\n"
	}
	ip := exec.Command("ip", "-force", "-batch", "-")
	ip.Stdin, ip.Stderr = strings.NewReader(lines), os.Stderr
	ip.Run()
}

func main() {
	var flags client.Flags
	flags.Register(flag.CommandLine)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	brain, err := flags.Dial()
	if err != nil {
		log.Fatal(err)
	}
	p := &proxy{forwards: map[string]*forward{}}
	if err := client.Run(ctx, brain, p.sync, flags.Options("go-proxy")); err != nil {
		log.Fatal(err)
	}
}
