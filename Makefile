# localnet's tasks. `make help` lists them.
.PHONY: help deps controlplane helm vm wine ebpf python go examples contract cluster build demo test simulate simulate-mutants museum conformance-ipvs chart images packages release differential dns differential-ipvs faults-ipvs kernels oldest kubernetes kubernetes-migrate fuzz mutants lint deny bless bench bench-scale instructions bench-ipvs clean
.DEFAULT_GOAL := help

CARGO ?= cargo

help: ## List the tasks
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

deps: ## Install the Debian packages that the demo and the tests need
	@e2e/deps.sh

controlplane: ## Build etcd, kube-apiserver, kube-controller-manager, kube-proxy and grpcurl from Go modules (cached)
	@e2e/controlplane/build.sh

helm: ## Build helm, kubectl, actionlint and an image registry for tests from Go modules (cached)
	@e2e/helm/build.sh

vm: ## Build the guest (a Debian kernel) for tests that need IPVS, in .cache; installs QEMU
	@e2e/deps.sh guest
	@e2e/vm/build.sh

wine: ## Install mingw and Wine in .cache, and build localnet-brain, localnet-win and localnet-node for Windows
	@e2e/deps.sh windows
	@e2e/wine/build.sh
	@[ "$$(uname -m)" != x86_64 ] || e2e/wine/cargo build --locked -p localnet-brain -p localnet-win -p localnet-node

ebpf: ## Build the eBPF programs and store the result in backend-ebpf/programs (needs Debian on x86_64)
	@backend-ebpf/programs/build.sh

go: deps ## Test the Go library, and check that its generated code matches the proto
	@go/generate.sh verify
	@cd go && unformatted=$$(gofmt -l . ../examples/go) && [ -z "$$unformatted" ] || { echo "run gofmt -w on: $$unformatted" >&2; exit 1; }
	cd go && go vet ./... && GOOS=windows go vet ./... && go test -race ./...
	cd examples/go && go vet ./...

examples: deps ## Build the examples in other languages, into .cache
	@examples/build.sh

python: deps ## Create a Python environment in .cache, test the Python library, and check that its generated code matches the proto
	@e2e/python.sh
	@python/generate.sh verify
	cd python && $(or $(LOCALNET_CACHE),../.cache)/python/venv/bin/python -m unittest discover -s tests -t .

contract: deps ## Check the names and comments in the proto files with buf, and that they break no client of the last release
	@proto/buf.sh

cluster: controlplane helm ## Build the programs and the images of a cluster of real nodes from Go modules and Debian packages (cached)
	@e2e/deps.sh kubernetes
	@e2e/kubernetes/build.sh
	@e2e/kubernetes/images.sh build

