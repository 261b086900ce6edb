# Everything runs in .venv inside the checkout. `make` alone lists the targets.
#
#   PYTHON=python3.12 make venv   another interpreter (>= 3.11)
#   INPUT=dir make demo           ship another directory than the standard library's source
#   SEEDS=300 make sim            simulate this many seeds, each for SECONDS=40 of trouble
#   RECORD=yes make golden        write what is to be compared, instead of comparing
#   EXPLORE="--terms 1 --duplicates 1" make explore
#   BENCH="--scenario sync-1x64 --runs 1" make bench
#   PEERS="--peers nats --rows sync-1x64" make bench-peers
#   REQUESTS=50000 make fuzz-access   so many requests
#   MINUTES=5 make fuzz-wire      attack a cluster for so long
#   CASES=5000000 make fuzz-native   so many mutated inputs
#   MINUTES=3 make chaos          faults for so long; CHAOS="--seed 7 --faults power,disk" for more options
#   RUNS=20 make proof-chaos      so many runs of 5 minutes, each with other faults
#   make slips NAME=forward-timeout   one slip; PROMISE=power-loss: all that break it; SAMPLE=10: so many
#   BASE=NAME@sha256:DIGEST make image
#   UPGRADE=yes make lock         the newest versions for the image, instead of those it has

PYTHON ?= python3
SEEDS  ?= 100
SECONDS ?= 40
ENGINE  ?= native
FIRST   ?= $(shell echo $$((0x$$(git rev-parse --short=8 HEAD 2>/dev/null || echo 1) % 1000000)))
MUTANTS ?=
RECORD ?=
INPUT  ?=
BENCH  ?=
FEATURES ?=
PEERS  ?=
MINUTES ?= 3
RUNS ?= 20
CHAOS  ?=
EXPLORE ?= --crashes 1 --prompt-saves --prompt-syncs
TESTS  ?=
CODE   ?=
CLASSES ?=
UPGRADE ?=
CASES ?=
BASE ?=
SEED ?=
# These do not come from the environment, where other programs use such names.
NAME    =
PROMISE =
SAMPLE  =
JOBS    =

BIN     := .venv/bin
RUNTIME := .venv/.installed-runtime
DEV     := .venv/.installed-dev
PROOF   := .venv/.installed-chaos
PIP     := $(BIN)/python -m pip --quiet --disable-pip-version-check

# The load generator is compiled, by the system's compiler or by one that is installed like a package.
COMPILER = command -v cc >/dev/null || $(BIN)/python -c 'import ziglang' 2>/dev/null || $(PIP) install -e '.[cc]'

.DEFAULT_GOAL := help
.PHONY: help venv native demo test test-all test-native fuzz-access fuzz-wire fuzz-native test-clients test-rocketmq test-spark-cluster test-spark-long test-spark-kills check proto fix sim golden proof explore mutants slips needless bench bench-peers bench-features scale scale-clients scale-backlog scale-groups chaos proof-chaos screenshots wheel image audit lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s %s\n", $$1, $$2 }' Makefile

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python >= 3.11, or say which: make PYTHON=python3.11 venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$$($(PYTHON) --version) found, Python >= 3.11 needed; say which: make PYTHON=python3.11 venv" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
	  echo "$(PYTHON) -m venv failed: install its venv module (Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }

# What the demo needs, and no more.
$(RUNTIME): pyproject.toml | .venv/bin/python
	@echo "installing into .venv what the demo needs; the first time this takes a while"
	$(PIP) install -e '.[broker]'
	@touch $@

$(DEV): pyproject.toml chaos/pyproject.toml | .venv/bin/python
	@echo "installing into .venv what tests and checks need, Spark among it; the first time this takes minutes"
	@began=$$(date +%s); echo "$(PIP) install -e '.[broker,spark,proxy,otel,celery,faststream,pydantic,dev]' -e ./chaos"; \
	$(PIP) install -e '.[broker,spark,proxy,otel,celery,faststream,pydantic,dev]' -e ./chaos && echo "the set-up took $$(($$(date +%s) - began)) s"
	@touch $(RUNTIME) $(PROOF) $@

