# Copyright The fixedip Authors
# SPDX-License-Identifier: Apache-2.0

# make demo     a StatefulSet that keeps its addresses, on a cluster of its own (KEEP=1 leaves it running)
# make test     all tests, with the race detector
# make verify   checks generated code, go.mod, format and lint
# make cluster  a cluster of real nodes on this machine, as root
# make e2e      all scenarios on such a cluster
# make help     all targets

BIN      := bin
DEMO_DIR ?= $(CURDIR)/.demo

# Read once, so that images keep their name if something is committed meanwhile.
ifndef VERSION
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
endif
export VERSION

# One set of flags for all builds, so that all share one build cache. Only the race detector needs cgo.
export GOFLAGS     := -trimpath
export CGO_ENABLED := 0

# The version has to begin with that of Kubernetes, because its metrics depend on it.
KUBERNETES_VERSION := $(shell go list -m -f '{{.Version}}' k8s.io/kubernetes)
LDFLAGS            := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES_VERSION)
OUR_LDFLAGS        := $(LDFLAGS) -X fixedip.io/fixedip/ipam/version.fixedip=$(VERSION)

TOOL := go tool -modfile=hack/tools/go.mod

.PHONY: help
help: ## Shows this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Downloads all modules
	go mod download
	go mod download -modfile=hack/tools/go.mod
	go mod download -modfile=hack/helm/go.mod

##@ Programs

PROGRAMS := fixedip-scheduler fixedip-controller kubectl-fixedip
# RACED are the programs that the tests run with the race detector. kubectl-fixedip does one thing at a time.
RACED    := fixedip-scheduler fixedip-controller
CLUSTER  := fixedip-controlplane fixedip-simnode

.PHONY: build
build: $(PROGRAMS:%=$(BIN)/%) ## Builds our programs

# Compiles everything, with progress. Later targets find the packages in the build cache.
.PHONY: programs
programs: build $(CLUSTER:%=$(BIN)/%) $(BIN)/demo $(RACED:%=$(BIN)/race/%) ## Builds all programs, including those of the demo and the tests

.PHONY: FORCE
FORCE:

# Go build finds out what has changed, not make.
$(PROGRAMS:%=$(BIN)/%): $(BIN)/%: FORCE
	@hack/build.sh $@ ./cmd/$* -ldflags '$(OUR_LDFLAGS)'

$(CLUSTER:%=$(BIN)/%): $(BIN)/fixedip-%: FORCE
	@hack/build.sh $@ ./hack/$* -ldflags '$(LDFLAGS)'

# The control plane and the kubelet of another minor version of Kubernetes.
KUBERNETES_MODULE = -modfile=hack/kubernetes-$*/go.mod
$(BIN)/kubernetes-%/fixedip-controlplane $(BIN)/kubernetes-%/fixedip-kubelet: FORCE
	@for program in controlplane kubelet; do \
	  hack/build.sh $(BIN)/kubernetes-$*/fixedip-$$program ./hack/$$program $(KUBERNETES_MODULE) \
	    -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$(go list -m $(KUBERNETES_MODULE) -f '{{.Version}}' k8s.io/kubernetes)" || exit; \
	done

$(BIN)/demo: FORCE
	@hack/build.sh $@ ./hack/demo

$(BIN)/pack: FORCE
	@hack/build.sh $@ ./hack/pack

.PHONY: images
images: build $(BIN)/pack ## Builds the images of the Dockerfile, without a container engine
	@$(BIN)/pack -tag $(VERSION) -out $(BIN)/images

# The folder of a release, the parts of it (programs,images,kubectl,chart; empty: all), the address under which its files are
# published, and the registry and folder of its images.
DIST             ?= dist
ONLY             ?=
RELEASE_URL      ?= https://fixedip.io/fixedip/releases/download
RELEASE_REGISTRY ?=