build: ## Build the programs in release mode, into target/release
	$(CARGO) build --release --locked -p localnet $(patsubst packaging/systemd/%.service,-p %,$(wildcard packaging/systemd/*.service))

demo: deps ## Run brain and nft backend in a temporary network namespace and print the Services and their rates (UI=1: also serve the page of localnet ui; ONCE=1: one round; TESTED=1: use the programs of make test)
	$(CARGO) build --locked $(if $(TESTED),--workspace --bins --examples,-p localnet-brain -p localnet-nft -p localnet-demo $(if $(UI),-p localnet))
	target/debug/localnet-demo $(if $(ONCE),--once) $(if $(UI),--ui)

test: deps cluster vm wine python go examples contract ## Run all tests: unit, Cases, protocol, kernel, system (needs root for network namespaces)
	@[ "$$(id -u)" = 0 ] || { echo "make test creates network namespaces: run it as root" >&2; exit 1; }
	@backend-ebpf/programs/build.sh verify
	$(CARGO) build --locked --workspace --bins --examples
	$(CARGO) test --locked --workspace --no-run
	@e2e/test.sh

conformance-ipvs: deps vm ## Run the conformance kit on localnet-ipvs in the guest, with all levels and the packets of all Cases (25 minutes)
	$(CARGO) build --locked --workspace --bins
	target/debug/localnet-vm --timeout 5400 -- target/debug/localnet-conformance --at-a-time 1 --patience 240 \
		--claims tcp,udp,sctp,ipv4,ipv6,cluster-ip,external,node-port,answers,source,reject,drop,scopes,affinity,weights,hash,flows,outside \
		--backend 'target/debug/localnet-ipvs --api {api} {flags}' --cleanup 'target/debug/localnet-ipvs cleanup' \
		--read-back 'target/debug/localnet-ipvs dump' --flush "sh -c 'ipvsadm -C && nft flush ruleset'"

chart: controlplane helm ## Test the chart (lint, golden manifests, a real API server) and build its package in target/
	$(CARGO) build --locked --workspace --bins
	$(CARGO) test --locked -p localnet-ship --test chart
	.cache/helm/bin/helm package charts/localnet --destination target

images: ## Build OCI images of all programs in target/images, from static binaries (VERIFY=1: build twice and compare the digests)
	@e2e/deps.sh images
	packaging/images.sh
	$(if $(VERIFY),packaging/images.sh verify)

packages: ## Build the Debian package in target/
	packaging/deb.sh

release: ## Build all files of a release in target/dist (TAG=vX.Y.Z: fail if this is not the current version)
	@e2e/deps.sh images
	packaging/release/build.sh

simulate: ## Simulate a node with SEEDS (500) new seeds of changes and faults (FIRST=… is the first seed; TESTED=1: use the program of make test; docs/simulation.md)
	$(if $(TESTED),,e2e/sim/build.sh)
	target/$(if $(TESTED),debug,simulation)/localnet-sim search --seeds $(or $(SEEDS),500) $(if $(FIRST),--first $(FIRST))

simulate-mutants: ## Plant each mutant of e2e/sim/mutants, and check that the simulation finds it within SEEDS (1000) seeds (docs/simulation.md)
	@SEEDS=$(or $(SEEDS),1000) e2e/sim/mutants.sh

museum: deps ## Plant each old bug of docs/museum.md, and check that its tests pass without it and fail with it (ROWS='B-02 …': a part; needs root)
	@e2e/museum.sh $(ROWS)

differential: deps controlplane ## Compare the oracle, our backends and kube-proxy on random clusters with N (20000) random packets (SEED=… repeats a run; PEER=previous: with kube-proxy of the previous minor version; EVALUATE=…: so many more packets in each state, which `localnet shadow` evaluates and nobody sends)
	@[ "$(PEER)" != previous ] || e2e/controlplane/build.sh kube-proxy-previous
	$(CARGO) build --locked -p localnet-brain -p localnet-nft -p localnet-iptables -p localnet-ebpf -p localnet
	STRICT=1 N=$(or $(N),20000) SEED=$(SEED) PEER=$(PEER) EVALUATE=$(or $(EVALUATE),0) $(CARGO) test --locked -p localnet-e2e --test system differential:: -- --nocapture

differential-ipvs: deps controlplane vm ## Compare the oracle and localnet-ipvs in the guest, with N (2000) random packets, and localnet shadow with kube-proxy's mode ipvs, with as many (20 minutes; EVALUATE (250): the number of packets that shadow evaluates in each state)
	$(CARGO) build --locked -p localnet-brain -p localnet-nft -p localnet-ipvs -p localnet
	STRICT=1 N=$(or $(N),2000) SEED=$(SEED) EVALUATE=$(EVALUATE) $(CARGO) test --locked -p localnet-e2e --test guest_system differential:: -- --nocapture

faults-ipvs: deps vm ## Create all faults of e2e/faults with localnet-ipvs in the guest, and check that `localnet explain --why-not` names the causes (15 minutes)
	$(CARGO) build --locked -p localnet-brain -p localnet-ipvs -p localnet
	FAULTS=all $(CARGO) test --locked -p localnet-e2e --test guest_system faults:: -- --nocapture

kernels: deps vm ## Send the packets of all Cases through nft and iptables on the kernels of Debian 11, 12, 13 and of backports, in the guest (hours; KERNELS='bullseye …', BACKENDS='nft …' and ONLY=packets/udp,… run a part)
	$(CARGO) build --locked -p localnet-vm -p localnet-conformance -p localnet-nft -p localnet-iptables -p localnet
	@ONLY=$(ONLY) BACKENDS="$(BACKENDS)" e2e/vm/kernels.sh $(KERNELS)

dns: deps controlplane ## Compare the answers of examples/dns with those of CoreDNS, on a real API server, with all questions (the first run builds CoreDNS)
	@e2e/kubernetes/build.sh coredns
	$(CARGO) build --locked -p localnet-brain -p localnet-dns-example
	QUESTIONS=all $(CARGO) test --locked -p localnet-e2e --test coredns -- --nocapture

oldest: deps controlplane ## Test the brain with the API server of the oldest supported Kubernetes, 1.29 (the first run builds it)
	@e2e/controlplane/build.sh kube-apiserver-oldest
	$(CARGO) build --locked -p localnet-brain -p localnet-nft -p localnet
	APISERVER=oldest $(CARGO) test --locked -p localnet-e2e --test system -- api_server:: cluster:: rbac:: restored::

kubernetes: cluster ## Run Kubernetes' own network tests on a cluster of real nodes, with kube-proxy and with localnet, for docs/conformance.md (two and a half hours; QUICK=1: a part, with nft on two nodes; PROXIES=…; needs root)
	@QUICK=$(QUICK) e2e/kubernetes/run.sh $(PROXIES)

kubernetes-migrate: cluster ## Migrate from kube-proxy and back, upgrade, drain nodes and update a Deployment under load, on a cluster of real nodes (40 minutes; STEPS=…; needs root)
	@e2e/kubernetes/run.sh migrate $(STEPS)

fuzz: ## Fuzz each target for SECONDS (20); inputs that break a target are stored in e2e/fuzz/corpus
	FUZZ_SECONDS=$(or $(SECONDS),20) $(CARGO) test --locked --workspace --lib --test fuzz fuzz_ -- --nocapture --test-threads 2

lint: ## Check formatting, clippy and documentation, and run `make deny`
	$(CARGO) fmt --all --check
	rustfmt --check --edition 2024 backend-ebpf/programs/main.rs
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p localnet-client --no-default-features --all-targets -- -D warnings
	@# --all-targets also turns on the features that only tests need.
	$(CARGO) check --locked -p localnet-client --no-default-features --lib
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet --lib --examples --bin localnet-bench --bin localnet-demo
	@$(MAKE) --no-print-directory deny

deny: ## Check licences, sources and advisories of dependencies with cargo-deny (the first run builds it in .cache: two minutes)
	@$(CARGO) deny --version >/dev/null 2>&1 || PATH="$(CURDIR)/.cache/cargo-deny/bin:$$PATH" $(CARGO) deny --version >/dev/null 2>&1 || \
		CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --quiet --locked --debug --root .cache/cargo-deny --version ^0.20 cargo-deny
	@PATH="$(CURDIR)/.cache/cargo-deny/bin:$$PATH"; export PATH; \
	$(CARGO) deny --all-features check --hide-inclusion-graph bans licenses sources || exit 1; \
	if timeout 60 $(CARGO) deny fetch db >/dev/null 2>&1; then $(CARGO) deny check --disable-fetch advisories; \
	elif [ "$(ADVISORIES)" = required ]; then echo "advisories were not checked: their database cannot be fetched" >&2; exit 1; \
	else echo "advisories were NOT checked: their database (github.com/rustsec/advisory-db) cannot be fetched from here"; fi

mutants: ## Invert each decision of the brain and check that a unit test notices (20 minutes; FILE=cluster/src/… for one file)
	@$(CARGO) mutants --version >/dev/null 2>&1 || PATH="$(CURDIR)/.cache/cargo-mutants/bin:$$PATH" $(CARGO) mutants --version >/dev/null 2>&1 || \
		$(CARGO) install --quiet --locked --debug --root .cache/cargo-mutants cargo-mutants
	@PATH="$(CURDIR)/.cache/cargo-mutants/bin:$$PATH" $(CARGO) mutants --package localnet-cluster $(if $(FILE),--file $(FILE)) -- --lib || case $$? in 2|3) ;; *) exit 1;; esac
	@cd target/mutants.out && cat missed.txt && wc -l caught.txt missed.txt timeout.txt | awk \
		'/txt$$/ { n[$$2] = $$1 } \
		END { good = n["caught.txt"] + n["timeout.txt"]; all = good + n["missed.txt"]; score = all ? 100 * good / all : 0; \
		printf "%d caught, %d missed, score %.1f %% (the goal is at least 97 %%)\n", good, n["missed.txt"], score; exit score < 97 }'

bless: deps helm ## Rewrite the expectations (golden files) and generated docs; read the diff before you commit it
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-core --test page
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-proto --test generated
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-config --test defaults --test page
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-brain --test cases
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-brain --lib the_page_lists_every_metric
	UPDATE_EXPECT=1 $(CARGO) test --locked $(patsubst backend-%/tests/cases.rs,-p localnet-%,$(wildcard backend-*/tests/cases.rs)) --test cases states_give_plans
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-win --lib states_give_plans
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-proto --test api
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-ship --test chart values_give_the_golden_manifests
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-ship --test chart readme_has_the_table_of_values
	$(CARGO) build --locked --workspace --bins
	UPDATE_EXPECT=1 $(CARGO) test --locked -p localnet-e2e --test why_not debugging::
	git diff --stat

