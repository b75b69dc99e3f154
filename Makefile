# The commands of this project. Each says what it does before it does it; `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo test check check-format check-lint check-types check-layers check-language check-unit check-unit-vkubelet check-unit-others up down docs manifests image bench

PYTHON ?= python3
NODES ?= 1
SIMULATED ?= 0
SCENES ?=
RUN := .venv/bin/python

help:
	@echo 'make demo              two clusters, a real worker node, a binding, a workload; leaves all running'
	@echo 'make up [NODES=1]      the development clusters alone: build/dev/hub.kubeconfig, build/dev/worker.kubeconfig'
	@echo '        [SIMULATED=0]  nodes without containers besides, simulated by KWOK'
	@echo 'make down              ends what demo and up have started; leaves nothing'
	@echo 'make check             format, lint, types, layers, language, unit tests; about a minute'
	@echo 'make docs              write the reference pages that follow from the code'
	@echo 'make manifests         write what in the charts follows from the code, and plain manifests from the charts'
	@echo 'make image             the container image, built here without a registry; prints where the archive lies'
	@echo 'make test              all tests, against real clusters; needs root'
	@echo 'make bench [SCENES=]   figures of this machine: a table, and build/bench.json; about half an hour, needs root'

demo:
	@deploy/demo/announce.sh
	@$(MAKE) --silent .venv/.stamp
	@$(RUN) deploy/demo/demo.py

up: .venv/.stamp
	@$(RUN) -m vkubelet.testing.cluster up --nodes $(NODES) --simulated $(SIMULATED)

down:
	@if [ -x $(RUN) ]; then $(RUN) -m vkubelet.testing.cluster down; else echo 'nothing to take down: there is no .venv'; fi

test: .venv/.stamp
	@$(RUN) deploy/dev/packages.py
	@$(RUN) -m vkubelet.testing.cluster binaries --all
	@$(RUN) deploy/dev/image.py
	@$(RUN) deploy/dev/tests.py

bench: .venv/.stamp
	@$(RUN) deploy/dev/packages.py
	@$(RUN) -m vkubelet.testing.cluster binaries
	@$(RUN) -m tests.benchmarks $(SCENES)

# Types and lint run beside the unit tests: on two cores the minute is theirs.
check: .venv/.stamp
	@$(MAKE) -j2 --output-sync=target check-unit-vkubelet check-types check-unit-others check-layers check-language check-format check-lint
	@echo 'check: all well'

check-types: .venv/.stamp
	@echo '==> types'
	@.venv/bin/mypy

check-unit: check-unit-vkubelet check-unit-others

check-unit-vkubelet: .venv/.stamp
	@echo '==> unit tests of vkubelet'
	@$(RUN) -m pytest -q --timeout=30 tests/unit/vkubelet

check-unit-others: .venv/.stamp
	@echo '==> unit tests of all else'
	@$(RUN) -m pytest -q --timeout=30 tests/unit --ignore=tests/unit/vkubelet

check-layers: .venv/.stamp
	@echo '==> layers'
	@.venv/bin/lint-imports --no-logo | tail -n 20

check-language: .venv/.stamp
	@echo '==> language'
	@$(RUN) deploy/dev/language.py --check

check-format: .venv/.stamp
	@echo '==> format'
	@.venv/bin/ruff format --check .

check-lint: .venv/.stamp
	@echo '==> lint'
	@.venv/bin/ruff check .

.venv/.stamp: pyproject.toml
	@PYTHON='$(PYTHON)' deploy/dev/venv.sh

docs: .venv/.stamp
	@$(RUN) deploy/dev/reference.py

manifests: .venv/.stamp
	@$(RUN) deploy/dev/charts.py

image: .venv/.stamp
	@$(RUN) deploy/dev/packages.py
	@$(RUN) deploy/dev/image.py
