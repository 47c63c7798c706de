package client

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	fakebrain "localnet.dev/go/internal/fake"
	pb "localnet.dev/go/localnet/v1"
)

func TestChangesBecomeStates(t *testing.T) {
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		equals(t, "first token", f.token(nil, full(1, 204, service("a", at("10.0.0.1", 1), at("10.0.0.2", 2)), service("b", at("fd00::1", 1)))...), "")
		equals(t, "full", f.end(nil), synced{
			1, "a(1)[10.0.0.1/0:false 10.0.0.2/0:false] b(1)[fd00::1/0:false]",
			"+a[10.0.0.1/0 10.0.0.2/0] +b[fd00::1/0] everything node",
		})
		// 10.0.0.9 has come and gone.
		both := without("a", "10.0.0.1")
		both.RemovedEndpoints = append(both.RemovedEndpoints, &pb.EndpointKey{Address: "10.0.0.9"})
		local := at("10.0.0.2", 20)
		local.Local = true
		both.Endpoints = []*pb.Endpoint{local, at("10.0.0.3", 3)}
		equals(t, "token", f.token(nil, delta(2, "full", 224, both)), "full")
		equals(t, "endpoints", f.end(nil), synced{
			2, "a(1)[10.0.0.2/0:true 10.0.0.3/0:false] b(1)[fd00::1/0:false]", "a[10.0.0.1/0 10.0.0.2/0 10.0.0.3/0]",
		})
		typed := service("b")
		typed.Service.Type, typed.Service.Digest = pb.ServiceType_SERVICE_TYPE_NODE_PORT, 50
		equals(t, "token", f.token(nil, delta(3, "delta", 51, typed, removed("a"), removed("gone"))), "delta")
		equals(t, "Services", f.end(nil), synced{3, "b(2)[fd00::1/0:false]", "+a[10.0.0.2/0 10.0.0.3/0] +b[]"})
		again := &pb.NextStateResponse{
			Begin: begin(4, "delta"), Node: &pb.NodeState{Name: "node-b", Digest: 5}, Commit: &pb.Commit{Token: "delta", Digest: 56},
		}
		f.token(nil, again)
		equals(t, "node", f.end(nil), synced{4, "b(2)[fd00::1/0:false]", "node"})
	})
}

// One Service may be in several updates. Only what differs in the end has changed.
func TestAReplacedServiceHasOnlyItsNewEndpoints(t *testing.T) {
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		f.token(nil, full(1, 106, service("a", at("10.0.0.1", 1), at("10.0.0.2", 2), at("10.0.0.3", 3)))...)
		f.end(nil)
		local := at("10.0.0.2", 20)
		local.Local = true
		replaced := service("a", at("10.0.0.1", 10))
		replaced.Replace = true
		f.token(nil, delta(2, "full", 130, replaced, endpoints("a", local)))
		equals(t, "replaced", f.end(nil), synced{2, "a(1)[10.0.0.1/0:false 10.0.0.2/0:true]", "a[10.0.0.2/0 10.0.0.3/0]"})
	})
}

func TestARestartedBrainChangesOnlyWhatDiffers(t *testing.T) {
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		f.token(nil, full(5, 201, service("a", at("10.0.0.1", 1)), service("b"))...)
		f.end(nil)
		other := service("a", at("10.0.0.1", 33), at("10.0.0.2", 2))
		other.Service.Digest = 77
		messages := full(1, 112, other)
		messages[0].Begin.Revision.Instance = "ffffffffffffffff"
		messages[0].Node.Digest, messages[1].Commit.Digest = 5, 117
		equals(t, "token", f.token(nil, messages...), "full")
		equals(t, "sync", f.end(nil), synced{1, "a(1)[10.0.0.1/0:false 10.0.0.2/0:false]", "+b[] a[10.0.0.2/0]"})
	})
}

