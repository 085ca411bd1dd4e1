# Everything is built with the Go toolchain alone: no cgo, no code generation, no downloads but Go modules.
export CGO_ENABLED := 0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# What runs the tests; a binary of it does too (make test GOTESTSUM=gotestsum), where there is no network.
GOTESTSUM := go run gotest.tools/gotestsum@v1.13.0
# How long each fuzzer runs in `make fuzz`.
FUZZTIME ?= 30s

# The Kubernetes whose own servers the tests of the Kubernetes side run. test/kube/servers/go.mod names it too.
KUBERNETES := v1.36.3

# $(call gotest,NAME,PACKAGES,FLAGS) runs tests, and up to four that failed once more, alone: a machine that is busy with other things starves
# one now and then. One that fails twice fails the run, and so does a panic, a build that fails, a package whose time is over, and a process
# that died before all of its tests had an end, which internal/testlog sees to. It also says at the end, in capitals, what passed only alone.
gotest = $(GOTESTSUM) --format pkgname-and-test-fails --format-hide-empty-pkg --hide-summary skipped --no-color \
	  --rerun-fails=1 --rerun-fails-max-failures=4 --rerun-fails-run-root-test --jsonfile bin/$(1).json --packages "$(2)" \
	  -- -parallel 3 -timeout 90m -ldflags=-w $(3); status=$$?; \
	go run ./internal/testlog bin/$(1).json || status=1

.PHONY: build test test-kube crash kube-servers restore-matrix demo bench lint fuzz cross soak soak-farm

build: ## bin/ichor and bin/talossim
	go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/ ./cmd/ichor ./cmd/talossim

# Two packages at a time, and few tests of each side by side: most of their time simulated machines wait. Kubernetes's servers are built in
# what the tests leave of the processors.
test: lint cross ## every check and every test
	@mkdir -p bin
	nice -n 19 $(MAKE) kube-servers > bin/kube-servers.log 2>&1 & servers=$$!; \
	$(call gotest,test,$$(go list ./... | grep -v /test/kube | tr '\n' ' '),-p 2); \
	wait $$servers; exit $$status
	$(MAKE) test-kube

test-kube: kube-servers ## the Kubernetes side, against Kubernetes's own servers
	export ICHOR_KUBE_SERVERS=$(CURDIR)/bin/kube-servers; $(call gotest,test-kube,./test/kube/...,-count=1); exit $$status

kube-servers: ## bin/kube-servers: Kubernetes's API server, controller manager and scheduler (minutes, the first time)
	cd test/kube/servers && go build -o $(CURDIR)/bin/kube-servers -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) \
	  -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" .

restore-matrix: kube-servers ## every scenario of a restore on simulated machines, agents killed at every point of each kind, every size under Kubernetes's servers (hours)
	@mkdir -p bin; rm -f bin/restore-crash.jsonl
	ICHOR_CRASH_MATRIX=$(CURDIR)/bin/restore-crash.jsonl go test -count=1 -parallel 1 -timeout 6h -ldflags=-w -v \
	  -run 'TestRestoresOnSimulatedMachines|TestAnAgentKilledAtEveryPointOfARestore' ./reconcile -restore-matrix -restore-crash all || failed=1; \
	ICHOR_KUBE_SERVERS=$(CURDIR)/bin/kube-servers go test -count=1 -parallel 1 -timeout 2h -ldflags=-w -run TestARestoreBringsBack ./test/kube -every-restore || failed=1; \
	go run ./internal/crashmatrix/table bin/restore-crash.jsonl || failed=1; test -z "$$failed"

lint: ## formatting, vet, staticcheck
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

cross: ## the command compiles for the desktops people sit at (type-checked, not built)
	go run ./internal/crosscheck ./cmd/ichor darwin/arm64 windows/amd64

demo: build ## a cluster comes up from a Git repository (STATE=s3 keeps the state in a bucket, DEMO_KEEP=1 stays up)
	go build -ldflags=-w -o bin/demo ./internal/demo
	bin/demo -bin bin $(if $(filter s3,$(STATE)),-state s3) $(if $(filter 1,$(DEMO_KEEP)),-keep)

crash: ## every procedure but restores on simulated machines (make restore-matrix), with processes killed at each of its points
	@mkdir -p bin; rm -f bin/crash.jsonl
	ICHOR_CRASH_FULL=1 ICHOR_CRASH_MATRIX=$(CURDIR)/bin/crash.jsonl go test -count=1 -p 1 -parallel 3 -timeout 180m -ldflags=-w \
	  -run 'Killed' -skip OfARestore ./recovery ./reconcile || failed=1; \
	go run ./internal/crashmatrix/table bin/crash.jsonl || failed=1; test -z "$$failed"

bench: ## the table of docs/benchmarks.md and its plot (hours); it ends with the command that puts them into docs/
	@mkdir -p bin
	go run ./internal/bench -keep bin/bench.jsonl -plot bin/fleet.svg

# Random histories: SEEDS of them from FIRST on. One that fails is printed, with the command that replays it.
SEEDS ?= 100
FIRST ?= 1

soak: ## random histories of whole clusters (SEEDS=n [FIRST=s] [RESTORES=1] [FROZEN=1] [HOSTED=1] [ONLY=events])
	GOGC=400 go test ./internal/soak -run '^TestRandomHistories$$' -count=1 -v -timeout 48h -soak.seeds $(SEEDS) -soak.first $(FIRST) \
	  $(if $(RESTORES),-soak.restores) $(if $(FROZEN),-soak.frozen) $(if $(HOSTED),-soak.hosted) $(if $(ONLY),-soak.only $(ONLY))

soak-farm: ## the same with simulated machines and a real etcd in each, minutes a seed (SEEDS=n [FIRST=s])
	go test ./internal/soak -run '^TestRandomHistoriesOfSimulatedMachines$$' -count=1 -v -timeout 48h -soak.farms $(SEEDS) -soak.first-farm $(FIRST)

# Each package with fuzzers is built once. What they find worth keeping stands where `go test -fuzz` keeps it.
fuzz: ## every fuzzer for FUZZTIME
	@mkdir -p bin; kept=$$(go env GOCACHE)/fuzz/$$(go list -m); \
	for package in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u); do \
	  go test -c -ldflags=-w -fuzz=Fuzz -o bin/fuzz.test $$package || exit 1; \
	  for fuzzer in $$(cat $$package/*_test.go | sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p'); do \
	    echo "$$package $$fuzzer"; \
	    (cd $$package && $(CURDIR)/bin/fuzz.test -test.run='^$$' -test.fuzz="^$$fuzzer\$$" -test.fuzztime=$(FUZZTIME) \
	      -test.fuzzminimizetime=10x -test.fuzzcachedir=$$kept/$$package) || exit 1; \
	  done; \
	done
