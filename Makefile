# Every command sets itself up first (once: see scripts/setup.sh) and can be run again at any time.
SHELL := /bin/bash
PYTHON_BIN := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup demo test faults canary incident lint bench performance mutate docs

help:
	@echo 'make demo           a real prefill/decode pair, healthy and broken, and the numbers that tell'
	@echo 'make demo KEEP=1    the same, and leaves the pair running to look at'
	@echo 'make test           every test; make test ARGS="-k barrier" for some'
	@echo 'make faults         the fault table: bare upstream, report, recompute and fail on real pairs'
	@echo 'make faults FAST=1  a few of its rows; SOAK=1: many requests under faults, then what is left over; HEALTHY=1: no faults, every barrier'
	@echo 'make canary         the canary on real pairs: quiet while all is well, loud under every fault that reaches probes'
	@echo 'make incident       the recorded incident in the shipped rules: who was paged when; KEEP=1 leaves a Prometheus with it'
	@echo 'make lint           format, style, types, generated documents, dashboards, scripts'
	@echo 'make bench          all benchmarks that need no pair, against their budgets, into build/bench.json: some minutes'
	@echo 'make bench PAIR=1   a real pair, observed over bare, and with a dead collector: 40 minutes; MODES=1: in every barrier mode, half an hour'
	@echo 'make performance    docs/performance.md anew: make bench three times, PAIR=1 and MODES=1, the page; ARGS for the last'
	@echo 'make docs           the documentation as a site, in build/site; SERVE=1 shows it while you write'
	@echo 'make mutate         takes one hook away at a time: which contract test notices, per vLLM version'

setup:
	@scripts/setup.sh

demo: setup
	.venv/bin/moriio-observed demo $(if $(filter-out 0,$(KEEP)),--keep)

# Not in parallel: the real pairs need both cores of a small machine, and what runs beside them
# (tests/contract/conftest.py) one of them at most.
test: setup
	$(PYTHON_BIN) -m pytest --durations=15 $(ARGS)

faults: setup
	$(PYTHON_BIN) -m tests.faults $(if $(filter-out 0,$(FAST)),--fast) $(if $(filter-out 0,$(SOAK)),--soak) $(if $(filter-out 0,$(HEALTHY)),--healthy) $(ARGS)

canary: setup
	$(PYTHON_BIN) -m tests.canary $(ARGS)

incident: setup
	$(PYTHON_BIN) -m tests.incident $(if $(filter-out 0,$(KEEP)),--keep)

lint: setup
	$(PYTHON_BIN) -m ruff format --check .
	$(PYTHON_BIN) -m ruff check .
	$(PYTHON_BIN) -m mypy
	for script in scripts/*_doc.py; do $(PYTHON_BIN) $$script --check || exit 1; done
	.venv/bin/moriio-observed dashboards check
	bash -n scripts/setup.sh
	bash -n .ci/run
	@if command -v shellcheck >/dev/null; then shellcheck scripts/setup.sh .ci/run; \
	else echo 'shellcheck is not installed: the scripts were checked by bash -n alone'; fi

bench: setup
	$(PYTHON_BIN) -m benchmarks$(if $(filter-out 0,$(PAIR)),.throughput,$(if $(filter-out 0,$(MODES)),.real_pair)) $(ARGS)

# What is over budget, or cannot be measured, is on the page, or missing there.
performance: setup
	rm -f build/bench.json build/bench-overshoots.json
	-$(PYTHON_BIN) -m benchmarks --times 3
	-$(PYTHON_BIN) -m benchmarks.throughput
	-$(PYTHON_BIN) -m benchmarks.real_pair $(ARGS)
	$(PYTHON_BIN) -m benchmarks.page

# tests/unit/docs builds it, too: strictly, once.
docs: setup
	$(PYTHON_BIN) -m mkdocs $(if $(filter-out 0,$(SERVE)),serve,build) --strict

mutate: setup
	$(PYTHON_BIN) -m scripts.mutate $(ARGS)