bench: deps controlplane ## Measure localnet and kube-proxy for docs/PERFORMANCE.md (two hours; QUICK=1: 10 minutes, into target/bench; CONTINUE=1: resume an interrupted run; needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make bench creates network namespaces: run it as root" >&2; exit 1; }
	$(CARGO) build --release --locked --workspace --bins --bench steps --bench nft --bench reduction --bench replay --bench ebpf --bench from_yaml
	mkdir -p target/bench
	$(if $(CONTINUE),,rm -f target/bench/runs.jsonl)
	$(CARGO) bench --locked --workspace --bench steps -- --noplot $(if $(QUICK),--quick)
	QUICK=$(QUICK) FIGURES=$(CURDIR)/target/bench/kernel.json $(CARGO) bench --locked --workspace --bench nft
	FIGURES=$(CURDIR)/target/bench/reduction.json $(CARGO) bench --locked --workspace --bench reduction
	FIGURES=$(CURDIR)/target/bench/ebpf.json $(CARGO) bench --locked --workspace --bench ebpf
	QUICK=$(QUICK) FIGURES=$(CURDIR)/target/bench/replay.json $(CARGO) bench --locked --workspace --bench replay
	$(if $(QUICK),SERVICES=1000) $(CARGO) bench --locked --workspace --bench from_yaml
	target/release/localnet-bench --kernel target/bench/kernel.json --reduction target/bench/reduction.json --ebpf target/bench/ebpf.json --replay target/bench/replay.json --criterion target/criterion --runs target/bench/runs.jsonl \
		$(if $(QUICK),--quick --output target/bench,--output docs)

