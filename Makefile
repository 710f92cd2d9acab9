# `make quickstart` trains and reports, `make test` tests; both install first. `make help` lists everything.

VENV ?= .venv
PYTHON ?=
ARGS ?=
TORCH ?= torch==2.13.0
JOBS ?= auto

BIN := $(VENV)/bin
# Compiling dominates and takes one core per test, so one worker per core (JOBS=0 for none). A file stays with one
# worker, because its tests share compiled functions.
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile
# Compiling every module of every package took half of an installation; Python compiles those that it imports.
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install --no-compile
# The stamps record which folder the environment was made for: one that was moved or copied is created again.
STAMP := $(VENV)/.installed
TORCH_STAMP := $(VENV)/.installed-torch
DOCS_STAMP := $(VENV)/.installed-docs
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
HEALTHY := test -x "$(BIN)/python" && { ! test -s "$(STAMP)" || test "$$(cat "$(STAMP)")" = "$(CURDIR)"; }

.PHONY: help install install-torch quickstart repro-systems repro-adapt repro-depth repro-paper repro-optimizers bench test test-torch test-full test-slow test-same test-x64 test-faults test-browser test-trackers wheel-check compat docs report-picture lint format lock clean
.DELETE_ON_ERROR:

# A target's line ends in `## what it does`, a test target's in `##| what it needs | what it tests`.
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-17s %s\n", $$1, $$2}' Makefile
	@printf '\n%-22s %-30s %s\n' "Tests" "needs" "what is tested"
	@awk -F ' *(:.*##)?[|] *' '/^[a-z0-9-]+:.*##[|]/ {printf "make %-17s %-30s %s\n", $$1, $$2, $$3}' Makefile
	@echo
	@echo "PYTHON=python3.12 chooses the interpreter of a new $(VENV); ARGS='...' is passed on to the command."

# Without a working environment the stamp means nothing.
ifneq ($(shell $(HEALTHY) && echo yes),yes)
.PHONY: $(STAMP)
endif

$(STAMP): requirements.lock pyproject.toml
	@if ! { $(HEALTHY); }; then \
		for candidate in $(CANDIDATES); do \
			"$$candidate" -c '$(RECENT)' 2>/dev/null && chosen=$$candidate && break; \
			tried="$${tried:+$$tried, }$$candidate ($$("$$candidate" --version 2>/dev/null || echo 'does not run'))"; \
		done; \
		if [ -z "$${chosen-}" ]; then \
			echo "make: no Python 3.11 or newer among $$tried: install one, or name one with PYTHON=/path/to/python3." >&2; \
			exit 1; \
		fi; \
		echo "Creating $(VENV) with $$("$$chosen" --version) ..."; \
		"$$chosen" -m venv --clear "$(VENV)" || { rm -rf "$(VENV)"; exit 1; }; \
	fi
	@echo "Installing $$(grep -c == requirements.lock) locked packages into $(VENV) (some minutes the first time) ..."
	@$(PIP) install "pip>=26" # twice as fast as the one that Python 3.11 brings
	@$(INSTALL) --require-hashes --requirement requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@printf '%s\n' "$(CURDIR)" > $@
	@echo "Installed: $(BIN)/diffeqformer"

$(TORCH_STAMP): requirements-torch.lock $(STAMP)
	@echo "Installing $(TORCH), transformers, peft and lm-eval into $(VENV), to compare with ..."
	@$(INSTALL) --require-hashes --no-deps --requirement requirements-torch.lock
	@$(INSTALL) "$(TORCH)"
	@touch $@

$(DOCS_STAMP): requirements-docs.lock $(STAMP)
	@echo "Installing MkDocs and $$(grep -c == requirements-docs.lock) packages with it into $(VENV) ..."
	@$(INSTALL) --require-hashes --no-deps --requirement requirements-docs.lock
	@touch $@

install: $(STAMP) ## Create .venv with the locked dependencies and this project; nothing else

install-torch: $(TORCH_STAMP) ## The same with torch, transformers, peft and lm-eval, for test-full and test-slow

quickstart: install ## Train DiffEqFormer and its baselines on real text and write a report (ARGS='--minutes 2')
	@$(BIN)/diffeqformer quickstart $(ARGS)

