// CoreDNS with only the plugins that manifests/coredns.yaml and the test of examples/dns name. All of them would bring the libraries of
// several clouds, which take minutes to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// The order of the plugins in a query, as in CoreDNS.
	dnsserver.Directives = []string{"reload", "bind", "health", "ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