bench-scale: deps controlplane ## Measure localnet and kube-proxy in a cluster of 5,000 real Deployments for docs/scale.md (20 minutes, and once 12 more; QUICK=1: 200 Deployments, 5 minutes, into target/bench; CONTINUE=1: resume an interrupted run; needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make bench-scale creates network namespaces: run it as root" >&2; exit 1; }
	$(CARGO) build --release --locked -p localnet-brain -p localnet-nft -p localnet-iptables -p localnet-bench
	mkdir -p target/bench
	$(if $(CONTINUE),,rm -f target/bench/scale.jsonl)
	target/release/localnet-bench --runs target/bench/scale.jsonl --scale $(if $(QUICK),target/bench/scale.md --quick,docs/scale.md)

instructions: deps ## Compare the instructions of each step of a change with those committed, ± 3 % (needs root; UPDATE_EXPECT=1: commit these)
	UPDATE_EXPECT=$(UPDATE_EXPECT) $(CARGO) bench --locked -p localnet-instructions --bench instructions

bench-ipvs: deps controlplane vm ## Measure localnet-ipvs and kube-proxy's mode ipvs in the guest for docs/backends/ipvs.md (up to two hours; needs root)
	@[ "$$(id -u)" = 0 ] || { echo "make bench-ipvs creates network namespaces: run it as root" >&2; exit 1; }
	$(CARGO) build --release --locked --workspace --bins
	target/release/localnet-bench --ipvs docs/backends/ipvs.md $(if $(QUICK),--quick)

clean: ## Remove all built files, including caches
	$(CARGO) clean
	rm -rf .cache