.PHONY: release
release: $(BIN)/release ## Writes the files of a release to dist: make release VERSION=v0.1.0 (ONLY=kubectl,chart: only these parts)
	@$(BIN)/release -version '$(VERSION)' -ldflags '$(OUR_LDFLAGS)' -out '$(DIST)' -only '$(ONLY)' -url '$(RELEASE_URL)' -registry '$(RELEASE_REGISTRY)'

$(BIN)/release: FORCE
	@hack/build.sh $@ ./hack/release

BENCHES := scheduler controller patcher

$(BENCHES:%=$(BIN)/bench/%): $(BIN)/bench/%: FORCE
	@hack/build.sh $@ ./test/bench/$* -ldflags '$(LDFLAGS)'

$(RACED:%=$(BIN)/race/%): $(BIN)/race/%: FORCE
	@CGO_ENABLED=1 hack/build.sh $@ ./cmd/$* -race -ldflags '$(OUR_LDFLAGS)'

##@ Demo

.PHONY: demo
demo: $(CLUSTER:%=$(BIN)/%) build $(BIN)/demo ## Runs the demo on a cluster of its own (KEEP=1 leaves it running)
	@$(BIN)/demo -bin $(BIN) -dir $(DEMO_DIR) $(if $(KEEP),-keep)

.PHONY: demo-stop
demo-stop: $(BIN)/demo ## Stops the cluster that make demo KEEP=1 left running
	@$(BIN)/demo -dir $(DEMO_DIR) -stop

##@ A cluster of real nodes

# Its properties; see docs/contributing/cluster.md.
CILIUM      ?= 1.19
KUBERNETES  ?= 1.34
NODES       ?= 2
FAMILIES    ?= IPv4
ROUTING     ?= tunnel
UPDATE_RATE ?= 1s
# processes, or none: the nodes have the images of fixedip and the image of manifests/examples, and wait until it is installed.
PRODUCT     ?= processes
CLUSTER_DIR ?= $(CURDIR)/.cluster

REAL      := fixedip-nodeinit fixedip-testpod fixedip-kubelet fixedip-kubectl

# CONTROL_PLANE is the control plane of the version KUBERNETES. Its rule builds the kubelet too.
CONTROL_PLANE := $(BIN)/$(if $(filter-out 1.34,$(KUBERNETES)),kubernetes-$(KUBERNETES)/)fixedip-controlplane
PREFLIGHT := $(BIN)/realcluster-preflight

.PHONY: cluster
cluster: preflight ## Starts a cluster with containerd, kubelets and Cilium; replaces an earlier one
	@$(MAKE) --no-print-directory cluster-programs $(if $(filter none,$(PRODUCT)),install-images)
	@$(BIN)/realcluster up --product=$(PRODUCT) $(if $(filter none,$(PRODUCT)),$(INSTALL_IMAGES:%=--image=%)) --dir=$(CLUSTER_DIR) --bin=$(BIN) --cilium=$(CILIUM) --nodes=$(NODES) \
	  --families=$(FAMILIES) --routing=$(ROUTING) --kubernetes=$(KUBERNETES) --update-rate=$(UPDATE_RATE)

# The images that docs/start/quickstart.md installs, under the names that it uses, and the one of manifests/examples.
INSTALL_IMAGES := $(BIN)/images/pages/fixedip-scheduler.tar $(BIN)/images/pages/fixedip-controller.tar $(BIN)/images/pages/example.tar

.PHONY: install-images
install-images: build $(BIN)/fixedip-testpod
	@hack/build.sh $(BIN)/pageimages ./hack/pageimages/cmd
	@$(BIN)/pageimages -bin $(BIN) -out $(BIN)/images/pages

.PHONY: cluster-down
cluster-down: $(BIN)/realcluster ## Stops it and deletes its files
	@$(BIN)/realcluster down --dir=$(CLUSTER_DIR)

.PHONY: kubectl
kubectl: $(BIN)/fixedip-kubectl ## Runs kubectl on it: make kubectl ARGS="get pods -A"
	@KUBECONFIG=$(CLUSTER_DIR)/control-plane/kubeconfig/admin.yaml $(BIN)/fixedip-kubectl $(ARGS)