// An answer that the reader cannot use is not passed on, and changes nothing that the backend has. If nothing has happened, the loop
// repeats the request. If the reader has lost something, the loop reads the full state.
func TestATornOrWrongAnswerIsNeverApplied(t *testing.T) {
	uncommitted := delta(2, "full", 101, without("a", "10.0.0.2"))
	uncommitted.Commit = nil
	nameless := delta(2, "full", 103, endpoints(""))
	unbegun := delta(2, "full", 103)
	unbegun.Begin = nil
	numbered := at("10.0.0.1", 1)
	numbered.Ports[0].Number = 65536
	named := delta(2, "full", 103)
	named.Begin.Revision.Instance = "seven"
	nodeless := full(2, 103, service("a", at("10.0.0.1", 1), at("10.0.0.2", 2)))
	nodeless[0].Node, nodeless[1].Commit.Digest = nil, 103
	address := service("a")
	address.Service.Addresses = []*pb.ServiceAddress{{Address: "10.0.0", Kind: pb.AddressKind_ADDRESS_KIND_CLUSTER_IP}}
	nodePort := service("a")
	nodePort.Service.Ports[0].NodePort = 65536
	for name, row := range map[string]struct {
		answer []*pb.NextStateResponse
		err    error
		token  string // That of the next request.
	}{
		"unavailable":                     {nil, errDown, "full"},
		"cut after a change":              {[]*pb.NextStateResponse{uncommitted}, errDown, "full"},
		"failed after the commit":         {[]*pb.NextStateResponse{delta(2, "full", 101, without("a", "10.0.0.2"))}, errDown, "full"},
		"empty":                           {nil, nil, "full"},
		"no commit":                       {[]*pb.NextStateResponse{uncommitted}, nil, "full"},
		"cut full state":                  {full(2, 0)[:1], nil, "full"},
		"of another state":                {[]*pb.NextStateResponse{delta(2, "other", 101, without("a", "10.0.0.2"))}, nil, ""},
		"a removal is missing":            {[]*pb.NextStateResponse{delta(2, "full", 101)}, nil, ""},
		"a removal too many":              {[]*pb.NextStateResponse{delta(2, "full", 103, without("a", "10.0.0.2"))}, nil, ""},
		"an unknown Service":              {[]*pb.NextStateResponse{delta(2, "full", 104, endpoints("b", at("10.0.0.4", 1)))}, nil, ""},
		"replaced by nothing":             {[]*pb.NextStateResponse{delta(2, "full", 0, &pb.ServiceUpdate{Key: service("a").Key, Replace: true})}, nil, ""},
		"a full state with a wrong sum":   {full(2, 99, service("b")), nil, ""},
		"a full state without a node":     {nodeless, nil, ""},
		"no begin":                        {[]*pb.NextStateResponse{unbegun}, nil, ""},
		"no instance":                     {[]*pb.NextStateResponse{named}, nil, ""},
		"no name":                         {[]*pb.NextStateResponse{nameless}, nil, ""},
		"an invalid address":              {[]*pb.NextStateResponse{delta(2, "full", 104, endpoints("a", at("10.0.0.256", 1)))}, nil, ""},
		"an invalid removed address":      {[]*pb.NextStateResponse{delta(2, "full", 103, without("a", "web"))}, nil, ""},
		"an invalid port":                 {[]*pb.NextStateResponse{delta(2, "full", 103, endpoints("a", numbered))}, nil, ""},
		"an invalid address of a Service": {[]*pb.NextStateResponse{delta(2, "full", 103, address)}, nil, ""},
		"an invalid NodePort":             {[]*pb.NextStateResponse{delta(2, "full", 103, nodePort)}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			testLoop(t, Options{}, func(t *testing.T, f *fake) {
				whole := func(number, sum uint64, more ...*pb.ServiceUpdate) []*pb.NextStateResponse {
					return full(number, sum, append(more, service("a", at("10.0.0.1", 1), at("10.0.0.2", 2)))...)
				}
				f.token(nil, whole(1, 103)...)
				f.end(nil)
				f.token(row.err, row.answer...)
				next := whole(3, 203, service("d"))
				if row.token != "" {
					next = []*pb.NextStateResponse{delta(3, "full", 203, service("d"))}
				}
				equals(t, "token", f.token(nil, next...), row.token)
				equals(t, "sync", f.end(nil), synced{3, "a(1)[10.0.0.1/0:false 10.0.0.2/0:false] d(1)[]", "+d[]"})
			})
		})
	}
}

// The brain and the reader cannot agree, so the reader keeps trying, with growing delays.
func TestAFullStateWithAWrongSumIsReadAgainWithBackoff(t *testing.T) {
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		f.token(nil, full(1, 1)...)
		for _, millis := range []time.Duration{100, 200, 400} {
			began := time.Now()
			equals(t, "token", f.token(nil, full(1, 1)...), "")
			fakebrain.Within(t, millis*time.Millisecond, time.Since(began))
		}
		f.token(nil, full(1, 0)...)
		equals(t, "sync", f.end(nil).number, 1)
	})
}

