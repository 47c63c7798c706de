// A backend for localnet in Go: a userspace proxy for TCP and UDP that reads full states. Its argument is the brain's
// address. It adds the ClusterIPs to the loopback interface, listens there, forwards connections to the endpoints in turn,
// and reports the applied revision. It needs CAP_NET_ADMIN.
package main

import (
	"context"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "localnet/examples/go/localnetv1"
)

// read returns an answer. The error is io.EOF if the stream ended with OK; otherwise the answer must be discarded.
func read(client pb.EndpointsClient, token *pb.NextFilter) (*pb.NextFilter, map[string]*pb.ServiceEndpoints, error) {
	stream, err := client.Next(context.Background(), token)
	next, services := token, map[string]*pb.ServiceEndpoints{}
	for err == nil {
		var item *pb.NextItem
		if item, err = stream.Recv(); err != nil {
			break
		} else if item.Next != nil {
			next = &pb.NextFilter{InstanceID: item.Next.InstanceID, Rev: item.Next.Rev}
		} else if of := item.Endpoints; of != nil && of.Continues {
			before := services[of.Service.Namespace+"/"+of.Service.Name]
			before.Endpoints = append(before.Endpoints, of.Endpoints...)
		} else if of != nil {
			services[of.Service.Namespace+"/"+of.Service.Name] = of
		}
	}
	return next, services, err
}

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
	vips     map[string]bool
	forwards map[string]*forward
}

func (p *proxy) sync(services map[string]*pb.ServiceEndpoints) {
	vips, wanted := map[string]bool{}, map[string][]string{}
	for _, of := range services {
		for _, vip := range append(of.Service.IPs.ClusterIPs.GetV4(), of.Service.IPs.ClusterIPs.GetV6()...) {
			vips[vip] = true
			for _, port := range of.Service.Ports {
				key := strings.ToLower(port.Protocol.String()) + " " + net.JoinHostPort(vip, strconv.Itoa(int(port.Port)))
				for _, endpoint := range of.Endpoints {
					ip := append(endpoint.IPs.GetV4(), endpoint.IPs.GetV6()...)[0]
					serves := endpoint.Scopes.GetInternal() && strings.Contains(ip, ":") == strings.Contains(vip, ":")
					for _, at := range endpoint.PortOverrides {
						if serves && at.Name == port.Name {
							wanted[key] = append(wanted[key], net.JoinHostPort(ip, strconv.Itoa(int(at.Port))))
						}
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
	p.give(vips)
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

func (p *proxy) give(vips map[string]bool) { // To lo, with routes, because the kernel adds its own IPv6 routes only a moment later.
	lines := ""
	for vip := range vips {
		lines += "addr replace " + vip + " dev lo nodad\nroute replace local " + vip + " dev lo table local metric 1024\n"
		delete(p.vips, vip)
	}
	for vip := range p.vips {
		lines += "addr del " + vip + " dev lo\nroute del local " + vip + " dev lo table local metric 1024\n"
	}
	ip := exec.Command("ip", "-force", "-batch", "-")
	ip.Stdin, ip.Stderr, p.vips = strings.NewReader(lines), os.Stderr, vips
	ip.Run()
}

func main() {
	p := &proxy{forwards: map[string]*forward{}}
	terminated, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	context.AfterFunc(terminated, func() { os.Exit(0) })
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	client, token := pb.NewEndpointsClient(connection), &pb.NextFilter{}
	for {
		next, services, err := read(client, token)
		if err == io.EOF {
			p.sync(services)
			token = next
			both := []*pb.FamilyReport{{Family: pb.IPFamily_IPv4, AppliedRev: next.Rev}, {Family: pb.IPFamily_IPv6, AppliedRev: next.Rev}}
			report := &pb.BackendReport{Backend: "go-proxy", InstanceID: next.InstanceID, Rev: next.Rev, Families: both}
			_, err = pb.NewBackendsClient(connection).Report(context.Background(), report)
		}
		if err != nil {
			log.Printf("retrying: %v", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}