# Checked before anything is compiled, which takes minutes.
.PHONY: preflight
preflight: $(PREFLIGHT) ## Prints what this machine lacks for such a cluster
	@$(PREFLIGHT) -nodes $(NODES)

.PHONY: cluster-programs
cluster-programs: build $(CONTROL_PLANE) $(REAL:%=$(BIN)/%) $(BIN)/realcluster cilium

.PHONY: cilium
cilium:
	@hack/realcluster/build-cilium.sh $(CILIUM) $(BIN)

$(PREFLIGHT): FORCE
	@hack/build.sh $@ ./hack/realcluster/cmd/preflight

$(BIN)/realcluster: FORCE
	@hack/build.sh $@ ./hack/realcluster/cmd/realcluster

$(BIN)/fixedip-nodeinit $(BIN)/fixedip-testpod: $(BIN)/fixedip-%: FORCE
	@hack/build.sh $@ ./hack/realcluster/$* -ldflags '-s -w'

$(BIN)/fixedip-kubelet $(BIN)/fixedip-kubectl: $(BIN)/fixedip-%: FORCE
	@hack/build.sh $@ ./hack/$* -ldflags '$(LDFLAGS)'

##@ End to end

# The scenarios to run, and the version of Cilium (CILIUM).
RUN      ?=
E2E_DIR  ?= $(CURDIR)/.e2e
# How often agents report the addresses that they use. It is Cilium's default.
E2E_RATE ?= 15s
# Whether our programs are killed in scenarios that allow it: too (in a second run of each), only, or none.
E2E_KILLS ?= too

# How many replacements of pods the scenario "time to come back" compares; 0 leaves it out.
E2E_PAIRS ?= 200

# How long after the start scenarios may begin; 0: without a limit.
E2E_LIMIT ?= 0

LINES := 1.18 1.19 1.20
comma := ,
space := $(subst ,, )

# Three nodes, and one that replaces another.
e2e e2e-matrix: NODES := 4

# How packets reach pods of other nodes: tunnel or native.
ROUTING ?= tunnel

.PHONY: e2e-programs
e2e-programs: ## Builds what make e2e runs, Cilium included
	@$(MAKE) --no-print-directory cluster-programs images $(BIN)/e2e

.PHONY: e2e
e2e: preflight ## Runs the scenarios on real nodes, as root (CILIUM=1.20, KUBERNETES=1.35, ROUTING=native, RUN='rebooted|drained')
	@$(MAKE) --no-print-directory e2e-programs
	@$(BIN)/e2e -bin $(BIN) -dir $(E2E_DIR) -tag $(VERSION) -cilium $(CILIUM) -kubernetes $(KUBERNETES) -routing $(ROUTING) -update-rate $(E2E_RATE) -kills $(E2E_KILLS) -pairs $(E2E_PAIRS) -limit $(E2E_LIMIT) -run '$(RUN)'

# How many clusters run at the same time.
BESIDE ?= 1
# The versions of Cilium, and further runs with native routing and with Kubernetes 1.35.
TARGETS ?= $(LINES) 1.19/native 1.20/1.35

.PHONY: e2e-matrix
e2e-matrix: preflight ## Runs the scenarios on all TARGETS, and writes docs/project/end-to-end.md and compatibility.md (BESIDE=3: three at the same time)
	@for line in $(LINES); do $(MAKE) --no-print-directory cluster-programs CILIUM=$$line || exit; done
	@$(MAKE) --no-print-directory cluster-programs KUBERNETES=1.35
	@$(MAKE) --no-print-directory images $(BIN)/e2e
	@$(BIN)/e2e -bin $(BIN) -dir $(E2E_DIR) -tag $(VERSION) -cilium $(subst $(space),$(comma),$(TARGETS)) -update-rate $(E2E_RATE) -beside $(BESIDE) -table docs/project/end-to-end.md -compatibility docs/project/compatibility.md