SYSTEMS := diffeqformer diffeqformer-llama shared-mlp gpt llama parallel macaron ode-transformer-rk2 ode-transformer-rk4 \
	shared reversible

repro-systems: install ## Train every published system at equal tokens: the table of docs/systems.md (about 50 minutes)
	@for name in $(SYSTEMS); do \
		$(BIN)/diffeqformer train quickstart-$$name --trainer.updates 500 --run runs/systems/$$name $(ARGS) || exit; \
	done

TEXTS ?= $(error name two texts, as in make repro-adapt TEXTS="code=stdlib wikitext=wikitext-2-raw/*.raw")

repro-adapt: install ## Reproduce the paper's figure 5 at small scale (TEXTS='a=a.jsonl b=b.raw'; about two hours)
	@$(BIN)/diffeqformer reproduce adapt --texts $(TEXTS) $(ARGS)

TASK ?= hops

repro-depth: install ## Where depth pays: one checkpoint beside models of one depth (TASK=hops or text, ARGS='--seeds 0 1 2')
	@$(BIN)/diffeqformer reproduce depth --task $(TASK) $(ARGS)

repro-paper: install ## The paper, item by item, into docs/paper.md beside what is on record (ITEMS='table-1 figure-7', ARGS='--seeds 0 --other FILES --web FILES'; hours for all)
	@$(BIN)/diffeqformer reproduce paper $(ITEMS) --record docs/paper.json --markdown docs/paper.md $(ARGS)

RULES := optimizer.rule=adamw,muon optimizer.schedule=cosine,trapezoidal optimizer.learning_rate=5e-4,1e-3,2e-3,4e-3,8e-3,1.6e-2,3.2e-2

repro-optimizers: install ## Muon and trapezoids beside AdamW and cosines, each tuned, on the quickstart (about an hour)
	@$(BIN)/diffeqformer sweep quickstart-gpt --over $(RULES) --updates 500 --to runs/optimizers $(ARGS)

BENCHMARKS := train finetune generate schemes memory text scaling spectra lyapunov explorer start plan
RUN ?=

bench: install ## Benchmark this machine and write docs/benchmarks.md (RUN=runs/quickstart/elastic adds speculative decoding)
	@for name in $(BENCHMARKS); do \
		$(BIN)/diffeqformer bench $$name --to benchmarks/$$name.json || exit; \
	done
	@if [ -n "$(RUN)" ]; then $(BIN)/diffeqformer bench drafts --run "$(RUN)" --to benchmarks/drafts.json; fi
	@$(BIN)/diffeqformer bench page --folder benchmarks --to docs/benchmarks.md

# Compilation is most of the work. Without most optimisations, and without XLA's emitters of fused loops, it takes a
# quarter of the time (the emitters alone are more than half of it); programs kept in one part, not split for threads
# that other workers use, take a quarter less again. XLA aborts on a flag that it does not know, so a later version is
# asked first. The targets but these two test what is shipped.
QUICK_FLAGS := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
KNOWN_FLAGS = XLA_FLAGS="$(QUICK_FLAGS)" JAX_PLATFORMS=cpu $(BIN)/python -c 'import jax; jax.devices()' 2> /dev/null

# What a run compiles is kept for a week, by processor: two parts took two thirds of the processor time when run again.
PROGRAMS := $(CURDIR)/.pytest_cache/programs
QUICKLY = flags=; $(KNOWN_FLAGS) && flags="$(QUICK_FLAGS)"; \
	programs="$(PROGRAMS)-$$(grep -s -m 1 -E 'flags|Features' /proc/cpuinfo | cksum | cut -d ' ' -f 1)"; \
	mkdir -p "$$programs"; find "$$programs" -type f -mtime +7 -delete; \
	export JAX_DISABLE_MOST_OPTIMIZATIONS=1 JAX_TRACEBACK_IN_LOCATIONS_LIMIT=0 XLA_FLAGS="$$XLA_FLAGS $$flags" \
		JAX_COMPILATION_CACHE_DIR="$$programs" JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0; $(PYTEST)

# Collecting all test files takes half a minute, and few have these marks.
WITH_TORCH = $(shell grep -rlE 'mark\.(torch|harness)' tests --include='test_*.py')

