# `make demo` and `make test` do all their own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SERVERS := victoria-metrics influxdb prometheus prometheus-alertmanager chromium-headless-shell fonts-noto-cjk gcc libc6-dev \
	postgresql slurm-wlm slurmctld slurmd slurmrestd munge slapd libldap-dev libsasl2-dev openssl systemd shellcheck
DEMO_ARGS ?=
KILLS ?= 1000
LINES ?= 10000
TAKEOVERS ?= 1000
FAULTS ?= 1000
CLICKS ?= 500
# A test that waits for the disk waits for all others that write to it: their folders lie in memory where there is room.
SHM := /dev/shm/tocsin-tests$(subst /,-,$(CURDIR))
IN_MEMORY := $(shell test "$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 8000000 2>/dev/null && echo --basetemp=$(SHM))
ATTACK ?= tests/attack tests/integration/test_brain_restored.py tests/property/test_journal_seal.py tests/property/test_journal_witness.py \
	tests/property/test_dcgm_text_fuzz.py tests/property/test_hook_fuzz.py tests/property/test_kernel_log_fuzz.py \
	tests/property/test_slurm_fuzz.py tests/property/test_vendor_hostile.py tests/unit/store/test_embedded_files.py tests/e2e/test_brain_kill.py
QUICK ?= tests/unit/domain tests/unit/config tests/unit/journal tests/unit/plugins tests/unit/rules tests/unit/hook \
	tests/unit/client tests/unit/store tests/unit/telemetry tests/smoke
export PYTHONPATH :=
# Tests start hundreds of processes; compiled modules are a quarter of what each start costs.
unexport PYTHONDONTWRITEBYTECODE
# Processes run beside each other, so that threads of OpenBLAS or OpenMP wait for a processor by spinning: five times the work.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

.DEFAULT_GOAL := help
REHEARSALS ?= benchmarks/rehearsals
.PHONY: help demo setup setup-servers lint quick unit walk attack lines kills takeovers detect scale clicks kubernetes chaos wheel-test aws-test test release bench docs prior statements backtest \
	rehearsal rehearsals grafana chart clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

demo: $(VENV)/.demo  ## Run a simulated fleet with dashboard; Ctrl-C ends it
	@echo "starting; the first start takes longer than the next"
	@$(BIN)/tocsin demo $(DEMO_ARGS)

setup: $(VENV)/.setup $(VENV)/.ldap  ## Install everything that the tests need into .venv

setup-servers:  ## Install the real servers that contract and browser tests start (Debian packages, needs root)
	@bash .ci/setup-servers.sh $(SERVERS)

lint: setup  ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-cache

quick: setup  ## Between two changes, under 90 seconds: ruff, and the unit tests of the lower layers (QUICK names others)
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 -q -m "not (gpu or server or browser or data)" --benchmark-disable $(QUICK)

unit: setup  ## All tests against the working tree but the laws, which wheel-test runs
	$(BIN)/python -m pytest -n 3 --no-loadscope-reorder --reruns 2 -m "not gpu" --benchmark-disable --durations=50 \
		$(IN_MEMORY) --ignore tests/laws --ignore tests/unit/actions/test_cloud_boto.py; code=$$?; rm -rf $(SHM); exit $$code

aws-test: setup  ## Tests of the extra aws, whose libraries do not go with those of the Kubernetes client
	@bash .ci/aws-test.sh $(BIN)/python

walk: setup  ## Trace a reading and an XID through the product, and count the files on their ways
	PYTHONPATH=tests/support $(BIN)/python -m tocsin_testing.walk --files

attack: setup  ## What a stranger, a node's token or who writes the volume may try (5 minutes; longer by hand: kills, lines)
	timeout 480 $(BIN)/python -m pytest $(ATTACK) --benchmark-disable -p no:xdist

lines: setup  ## LINES lines of anything from one node against a brain with twins (10000: two minutes); prints what started
	TOCSIN_LINES=$(LINES) $(BIN)/python -m pytest tests/attack/test_attack_any_lines.py -s -q --benchmark-disable -p no:xdist

kills: setup  ## kill -9 of brain and agents under load, KILLS times (1000: an hour); prints what was lost and doubled
	TOCSIN_KILLS=$(KILLS) $(BIN)/python -m pytest tests/e2e/test_brain_kill.py -s -q --benchmark-disable -p no:xdist

takeovers: setup  ## Kill, stop and cut off ten brains of each of two cells on a PostgreSQL, TAKEOVERS times (1000: an hour and a half), and put an older database back a fiftieth as often; prints p50 and p99
	TOCSIN_TAKEOVERS=$(TAKEOVERS) $(BIN)/python -m pytest tests/e2e/test_takeovers.py -s -q --benchmark-disable -p no:xdist

detect: setup  ## From the kernel log to the manager's first call, FAULTS times (1000: half an hour); prints where the time goes
	TOCSIN_FAULTS=$(FAULTS) $(BIN)/python -m pytest tests/perf/test_perf_detect.py -s -q --benchmark-only -p no:xdist

clicks: setup  ## Click at random in the dashboard of a made-up fleet, CLICKS times (500: five minutes)
	TOCSIN_CLICKS=$(CLICKS) $(BIN)/python -m pytest tests/e2e/test_clicks_browser.py -q --benchmark-disable -p no:xdist

kubernetes: setup  ## Contract tests of Kubernetes on a real API server of its programs in the folder KUBERNETES, and Debian's etcd-server (3 minutes)
	TOCSIN_TEST_KUBERNETES_BIN=$(KUBERNETES) PYTHONPATH=tests/support $(BIN)/python -m tocsin_testing.kube_server \
		$(BIN)/python -m pytest tests/contract/test_kubernetes_*.py -q --benchmark-disable -p no:xdist

chaos: setup-servers setup  ## Break store, disk, clock and driver under a running agent (5 minutes at most)
	timeout 300 $(BIN)/python -m pytest tests/chaos --benchmark-disable -p no:xdist

wheel-test: setup  ## Laws and smoke tests against the built wheel, a package with plug-ins of its own installed beside it
	rm -rf build/site build/acme build/lib build/bdist* dist
	$(BIN)/python -m build --no-isolation --wheel --outdir dist . > build.log 2>&1 || { cat build.log; exit 1; }
	rm -f build.log
	cp -r tests/acme_plugins build/acme
	$(PIP) install --quiet --no-deps --no-build-isolation --target build/site dist/*.whl ./build/acme
	TOCSIN_TEST_WHEEL=$(CURDIR)/build/site PYTHONPATH=$(CURDIR)/build/site \
		$(BIN)/python -m pytest -n 3 --no-loadscope-reorder --reruns 1 -m "not gpu" --benchmark-disable tests/laws tests/smoke

test:  ## Everything, the rehearsal too; what needs one processor runs beside what needs another
	@$(MAKE) --no-print-directory -j 2 --output-sync=target setup-servers $(VENV)/.setup
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory -j 2 --output-sync=target rehearsal lint aws-test wheel-test
	@$(MAKE) --no-print-directory unit

release: setup  ## Build the release of this commit into dist/tocsin-VERSION: sdist, wheel, chart, manifests, SBOM, notes, checksums
	@bash .ci/release.sh $(CURDIR)/$(BIN)/python

bench: setup  ## Print every measured figure in one table, and write it into docs/performance_figures.md
	$(BIN)/python -m pytest tests/perf --benchmark-only --benchmark-columns=min,median,rounds -p no:xdist -m "not gpu" --figures docs/performance_figures.md

scale: setup  ## What brains cost over 10,000 to 100,000 simulated GPUs, alone (45 minutes on two free cores)
	$(BIN)/python -m pytest tests/perf/test_perf_cells.py -s -q --benchmark-only -p no:xdist

storms: setup  ## Collapse 1,000 random storms of faults, beside simpler ways, and write the table of docs/topology.md (10 minutes at most)
	PYTHONPATH=tests/support $(BIN)/python -m tocsin_testing.storm_run --write docs/topology.md

docs: setup  ## Build the documentation site into build/site-docs; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

prior: setup  ## Train the model that ships with the package (10 minutes)
	@bash .ci/prior.sh $(BIN)/tocsin

statements: setup  ## Count what each kind of forecast is worth in simulated fleets: the prior that ships (10 minutes)
	nice $(BIN)/tocsin rehearse prior --commit "$$(git rev-parse HEAD)" --out forecaster/prior/statements.json

backtest: setup  ## Judge the forecaster on the data sets below TOCSIN_DATA_DIR; writes docs/accuracy_figures.md (45 minutes at most)
	@bash .ci/backtest.sh $(BIN)/tocsin

rehearsal: setup  ## Rehearse the pager once over a quiet fleet: 64 GPUs, 2 days, one seed (some minutes); fails where a bar is missed
	$(BIN)/tocsin rehearse fleet --gpus 64 --days 2 --seed 1 --fault-scale 0 --bars

rehearsals: setup  ## Rehearse the pager over all seeds of three lives (hours); goes on where it stopped, writes docs/rehearsals.md
	nice $(BIN)/tocsin rehearse set $(REHEARSALS) --commit "$$(git rev-parse HEAD)" --page docs/rehearsals.md

grafana: setup  ## Write dashboards, alerts, docs/alerts.md and the tables of docs/rules.md anew
	PYTHONPATH=grafana $(BIN)/python -m tocsin_grafana

chart: setup  ## Write what is made of the Helm chart and for it: its settings, the kustomize base
	PYTHONPATH=src $(BIN)/python .ci/chart.py "$$(PATH="$(BIN):$$PATH" command -v helm)"

# Built from source: where the headers of libldap lack, its tests say so.
$(VENV)/.ldap: $(VENV)/.setup
	[ ! -e /usr/include/ldap.h ] || { $(PIP) install --quiet -c constraints.txt -e ".[ldap]" && touch $@; }

clean:  ## Remove what the targets made
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	@bash .ci/make-venv.sh $(PYTHON) $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV), once: some minutes and about 1 GB"
	@bash .ci/install.sh $(BIN)/python $(VENV)/install.log -c constraints.txt -e ".[brain,dashboard,terminal]"
	@touch $@

$(VENV)/.setup: pyproject.toml benchmarks/pyproject.toml constraints.txt .ci/kubectl.sh | $(VENV)/bin/python
	$(PIP) install --quiet -c constraints.txt setuptools wheel
	$(PIP) install --quiet -c constraints.txt -e ".[brain,access,deep,dashboard,encryption,kubernetes,mcp,postgres,ray,terminal]" --group dev --group bench --group docs
	$(PIP) install --quiet -c constraints.txt -e benchmarks
	@# Cannot be imported without ROCm, and where it lies among the packages Ray cannot either: tests read its text.
	$(PIP) install --quiet --no-deps --upgrade -c constraints.txt --target $(VENV)/aside amdsmi
	@bash .ci/kubectl.sh $(BIN)
	touch $@ $(VENV)/.demo