# A version can also be run alone: make e2e CILIUM=1.18.
.PHONY: e2e-table
e2e-table: $(BIN)/e2e ## Writes docs/project/end-to-end.md and compatibility.md from the last complete run on each version
	@$(BIN)/e2e -dir $(E2E_DIR) -cilium $(subst $(space),$(comma),$(LINES)) -last -table docs/project/end-to-end.md -compatibility docs/project/compatibility.md

$(BIN)/e2e: FORCE
	@hack/build.sh $@ ./test/e2e/scenarios

# The minimum number of barriers, over all nodes and disturbances, and the file that gets each of them as a line of JSON.
BARRIERS    ?= 70
BARRIER_OUT ?=

barrier: NODES := 4

.PHONY: barrier
barrier: preflight ## Asks real agents what they use while they are disturbed, and checks each answer (CILIUM=1.20 UPDATE_RATE=15s BARRIERS=70)
	@$(MAKE) --no-print-directory cluster-programs $(BIN)/barrier
	@$(BIN)/barrier -bin $(BIN) -dir $(CURDIR)/.barrier -cilium $(CILIUM) -update-rate $(UPDATE_RATE) -nodes $(NODES) -barriers $(BARRIERS) -out '$(BARRIER_OUT)'

$(BIN)/barrier: FORCE
	@hack/build.sh $@ ./test/e2e/barrier

##@ Tests

.PHONY: test
test: test-unit test-monitoring test-explore test-sim test-framework test-integration ## Runs all tests

# Go test compiles packages without tests too; those of the cluster take minutes.
TESTED := go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}'

# The programs are built first, because their build shows progress and that of tests does not.
.PHONY: test-unit
test-unit: $(RACED:%=$(BIN)/race/%) ## Runs unit tests, with the race detector
	CGO_ENABLED=1 go test -race -timeout 30m $$($(TESTED) ./cmd/... ./ipam/... ./plugins/... ./hack/... ./test/manifests ./test/pages)
	go test ./test/e2e/scenarios ./test/e2e/barrier

# promtool is built without service discovery, which would need hundreds of further packages.
$(BIN)/promtool: FORCE
	@hack/build.sh $@ github.com/prometheus/prometheus/cmd/promtool -modfile=hack/promtool/go.mod -tags remove_all_sd

.PHONY: test-monitoring
test-monitoring: $(BIN)/promtool ## Checks alerts, runbooks and dashboard, and runs each alert with promtool
	FIXEDIP_BIN=$(CURDIR)/$(BIN) go test -count=1 -timeout 10m ./test/monitoring

.PHONY: test-explore
test-explore: ## Explores the address protocol exhaustively at small scope, as far as a minute allows
	go test -v -count=1 -timeout 0 ./test/explore

# How many states each scope may have.
STATES ?= 10000000

.PHONY: explore
explore: ## Explores deeper (STATES=10000000 for each scope; a million states take about 0.5 GiB)
	FIXEDIP_STATES=$(STATES) go test -v -count=1 -timeout 0 ./test/explore -run 'TestExplore$$'

.PHONY: test-sim
test-sim: ## Runs the product in a model of the cluster for a minute with a fixed seed, compares the model's agent with Cilium's allocator, and checks that each mutation applies
	CGO_ENABLED=1 go test -race -count=1 -timeout 30m ./test/sim -rapid.nofailfile -rapid.seed=1
	go test -count=1 -timeout 20m ./test/sim/agent ./test/sim/mutate

# One run of the model is 300 steps. A seed of 0 is drawn.
STEPS ?= 100000
SEED  ?= 0

.PHONY: sim
sim: ## Runs the product in a model of the cluster (STEPS=1000000 SEED=1)
	go test -v -count=1 -timeout 0 ./test/sim -run 'TestModel$$' -rapid.nofailfile -rapid.checks=$$(( ($(STEPS) + 299) / 300 )) -rapid.seed=$(SEED)

.PHONY: sim-mutations
sim-mutations: ## Puts bugs into the product, one at a time, and checks that the model detects each
	go run ./test/sim/mutate