test: install ##| nothing else | everything that takes seconds and no torch: the one to run before each commit
	@$(QUICKLY) $(ARGS)

test-torch: install-torch ##| torch, lm-eval (installed) | comparisons with torch, Transformers, PEFT and lm-eval alone
	@$(QUICKLY) -m "(torch or harness) and not slow" $(WITH_TORCH) $(ARGS)

test-full: install-torch ##| torch, lm-eval (installed) | the tests of these two, compiled as what is shipped
	$(PYTEST) -m "not slow and not browser" $(ARGS)

test-slow: install-torch ##| torch, lm-eval (installed) | the long tests alone
	$(PYTEST) -m slow $(ARGS)

test-same: install ##| ten minutes | 300 random configs: each model is the same however it runs
	@$(QUICKLY) -m "" tests/model/test_same_model.py $(ARGS)

test-x64: install ##| nothing else | a run from its first update to its export, with JAX_ENABLE_X64=1
	@export JAX_ENABLE_X64=1; $(QUICKLY) tests/runs/test_x64.py $(ARGS)

test-faults: install ##| an hour; root for full disks | kills, full disks, damaged files, malformed and hostile input
	$(PYTEST) -m "not torch and not harness and not trackers and not browser" tests/faults $(ARGS)

test-browser: install ##| Chromium, anywidget (installed) | pages and the explorer, clicked through in a headless browser
	@$(INSTALL) "anywidget>=0.9"
	$(PYTEST) -m browser tests/browser tests/explorer tests/faults $(ARGS)

test-trackers: install ##| wandb, trackio (installed) | Weights & Biases and Trackio themselves
	@$(INSTALL) "wandb>=0.20" "trackio>=0.20"
	$(PYTEST) -m trackers tests/runs/test_trackers.py $(ARGS)

wheel-check: install ##| 5 to 10 minutes | the wheel, built, installed alone in an empty environment, and run there
	VENV="$(VENV)" .ci/wheel-check

compat: ##| half an hour | lowest, locked and newest dependencies, on each Python that is here
	JOBS="$(JOBS)" PYTHON="$(PYTHON)" .ci/compat $(ARGS)

docs: $(DOCS_STAMP) ## Build the site of docs/ in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet $(ARGS)
	@echo "Open site/index.html; $(BIN)/mkdocs serve has its search too."

report-picture: install ## Draw docs/report.png from a quickstart's results, in a headless Chromium (RUN=runs/quickstart)
	$(BIN)/python -m tests.browser.picture "$(or $(RUN),runs/quickstart)" docs/report.png

lint: install ## Check style, format, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: install ## Format the files in the project's style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# One version of each package for every Python and platform; versions stay unless ARGS=--upgrade.
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
	--generate-hashes --no-emit-index-url --no-annotate --no-header

DOCS := import tomllib; \
	print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")

# All three are parts of one resolution, so that what one of them needs is no hindrance to another.
lock: install ## Write the lock files again (ARGS=--upgrade for newer versions)
	@$(INSTALL) uv
	@work=$$(mktemp -d) && trap 'rm -rf "$$work"' EXIT && \
	cat requirements.lock requirements-torch.lock requirements-docs.lock > $$work/all.lock && \
	printf 'transformers\npeft\nlm-eval>=0.4.13\n' > $$work/torch.in && \
	$(BIN)/python -c '$(DOCS)' > $$work/docs.in && \
	$(LOCK) $(ARGS) pyproject.toml --extra dev $$work/torch.in $$work/docs.in --no-emit-package diffeqformer \
		--output-file $$work/all.lock && \
	$(LOCK) pyproject.toml --extra dev --no-emit-package diffeqformer --constraint $$work/all.lock \
		--output-file requirements.lock && \
	$(LOCK) $$work/torch.in --constraint $$work/all.lock --output-file requirements-torch.lock && \
	$(LOCK) $$work/docs.in --constraint $$work/all.lock --output-file requirements-docs.lock
	@! grep -nE 'https?://|^torch==|^diffeqformer==' requirements*.lock

clean: ## Remove the environment and caches, but no runs
	rm -rf "$(VENV)" .pytest_cache .ruff_cache .import_linter_cache