# What faults on real processes need.
$(PROOF): pyproject.toml chaos/pyproject.toml | .venv/bin/python
	$(PIP) install -e '.[broker]' -e ./chaos
	@touch $(RUNTIME) $@

venv: $(DEV) ## create .venv with everything that tests and checks need

native: $(RUNTIME) ## build the optional native part into .venv (needs cargo, or a wheel of it in native/dist)
	@$(BIN)/python native/install.py
	@$(BIN)/dledger --version

demo: $(RUNTIME) ## three nodes, real input, a killed leader, every byte compared
	$(BIN)/dledger demo $(if $(INPUT),--input '$(INPUT)')

test: $(DEV) ## run all tests but the long ones (TESTS=path: one part of them, with its long ones)
	$(BIN)/python $(if $(TESTS),-m pytest $(TESTS),.ci/test.py)

test-all: $(DEV) ## run the rest of the tests, which `make test` leaves out
	$(BIN)/python .ci/test.py long

test-native: $(DEV) ## run the tests of the native part, and nodes on it (after make native)
	@if command -v cargo >/dev/null; then cargo test --locked --quiet --manifest-path native/Cargo.toml; \
	else echo "tests in Rust were NOT run: cargo is not found"; fi
	DLEDGER_NATIVE=1 $(BIN)/python .ci/test.py native

fuzz-access: $(DEV) ## requests of all codes, signed, unsigned and mangled, against access control (REQUESTS=n, SEED=n)
	FUZZ_REQUESTS=$(or $(REQUESTS),1000000) FUZZ_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -q -s tests/broker/features/accounts/test_fuzzed_access.py

fuzz-wire: $(DEV) ## costly requests, slow readers and half-open connections against a secured cluster (MINUTES=n, SEED=n)
	$(BIN)/python -m tests.integration.fuzz_wire $(if $(filter file,$(origin MINUTES)),30,$(MINUTES)) $(or $(SEED),1)

fuzz-native: $(DEV) ## mutated input through the native part and its twins (CASES=n, SEED=n; after make native)
	$(BIN)/python -m tests.native.fuzz $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))

test-clients: $(DEV) ## run the tests of Apache RocketMQ's Java, Go and Rust clients and its mqadmin, and long ones of others (needs a JDK, Maven and cargo; 90 minutes)
	APACHE_CLIENTS=yes $(BIN)/python -m pytest tests/conformance/test_apache_*.py tests/conformance/test_grpc_*.py tests/conformance/test_*_modes.py

test-rocketmq: $(DEV) ## run RocketMQ's own integration suite (5.3.3) on a cluster of three groups (CLASSES="client.consumer.pop.PopOrderlyIT"; needs a JDK and Maven)
	$(BIN)/python -m tests.conformance.rocketmq_suite $(CLASSES)

test-spark-cluster: $(DEV) ## run the tests on a standalone Spark cluster (minutes)
	SPARK_CLUSTER=yes $(BIN)/python -m pytest tests/spark/cluster