func TestAFailedSyncIsRetriedWithAllChanges(t *testing.T) {
	testLoop(t, Options{}, func(t *testing.T, f *fake) {
		f.token(nil, full(1, 101, service("a", at("10.0.0.1", 1)))...)
		f.end(nil)
		f.token(nil, delta(2, "full", 103, endpoints("a", at("10.0.0.2", 2))))
		f.end(errors.New("refused"))
		equals(t, "retry", f.end(errors.New("refused")).changes, "a[10.0.0.2/0]")
		f.token(nil, delta(3, "delta", 106, endpoints("a", at("10.0.0.3", 3))))
		equals(t, "newer state", f.end(nil).changes, "a[10.0.0.2/0 10.0.0.3/0]")
	})
}

func TestResumeWaitsForAnotherRevision(t *testing.T) {
	testLoop(t, Options{Resume: Revision{InstanceID: 7, Rev: 3}}, func(t *testing.T, f *fake) {
		equals(t, "token", f.token(nil, full(3, 100, service("a"))...), "")
		equals(t, "token", f.token(nil, delta(4, "full", 101, endpoints("a", at("10.0.0.1", 1)))), "full")
		equals(t, "sync", f.end(nil), synced{4, "a(1)[10.0.0.1/0:false]", "+a[10.0.0.1/0] everything node"})
	})
	testLoop(t, Options{Resume: Revision{InstanceID: 7, Rev: 3}}, func(t *testing.T, f *fake) {
		f.token(nil, full(4, 100, service("a"))...)
		equals(t, "another one", f.end(nil).number, 4)
	})
}

func TestARequestSaysWhoReadsAndWhat(t *testing.T) {
	metadata := &pb.MetadataSelector{LabelKeys: []string{"app"}}
	options := Options{
		Name: "test", Version: "1.2", Observer: true, Capabilities: []pb.Capability{pb.Capability_CAPABILITY_SOURCE_FILTERS},
		Metadata: metadata, EndpointDetails: true, View: pb.View_VIEW_DNS,
	}
	testLoop(t, options, func(t *testing.T, f *fake) {
		want := &pb.NextStateRequest{
			Reader: &pb.Reader{
				Name: "test", Version: "1.2", Role: pb.ReaderRole_READER_ROLE_OBSERVER,
				Capabilities: []pb.Capability{pb.Capability_CAPABILITY_SOURCE_FILTERS},
			},
			Metadata: metadata, EndpointDetails: true, View: pb.View_VIEW_DNS,
		}
		if got := f.Answer(nil, full(1, 0)...); !proto.Equal(got, want) {
			t.Errorf("the first request: %v", got)
		}
		f.end(nil)
		want.Token = "full"
		if got := f.Answer(nil, delta(2, "full", 0)); !proto.Equal(got, want) {
			t.Errorf("the second request: %v", got)
		}
		f.end(nil)
		select {
		case <-f.Reports:
			t.Error("an observer must not report")
		case <-time.After(time.Hour):
		}
	})
}

// A Service that needs more than the backend understands is one without endpoints, whatever the backend knows about it.
func TestAWithheldServiceHasNoEndpoints(t *testing.T) {
	testLoop(t, Options{Name: "test"}, func(t *testing.T, f *fake) {
		f.token(nil, full(1, 103, service("a", at("10.0.0.1", 1), at("10.0.0.2", 2)))...)
		f.end(nil)
		equals(t, "skipped parts", f.Accept(nil).Skipped.Count, 0)
		drop := &pb.WhenEmpty{Internal: pb.Verdict_VERDICT_DROP, External: pb.Verdict_VERDICT_DROP}
		withheld := service("a")
		withheld.Replace = true
		withheld.Service.Digest, withheld.Service.Withheld = 108, true // The sum of the digests that it replaces.
		withheld.Service.Requires = []pb.Capability{pb.Capability_CAPABILITY_SOURCE_FILTERS, 77}
		withheld.Service.Ports[0].WhenEmptyIpv4, withheld.Service.Ports[0].WhenEmptyIpv6 = drop, drop
		f.token(nil, delta(2, "full", 108, withheld))
		equals(t, "sync", f.end(nil), synced{2, "a(1)[]", "+a[10.0.0.1/0 10.0.0.2/0]"})
		skipped := f.Accept(nil).Skipped
		equals(t, "skipped parts", skipped.Count, 1)
		equals(t, "Service", skipped.Parts[0].Service.Name, "a")
		reason := "the brain withholds the Service, because the backend lacks CAPABILITY_SOURCE_FILTERS and 77"
		equals(t, "problem", skipped.Parts[0].Diagnostic.Problem, reason)
	})
}

