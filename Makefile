# Every target does its own set-up: a virtual environment in .venv, and on a fresh Debian the packages
# that it needs.  `make run` and `make test` are all that a newcomer wants.

VENV := .venv
BIN := $(VENV)/bin
VECTORS ?= $(wildcard tests/data/conformance/*.jsonl.gz)

.PHONY: run test vm-test lint fmt bench conformance clean

run: $(VENV)/ready
	@$(BIN)/numalet run --simulate deploy/examples/machine-2s-16c.yaml \
	  --pods deploy/examples/pods --config deploy/examples/config.yaml

test: $(VENV)/ready
	$(BIN)/pytest

vm-test: $(VENV)/ready
	$(BIN)/pytest -m vm tests/vm

lint: $(VENV)/ready
	$(BIN)/ruff format --check agent hack tests
	$(BIN)/ruff check agent hack tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/deptry agent

fmt: $(VENV)/ready
	$(BIN)/ruff format agent hack tests
	$(BIN)/ruff check --fix agent hack tests

bench: $(VENV)/ready
	$(BIN)/python -m tests.bench

conformance: $(VENV)/ready
	$(BIN)/python -m tests.conformance $(VECTORS)

clean:
	rm -rf $(VENV)

$(VENV)/ready: pyproject.toml hack/setup
	hack/setup $(VENV)
	touch $@