test-spark-long: $(DEV) ## jobs of millions of messages under failures, a log of many GB (MESSAGES=n, LOG_GB=n, minutes)
	$(if $(MESSAGES),DLEDGER_MESSAGES=$(MESSAGES)) $(if $(LOG_GB),DLEDGER_LOG_GB=$(LOG_GB)) $(BIN)/python -m pytest -s tests/spark/long/*.py

test-spark-kills: $(DEV) ## a stream whose driver and workers are killed copies each row once (MESSAGES=2000000, KILLS=10, SEED=n; long)
	DLEDGER_SEED=$(SEED) DLEDGER_MESSAGES=$(or $(MESSAGES),2000000) DLEDGER_KILLS=$(or $(KILLS),10) $(BIN)/python -m pytest -s tests/spark/long/killed_streams.py

check: $(DEV) ## format, lint, types, import contract, documentation, sentences; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/docs.py
	$(BIN)/python .ci/sentences.py
	$(BIN)/python .ci/reference.py
	$(BIN)/python .ci/metrics.py
	$(BIN)/python .ci/configuration.py
	$(BIN)/python .ci/facade.py
	$(BIN)/python .ci/native_sources.py
	$(BIN)/python .ci/promises.py
	@made=$$(mktemp -d) && $(call PROTOC,$$made) && for end in py pyi; do \
	  cmp "$$made/$(PROTO)_pb2.$$end" "proxy/$(PROTO)_pb2.$$end" || { rm -rf "$$made"; echo "run make proto" >&2; exit 1; }; done; rm -rf "$$made"

# The generated modules stand beside their definition. `make check` generates them elsewhere, and compares.
PROTO = dledger_proxy/grpc/definition/messaging
PROTOC = $(BIN)/python -m grpc_tools.protoc -Iproxy --python_out=$(1) --pyi_out=$(1) proxy/$(PROTO).proto

proto: $(DEV) ## generate the modules of the gRPC interface from its .proto
	$(call PROTOC,proxy)

fix: $(DEV) ## format, fix what can be fixed mechanically, write what is made from other files (blocking classes, pages)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python .ci/reference.py --write
	$(BIN)/python .ci/metrics.py --write
	$(BIN)/python .ci/configuration.py --write
	$(BIN)/python .ci/facade.py --write
	$(BIN)/python .ci/native_sources.py --write
	$(BIN)/python .ci/promises.py --write

sim: $(DEV) ## simulate whole groups on faulty disks, networks and clocks (SEEDS=n, FIRST=n, ENGINE=pysyncobj)
	$(BIN)/python -m dledger_sim.brokers --seeds $(SEEDS) --first $(FIRST) --seconds $(SECONDS) --engine $(ENGINE)

golden: $(DEV) ## compare what this build writes and answers with what was recorded (RECORD=yes: record it; look at what changes)
	$(if $(filter yes,$(RECORD)),RECORD_GOLDEN=yes) $(BIN)/python -m pytest -q tests/recorded

proof: $(DEV) ## simulate seeds of this commit for MINUTES=n, where its campaign stopped; the sums go into docs/proof/README.md
	@mkdir -p .proof
	commit=$$(git rev-parse --short=8 HEAD) && state=.proof/simulator-$$commit.json && \
	$(BIN)/python -m dledger_sim.brokers --seeds 1000000 --seconds $(SECONDS) --minutes $(MINUTES) \
	  --first $$((0x$$commit % 1000000)) --state $$state --keep .proof/broken; status=$$?; \
	$(BIN)/python -m dledger_sim.brokers figures $$state --page docs/proof/README.md --commit $$commit && exit $$status

mutants: $(DEV) ## switch known bugs on one by one, and say what catches each (MUTANTS="name name")
	$(if $(filter-out spark-%,$(or $(MUTANTS),all)),$(BIN)/python -m dledger_sim.brokers mutants $(filter-out spark-%,$(MUTANTS)))
	$(if $(filter spark-%,$(or $(MUTANTS),spark-all)),$(BIN)/python -m dledger_sim.spark $(filter spark-%,$(MUTANTS)))

slips: $(DEV) ## break promises on purpose, and see that the named check fails (NAME="name name", PROMISE=name, SAMPLE=n, JOBS=n)
	$(BIN)/python .ci/slips.py $(NAME) $(if $(PROMISE),--promise $(PROMISE)) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(JOBS),--jobs $(JOBS))

needless: $(DEV) ## find tests without which no mistake would go unnoticed (TESTS=tests/broker CODE=broker/dledger_broker MINUTES=60)
	@$(PIP) install -e '.[needless]'
	PYTHONPATH=.ci $(BIN)/python -m pytest -q -p needless -m "not long" --code $(CODE) --minutes $(MINUTES) $(TESTS)

explore: $(DEV) ## take real cores through every interleaving of a small world (EXPLORE="--crashes 1 --terms 1")
	$(BIN)/python -m dledger_sim.log.explore $(EXPLORE)

bench: $(DEV) ## measure speed and memory beside this machine's own limits (OTHER=path: compare with another checkout)
	@$(COMPILER)
	$(BIN)/python -m bench.$(if $(OTHER),compare $(OTHER),run) $(BENCH)

bench-peers: $(DEV) ## measure other message services beside this one, in turns, three nodes each (PEERS="--peers nats --runs 1")
	@$(COMPILER)
	$(BIN)/python -m bench.peers.run $(PEERS)

bench-features: $(DEV) ## measure single features, one after the other (FEATURES="filters quotas"; all of them take hours)
	@$(COMPILER)
	$(BIN)/python -m bench.features $(FEATURES)

scale: ## all three of the following, whichever of them fails (MESSAGES=n, MINUTES=n; long)
	@$(MAKE) --no-print-directory --keep-going -j1 scale-clients scale-backlog scale-groups

scale-clients: $(DEV) ## thousands of queues, groups and connections on a node
	@$(COMPILER)
	$(BIN)/python -m bench.many_clients

scale-backlog: $(DEV) ## a backlog read from disk beside sends (MESSAGES=n)
	@$(COMPILER)
	$(BIN)/python -m bench.backlog $(if $(MESSAGES),--messages $(MESSAGES))

scale-groups: $(PROOF) ## two groups and their name server under faults (MINUTES=n CHAOS="--seed n")
	$(BIN)/dledger chaos run --target two-groups --minutes $(MINUTES) $(CHAOS)

chaos: $(PROOF) ## faults on a real cluster, checked, with a report (MINUTES=n)
	$(BIN)/dledger chaos run --minutes $(MINUTES) $(CHAOS)

proof-chaos: $(PROOF) ## runs of 5 minutes, each with other faults, until there are RUNS=n; the sums go into docs/proof/README.md
	$(BIN)/dledger chaos campaign --runs $(RUNS) --minutes 5 --state .proof/chaos.json
	$(BIN)/dledger chaos figures .proof/chaos.json --page docs/proof/README.md

screenshots: $(DEV) ## make the documentation's pictures of the console (needs chromium)
	$(BIN)/python .ci/screenshots.py

wheel: .venv/bin/python ## build the wheels of dledger-mq and dledger-mq-chaos in dist, which pip installs anywhere
	@rm -rf dist
	$(PIP) wheel --no-deps --wheel-dir dist . ./chaos

# Hashes and no registry: who builds the image takes the packages from wherever they take packages from.
LOCK = $(BIN)/uv --quiet pip compile --generate-hashes --python-version 3.11 --python-platform linux --no-header \
       --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

image: ## build the image of a release: BASE=python:3.11.14-slim-bookworm@sha256:DIGEST make image
	@printf '%s' '$(BASE)' | grep -Eq '@sha256:[0-9a-f]{64}$$' || { \
	  echo "BASE='$(BASE)' has no digest: a tag can be moved, so a release names BASE=NAME@sha256:DIGEST (docker/README.md)" >&2; exit 1; }
	docker build -f docker/Dockerfile --build-arg BASE='$(BASE)' -t dledger-mq .

audit: $(RUNTIME) ## write dist/sbom.json, and ask for known faults of what a release installs (pip-audit, cargo audit)
	@$(BIN)/pip-audit --version >/dev/null 2>&1 || $(PIP) install -e '.[audit]' || true
	@$(BIN)/python .ci/audit.py

lock: .venv/bin/python ## lock what the image installs into docker/requirements*.txt (UPGRADE=yes: newest versions)
	@$(BIN)/uv --version >/dev/null 2>&1 || $(PIP) install -e '.[lock]'
	$(LOCK) pyproject.toml --extra broker --extra proxy --output-file docker/requirements.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(LOCK) - --output-file docker/requirements-build.txt

clean: ## remove the environment, caches and build results
	rm -rf .venv build dist bench/build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
