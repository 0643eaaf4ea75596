PYTHON ?= python3
# processes that run the tests
JOBS ?= 2
# of the tests of campaigns, how many percent are run, and the seed that draws them
SAMPLE ?= 100
SEED ?= 0

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -qq

# Each stamp stands for one finished installation, which is repeated only when a requirement changes.
DEMO := $(VENV)/.installed-demo
FULL := $(VENV)/.installed-full
DOCS := $(VENV)/.installed-docs
REQUIREMENTS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test builds campaigns lint docs notebooks bench clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(FULL) ## install everything into .venv: every extra, tests, lint, notebooks

# Exit code 1 is a bug found, but also any Python program that breaks down: only pictures prove that the run got through.
demo: $(DEMO) ## find a historical Split-K bug and draw where it is (installs kernels and pictures)
	@rm -rf demo
	@$(BIN)/workbench diff split_k --fault reduce-double-counts-sum \
	    --seqlen 128 --splits 4 --block-k 32 --causal --out demo; \
	status=$$?; \
	if test $$status -eq 1 && ls demo/*.png >/dev/null 2>&1; then \
	    echo "The bug was found, as it should be (exit code 1). Pictures: demo/*.png"; \
	else \
	    echo "The demo failed (exit code $$status): no bug was shown. Try $(BIN)/workbench doctor." >&2; \
	    exit 1; \
	fi

# One thread for each process: NumPy's own threads would compete with the other test processes for the same cores.
test builds campaigns: export OMP_NUM_THREADS := 1
# glibc keeps what is freed instead of handing each array back to the system; 32 MiB is the largest that it takes.
test builds campaigns: export MALLOC_MMAP_THRESHOLD_ := 33554432
test builds campaigns: export MALLOC_TRIM_THRESHOLD_ := 1073741824
# Without compiled files every process would rewrite the assertions of every test file, 40 of 57 seconds of collecting,
# and every command under test would compile the package; images of containers often set this.
test builds campaigns: export PYTHONDONTWRITEBYTECODE :=
test: $(FULL) ## run the tests
	@$(BIN)/pytest --quiet -n $(JOBS) --dist worksteal

# Run where tests need other builds than before; without it a test compiles what is not planned itself.
builds: $(FULL) ## run the tests and plan which builds they need: tests/builds.json
	@folder=$$(mktemp -d); \
	WORKBENCH_RECORD_BUILDS=$$folder WORKBENCH_CACHE=$$folder/cache $(BIN)/pytest --quiet -n $(JOBS) --dist worksteal \
	    && $(BIN)/python -m tests.compile_first $$folder; \
	status=$$?; rm -rf $$folder; exit $$status

campaigns: $(FULL) ## run what a release runs and a change does not; SAMPLE=20: a random 20 % of it, drawn by SEED=0
	@$(BIN)/pytest --quiet -n $(JOBS) --dist worksteal -m campaign --sample $(SAMPLE) --sample-seed $(SEED) \
	    campaigns/tests tests

lint: $(FULL) ## check style, formatting, types and who imports whom
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted; run $(BIN)/ruff format" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@found=$$($(BIN)/lint-imports --no-logo) || { echo "$$found" >&2; exit 1; }

# What is said is a warning, and a warning fails: a link that leads nowhere, a public name without a docstring, a field of
# a JSON document that nobody explains.
docs: $(DOCS) ## build the documentation into build/docs
	@rm -rf build/docs
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --doctree-dir build/doctrees docs build/docs
	@echo "build/docs/index.html"

notebooks: export OMP_NUM_THREADS := 1
notebooks: $(FULL) ## run every notebooks/*.py and write its .ipynb with what it shows, and the screens of README.md and docs
	@$(BIN)/python -m tests.notebooks
	@$(BIN)/python -m tests.screens

bench: $(DEMO) ## time the emulator against numba's simulator
	@$(BIN)/python -m campaigns emulator

clean: ## remove the environment and whatever runs left behind
	rm -rf $(VENV) demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(DEMO): $(REQUIREMENTS) | $(BIN)/pip
	@echo "Installing the workbench, what compiles its kernels, and matplotlib into $(VENV) (about a minute) ..."
	@$(PIP) install --constraint constraints.txt --editable ".[kernels,plot]"
	@touch $@

$(FULL): $(REQUIREMENTS) | $(BIN)/pip
	@echo "Installing the workbench and all its tools into $(VENV) (about two minutes; several with a CUDA build of torch) ..."
	@$(PIP) install --constraint constraints.txt --editable ".[all,dev]"
	@touch $(DEMO) $@

$(DOCS): $(REQUIREMENTS) | $(BIN)/pip
	@echo "Installing the workbench and Sphinx into $(VENV) ..."
	@$(PIP) install --constraint constraints.txt --editable ".[docs]"
	@touch $@

# bin/pip is the last file that venv writes, so that an interrupted one is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	    echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	    exit 1; \
	}
	@$(PYTHON) -m venv $(VENV)