# How long each target is fuzzed, and which: all if empty. Their corpora are also part of make test.
FUZZTIME ?= 10s
FUZZ     ?=

.PHONY: fuzz
fuzz: ## Runs each fuzz target (FUZZTIME=1m FUZZ=FuzzParse)
	@hack/fuzz.sh $(FUZZTIME) '$(FUZZ)'

.PHONY: test-framework
test-framework: $(BIN)/fixedip-controlplane $(CONTROL_PLANE) ## Runs the plugin in a scheduler, on a real API server (KUBERNETES=1.35)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_CONTROL_PLANE=$(CURDIR)/$(CONTROL_PLANE) CGO_ENABLED=1 go test -race -count=1 -timeout 20m ./test/framework

# Failing every write takes five minutes, and a soak even longer: make faults and make soak run them in full.
.PHONY: test-integration
test-integration: $(CLUSTER:%=$(BIN)/%) $(CONTROL_PLANE) build $(RACED:%=$(BIN)/race/%) ## Runs the tests on a real API server and Cilium's allocator (KUBERNETES=1.35)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_CONTROL_PLANE=$(CURDIR)/$(CONTROL_PLANE) go test -v -count=1 -parallel 3 -timeout 40m ./test/integration -skip '(TestEveryWriteFails|TestSoak)$$'

FAULT_PROGRAMS := $(CLUSTER:%=$(BIN)/%) $(RACED:%=$(BIN)/race/%)

FAULTS ?= all

.PHONY: faults
faults: $(FAULT_PROGRAMS) ## Fails every write of both programs in each of three ways (FAULTS=share: in one of them)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_FAULTS=$(FAULTS) go test -v -count=1 -timeout 0 ./test/integration -run 'TestEveryWriteFails$$'

# The number of kills; make test has ten.
KILLS ?= 500

.PHONY: kills
kills: $(FAULT_PROGRAMS) ## Kills programs and control plane at random while pods come and go (KILLS=50 SEED=1; a seed of 0 is drawn)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_KILLS=$(KILLS) FIXEDIP_SEED=$(SEED) go test -v -count=1 -timeout 0 ./test/integration -run 'TestKilledAtRandom$$'

# How often an address becomes free for a waiting pod, and for how many seconds two schedulers run; make test has 60
# and 10.
WAKEUPS ?= 1000
CHURN   ?= 120

.PHONY: races
races: $(FAULT_PROGRAMS) ## Repeats the tests that look for lost wake-ups and for claims of two schedulers (WAKEUPS=1000 CHURN=120)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_WAKEUPS=$(WAKEUPS) FIXEDIP_CHURN=$(CHURN) go test -v -count=1 -timeout 0 ./test/integration -run '(TestNoLostWakeUps|TestTwoActiveSchedulers)$$'

# The number of StatefulSets, six for each node; make test has 60.
STATEFULSETS ?= 1200

.PHONY: mass-restart
mass-restart: $(FAULT_PROGRAMS) $(BIN)/fixedip-controller $(BIN)/fixedip-scheduler ## Restarts the pods of many StatefulSets at once, and counts the requests of both programs (STATEFULSETS=1200)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_STATEFULSETS=$(STATEFULSETS) go test -v -count=1 -timeout 0 ./test/integration -run 'TestMassRestart$$'

# The duration of the churn.
SOAK ?= 1h

.PHONY: soak
soak: $(FAULT_PROGRAMS) $(BIN)/fixedip-controller $(BIN)/fixedip-scheduler ## Creates and deletes pods, and checks that memory and goroutines do not grow (SOAK=3m SEED=1)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_SOAK=$(SOAK) FIXEDIP_SEED=$(SEED) go test -v -count=1 -timeout 0 ./test/integration -run 'TestSoak$$'

# How long the acts of the demo are repeated for the picture.
RECORD ?= 12m

