# The commands of this project. Each announces what it installs or changes; `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo test check check-format check-lint check-types check-layers check-language check-unit check-unit-libraries check-unit-others up down docs docs-site manifests image release check-python check-kubernetes bench faults

PYTHON ?= python3
NODES ?= 1
SIMULATED ?= 0
JOINED ?= 0
SCENES ?=
MINUTES ?= 10
SEED ?=
BASE_URL ?=
SUITE ?= trixie
KUBERNETES ?= v1.32.13
RUN := .venv/bin/python
# Folders of unit tests that take about as long as all others.
LIBRARIES := vkubelet fleet providers
# A quarter of the random cases; `make test` has all.
QUICK := $(RUN) -m pytest -q --timeout=30 --hypothesis-profile=quick -m 'not long'

# Where this is set, each program that a test starts compiles all that it imports, which takes more than a second of CPU.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo 'make demo              two clusters, a real worker node, a binding, a workload; leaves them running'
	@echo 'make up [NODES=1]      the development clusters only: build/dev/hub.kubeconfig, build/dev/worker.kubeconfig'
	@echo '        [SIMULATED=0]  additional nodes without containers, simulated by KWOK'
	@echo '        [JOINED=0]     additional clusters that are joined to the hub as a fleet'
	@echo 'make down              stops and removes everything that demo and up have started'
	@echo 'make check             format, lint, types, layers, language, unit tests; about a minute'
	@echo 'make docs              write the reference pages that are generated from the code'
	@echo 'make docs-site         the documentation as a site without external parts: build/site/index.html'
	@echo 'make manifests         write the generated parts of the charts, and plain manifests from the charts'
	@echo 'make image             the container image, built without a registry; prints the path of the archive'
	@echo 'make release [BASE_URL=] sdist, wheel, charts, SBOM, changelog, kubectl plugin and checksums, in build/release'
	@echo 'make check-python [SUITE=trixie]  unit tests with the Python of a Debian suite, in a chroot; needs root'
	@echo 'make check-kubernetes KUBERNETES=v1.32.13  tests of the API server with a control plane of that version, built with Go'
	@echo 'make test              all tests, against real clusters; needs root'
	@echo 'make faults [MINUTES=10] a campaign of faults against the simulated product; prints a report'
	@echo '            [SEED=]    the same schedules again; default: a random seed, which is printed'
	@echo 'make bench [SCENES=]   measurements of this machine: a table, and build/bench.json; about three quarters of an hour, needs root'

demo:
	@deploy/demo/announce.sh
	@$(MAKE) --silent .venv/.stamp
	@$(RUN) deploy/demo/demo.py

up: .venv/.stamp
	@$(RUN) -m vkubelet.testing.cluster up --nodes $(NODES) --simulated $(SIMULATED)
	@if [ $(JOINED) != 0 ]; then $(RUN) deploy/dev/joined.py $(JOINED); fi

down:
	@if [ -x $(RUN) ]; then $(RUN) -m vkubelet.testing.cluster down; else echo 'nothing to stop: there is no .venv'; fi

test: .venv/.stamp
	@$(RUN) deploy/dev/tests.py

bench: .venv/.stamp
	@$(RUN) deploy/dev/packages.py
	@$(RUN) -m vkubelet.testing.cluster binaries
	@$(RUN) -m tests.benchmarks $(SCENES)

faults: .venv/.stamp
	@$(RUN) -m tests.faults run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# The longest part first: on two cores all others run beside it.
check: .venv/.stamp
	@$(MAKE) -j2 --output-sync=target check-unit-others check-types check-unit-libraries check-layers check-language check-format check-lint
	@echo 'check: passed'

check-types: .venv/.stamp
	@echo '==> types'
	@.venv/bin/mypy

check-unit: check-unit-libraries check-unit-others

check-unit-libraries: .venv/.stamp
	@echo '==> unit tests of $(LIBRARIES)'
	@$(QUICK) $(LIBRARIES:%=tests/unit/%)

check-unit-others: .venv/.stamp
	@echo '==> other unit tests'
	@$(QUICK) tests/unit $(LIBRARIES:%=--ignore=tests/unit/%)

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
	@$(RUN) deploy/dev/fleet_reference.py
	@$(RUN) deploy/dev/definitions.py
	@$(RUN) -m tests.faults table

docs-site: .venv/.stamp
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet --clean
	@echo 'docs-site: build/site/index.html'

manifests: .venv/.stamp
	@$(RUN) deploy/dev/charts.py

release: .venv/.stamp
	@$(RUN) -m pip install --quiet --disable-pip-version-check --no-input -e '.[release]'
	@$(RUN) deploy/dev/release.py $(if $(BASE_URL),--base-url $(BASE_URL))

check-python: .venv/.stamp
	@$(RUN) deploy/dev/versions.py python $(SUITE)

check-kubernetes: .venv/.stamp
	@$(RUN) deploy/dev/versions.py kubernetes $(KUBERNETES)

image: .venv/.stamp
	@$(RUN) deploy/dev/packages.py
	@$(RUN) deploy/dev/image.py