func TestAReportListsAsManyWithheldServicesAsThereIsRoom(t *testing.T) {
	r := reader{state: State{Services: map[ServiceKey]*ServiceEndpoints{}, Withheld: map[ServiceKey]struct{}{}}}
	for i := range mostSkipped {
		key := ServiceKey{Namespace: "ns", Name: fmt.Sprintf("s%03d", i)}
		r.state.Services[key] = &ServiceEndpoints{Service: &pb.Service{Withheld: true}}
		r.state.Withheld[key] = struct{}{}
	}
	own := &pb.SkippedParts{Count: 1, Parts: []*pb.SkippedPart{{}}}
	all := r.withWithheld(own)
	equals(t, "count", all.Count, mostSkipped+1)
	equals(t, "parts", len(all.Parts), mostSkipped)
	equals(t, "last", all.Parts[mostSkipped-1].Service.Name, "s254")
	equals(t, "the backend's list", len(own.Parts), 1)
	equals(t, "an unset list", r.withWithheld(nil) == nil, true)
}

func TestUnknownValuesOfANewerBrainAreLeftOut(t *testing.T) {
	newer := service("a", at("10.0.0.1", 1))
	record := newer.Service
	record.Ports = append(record.Ports, &pb.ServicePort{Name: "new", Protocol: 77, Number: 81})
	record.Addresses = []*pb.ServiceAddress{
		{Address: "10.96.0.1", Kind: pb.AddressKind_ADDRESS_KIND_CLUSTER_IP}, {Address: "new:family", Kind: 77},
	}
	newer.Endpoints[0].Ports = append(newer.Endpoints[0].Ports, &pb.EndpointPort{Name: "new", Number: 8081})
	decoded, err := decode(newer)
	if err != nil {
		t.Fatal(err)
	}
	equals(t, "ports and addresses", []int{len(decoded.service.Ports), len(decoded.service.Addresses)}, []int{1, 1})
	one := decoded.endpoints[0]
	got := PortEndpoints(&ServiceEndpoints{decoded.service, map[EndpointKey]*pb.Endpoint{one.key: one.record}})
	equals(t, "endpoints", len(got), 1)
	equals(t, "endpoint", got[0].Address.String(), "10.0.0.1:8080")
	equals(t, "scopes", []bool{got[0].Has(pb.Scope_SCOPE_INTERNAL), got[0].Has(pb.Scope_SCOPE_EXTERNAL)}, []bool{true, false})
}

// Backends may keep messages, and compare pointers.
func TestEqualRecordsStayTheSameMessages(t *testing.T) {
	state, changes := State{Services: map[ServiceKey]*ServiceEndpoints{}}, Changes{Services: map[ServiceKey]*ServiceChanges{}}
	var messages [2][2]any
	for i := range messages {
		decoded, err := decode(service("a", at("10.0.0.1", uint64(i))))
		if err != nil {
			t.Fatal(err)
		}
		state.apply(&answer{full: true, updates: []update{decoded}}, &changes)
		of := state.Services[decoded.key]
		messages[i] = [2]any{of.Service, of.Endpoints[decoded.endpoints[0].key]}
	}
	if messages[0] != messages[1] {
		t.Error("the second state has other messages")
	}
}

func TestTheReasonOfAnErrorIsKnown(t *testing.T) {
	refusal := func(domain, reason string) error {
		info := &errdetails.ErrorInfo{Domain: domain, Reason: reason, Metadata: map[string]string{"key": "app"}}
		with, err := status.New(codes.PermissionDenied, "not published").WithDetails(info)
		if err != nil {
			t.Fatal(err)
		}
		return with.Err()
	}
	run := func(answer error) (err error) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, Options{Once: true})
			f.token(answer)
			err = <-f.returned
		})
		return err
	}
	reason, metadata := Reason(run(refusal("localnet.dev", "NOT_PUBLISHED")))
	equals(t, "reason", reason, pb.ErrorReason_ERROR_REASON_NOT_PUBLISHED)
	equals(t, "metadata", metadata, map[string]string{"key": "app"})
	for _, err := range []error{run(errDown), refusal("other.example", "NOT_PUBLISHED"), refusal("localnet.dev", "NEW"), errors.New("no status"), nil} {
		reason, _ = Reason(err)
		equals(t, fmt.Sprint(err), reason, pb.ErrorReason_ERROR_REASON_UNSPECIFIED)
	}
	if err := run(status.Error(codes.Unimplemented, "unknown service")); !strings.Contains(err.Error(), "--draft-v1") {
		t.Errorf("%v does not name the flag", err)
	}
}