.PHONY: dashboard
dashboard: $(CLUSTER:%=$(BIN)/%) build $(BIN)/demo ## Draws the Grafana dashboard from a run of the demo into docs/reference/dashboard.svg (RECORD=12m)
	rm -rf $(CURDIR)/.dashboard && mkdir $(CURDIR)/.dashboard
	$(BIN)/demo -bin $(BIN) -dir $(CURDIR)/.dashboard/cluster -record $(RECORD) -scrapes $(CURDIR)/.dashboard/scrapes
	cd hack/promtool && go run ./dashboard -scrapes $(CURDIR)/.dashboard/scrapes -dashboard $(CURDIR)/manifests/prometheus/dashboard.json -out $(CURDIR)/docs/reference/dashboard.svg

##@ Measurements

# The numbers of nodes, of running pods on each node, of pods of each arm, of pods that wait for slots meanwhile, and of
# rounds. QPS is the maximum number of requests per second of a scheduler. If it is far more than the API server can serve,
# the API server refuses binds, which the scheduler sends again after a second, and the rates of C and F vary a lot.
SIZES     ?= 500 1000 5000
BOUND     ?= 0
BURST     ?= 1000
QPS       ?= 500
SEARCHING ?= 0
ROUNDS    ?= 5
# The folder for the figures and charts.
FIGURES ?= $(CURDIR)/.bench/figures

BENCH = $(BIN)/bench/scheduler -bin $(BIN) -dir $(CURDIR)/.bench/cluster -bound $(BOUND) -pods $(BURST) -rounds $(ROUNDS) -qps $(QPS) -searching $(SEARCHING) \
  -reports=$(if $(REPORTS),true,false) -commit $(VERSION) -out $(FIGURES) $(if $(PROFILES),-profiles $(PROFILES))
BENCH_PROGRAMS := $(BIN)/fixedip-controlplane $(BIN)/fixedip-scheduler $(BIN)/bench/scheduler $(BIN)/bench/patcher

.PHONY: bench
bench: $(BENCH_PROGRAMS) ## Measures scheduling beside a scheduler without FixedIP (SIZES="500 5000" BOUND=30 BURST=1000 ROUNDS=5 REPORTS=1 SEARCHING=100 ARMS=A,B PROFILES=folder)
	@for nodes in $(SIZES); do $(BENCH) -nodes $$nodes -arms '$(ARMS)' || exit; done

bench-check: NODES := 5000

.PHONY: bench-check
bench-check: $(BENCH_PROGRAMS) ## Compares ratios, memory, first bind and requests with test/perf/limits.yaml (NODES=500 ROUNDS=4: the short version)
	@$(BENCH) -nodes $(NODES) -arms '$(ARMS)' -limits test/perf/limits.yaml

# The packages with micro-benchmarks, the number of runs of each, and the file of a former result to compare with.
MICRO := ./ipam/core/address ./ipam/core/ledger ./ipam/core/subnetplan ./ipam/store/packed ./ipam/controller/subnet \
  ./plugins/fixedip/binder ./plugins/fixedip/cache
COUNT ?= 6
OLD   ?=

.PHONY: bench-micro
bench-micro: ## Runs the micro-benchmarks and prints their medians; writes micro.txt into FIGURES (COUNT=6 OLD=file: compares with a former micro.txt)
	@mkdir -p $(FIGURES)
	go test -run '^$$' -bench . -count $(COUNT) $(MICRO) > $(FIGURES)/micro.new || { cat $(FIGURES)/micro.new; exit 1; }
	$(TOOL) benchstat $(OLD) $(FIGURES)/micro.new
	@mv $(FIGURES)/micro.new $(FIGURES)/micro.txt

PODS     ?= 150000
FIXEDIPS ?= 50000
# The number of joining nodes, of restarted pods, of released addresses and of nodes on which pods end at the same time, and the
# time without changes.
JOIN     ?= 200
RESTART  ?= 10000
RELEASE  ?= 10000
ENDING   ?= 32
IDLE     ?= 10m

bench-controller: NODES := 5000

