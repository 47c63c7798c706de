//go:build tests

// Package kubernetes names what `go test -c` builds, so that go.mod requires it.
package kubernetes

import _ "k8s.io/kubernetes/test/e2e"