.PHONY: bench-controller
bench-controller: $(BIN)/fixedip-controlplane $(BIN)/fixedip-controller $(BIN)/bench/controller ## Measures the controller at NODES, PODS and FIXEDIPS; needs 24 GiB and minutes (JOIN=200 RESTART=10000 RELEASE=10000 ENDING=32 IDLE=10m PROFILES=folder: CPU and heap profiles of each step; ADOPT=1: adoption)
	@$(BIN)/bench/controller -bin $(BIN) -dir $(CURDIR)/.bench/cluster -nodes $(NODES) -pods $(PODS) -fixedips $(FIXEDIPS) -adopt=$(if $(ADOPT),true,false) \
	  -join $(JOIN) -restart $(RESTART) -release $(RELEASE) -ending $(ENDING) -idle $(IDLE) \
	  -commit $(VERSION) -out $(FIGURES)/controller$(if $(ADOPT),-adoption).json $(if $(PROFILES),-profiles $(PROFILES))

.PHONY: claims
claims: $(FAULT_PROGRAMS) ## Measures claims per second, compared with the guide's method
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_CLAIM_ROUNDS=10 go test -v -count=1 ./test/integration -run 'TestCostOfAClaim$$'

.PHONY: test-e2e
test-e2e: preflight ## Runs the tests on real nodes, as root (CILIUM=1.18 or 1.20: on another Cilium)
	@$(MAKE) --no-print-directory cluster-programs
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_CILIUM=$(CILIUM) go test -v -count=1 -timeout 60m ./test/e2e

# Pages and examples of the documentation, in the order of the pages. PAGES is a regular expression.
PAGES ?=

.PHONY: test-pages
test-pages: NODES := 3
test-pages: preflight ## Runs the commands of docs/start and docs/tasks, and manifests/examples, on real nodes, as root (PAGES='failover')
	@$(MAKE) --no-print-directory cluster-programs
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_CILIUM=$(CILIUM) FIXEDIP_PAGES='$(PAGES)' go test -v -count=1 -timeout 60m ./test/pages/cluster

# The commit to upgrade from; empty: the last tag before HEAD, or the commit before HEAD.
PREVIOUS ?=

.PHONY: test-upgrade
test-upgrade: preflight ## Upgrades from the chart and the programs of a commit and back while StatefulSets roll, as root (PREVIOUS=v0.1.0)
	@$(MAKE) --no-print-directory cluster-programs
	@hack/previous.sh $(CURDIR)/.previous $(PREVIOUS)
	FIXEDIP_BIN=$(CURDIR)/$(BIN) FIXEDIP_PREVIOUS=$(CURDIR)/.previous FIXEDIP_CILIUM=$(CILIUM) go test -v -count=1 -timeout 60m ./test/e2e -run 'TestUpgrade$$'

##@ Maintenance

.PHONY: generate
generate: ## Generates deep copies, the CRD manifest, the manifests that come from the chart, and docs/reference
	$(TOOL) controller-gen object:headerFile=hack/boilerplate.go.txt paths=./ipam/api/... paths=./plugins/apis/...
	$(TOOL) controller-gen crd paths=./ipam/api/... output:crd:dir=manifests/crd
	go run ./hack/render
	go run ./hack/reference

VULNDB ?= https://vuln.go.dev

.PHONY: vulncheck
vulncheck: ## Looks for known vulnerabilities in the code that our programs call (VULNDB=file:///folder: without the internet)
	@hack/vulncheck.sh $(VULNDB)

.PHONY: lint
lint: ## Runs the linters of .golangci.yml
	$(TOOL) golangci-lint run

.PHONY: verify
verify: generate ## Checks generated code, go.mod, format and lint
	go mod tidy
	cd hack/tools && go mod tidy
	cd hack/helm && go mod tidy
	cd hack/promtool && go mod tidy
	$(TOOL) golangci-lint fmt
	$(TOOL) golangci-lint run
	@headless=$$(git grep -L SPDX-License-Identifier -- '*.sh' Makefile .ci/run); [ -z "$$headless" ] || { echo "no license header: $$headless"; exit 1; }
	git diff --exit-code
