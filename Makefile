# Two commands matter: `make demo` and `make test`. Both install what is missing, into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed-$(shell cksum pyproject.toml | cut -d' ' -f1)

.PHONY: demo test check browser setup site clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo   install, then train, explain and report on the embedded data (minutes)'
	@echo 'make test   install, then lint, types, layers and the whole test suite (minutes)'
	@echo 'make site   install, then build the documentation, tutorials included: out/site/index.html (a minute)'
	@echo 'make clean  remove the environment and what the two commands wrote'

demo: $(STAMP)
	$(BIN)/gyrograd demo

test: check browser
	$(BIN)/pytest

# The web page is tested in a real browser.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
	  || { echo 'Installing chromium, in which the web page is tested ...'; \
	       apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
	  || { echo 'The tests open the web page in chromium: install it (apt-get install chromium).'; exit 2; }

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What the tests build, too: a warning is an error. The second folder keeps what was read, so that a second build is quick.
site: $(STAMP)
	$(BIN)/sphinx-build -q -W --keep-going -c docs . out/site -d out/site-read
	@echo out/site/index.html

setup: $(STAMP)

# The stamp's name holds the checksum of pyproject.toml: a changed dependency installs again, nothing else does.
$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'gyrograd needs Python 3.11 or newer: make PYTHON=/path/to/python3.11'; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv \
	  || { echo 'python3 cannot make a virtual environment: apt-get install python3-venv'; exit 2; }
	@echo 'Installing into .venv (about 6 GB the first time, a few minutes) ...'
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install --progress-bar on -e '.[dev]'
	@rm -f .venv/installed-* && touch $@

clean:
	rm -rf .venv out .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Break the code on purpose; every fault must be caught: make mutants AREA=attributions
.PHONY: mutants
mutants: $(STAMP)
	$(BIN)/python tests/mutation/run.py $(AREA)

# Captum, zennit and gyrograd side by side: second derivatives, guided backprop, LRP. Writes results/exactness.md
.PHONY: exactness
exactness: $(STAMP)
	$(BIN)/python benchmarks/exactness.py

# Metrics next to Quantus, same values, medians of runs in turns. Writes results/metrics_cost.md
.PHONY: bench-metrics
bench-metrics: $(STAMP)
	$(BIN)/python benchmarks/metrics.py

# Every backbone's parameters, forward and double-backward time. Writes results/backbones.md
.PHONY: backbones
backbones: $(STAMP)
	$(BIN)/python benchmarks/backbones.py

# Ten objectives beside cross-entropy on shapes. Writes results/objectives.md
.PHONY: objectives
objectives: $(STAMP)
	$(BIN)/python benchmarks/objectives.py

# joo2023 Figure 1 and its ordering over five seeds. Writes results/figure1.md
.PHONY: figure1
figure1: $(STAMP)
	$(BIN)/python benchmarks/figure1.py

# A training step with alignment over one with cross-entropy, in time and memory
.PHONY: training-cost
training-cost: $(STAMP)
	$(BIN)/python benchmarks/training_cost.py

# Maps next to Captum and zennit, same values, medians of runs in turns. Writes results/attribution_cost.md
.PHONY: bench-attributions
bench-attributions: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/attributions.py

# Seconds and memory against images, draws and image side. Writes results/scaling.md and docs/pictures/cost.png
.PHONY: bench-scaling
bench-scaling: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scaling.py

# One image audited 1,000 times in one process: memory, threads, open files and objects stay as they are
.PHONY: endurance
endurance: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/endurance.py --audits $(or $(AUDITS),1000)

# A hundred faults drawn by rule, each against the tests of its file: make drawn-mutants SEED=0 WORKERS=1
.PHONY: drawn-mutants
drawn-mutants: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutation/generate.py --count 100 --seed $(or $(SEED),0) --workers $(or $(WORKERS),1)

# Damaged and hostile files through every reader; each must open or be refused in one sentence. FILES=20000 SEED=0 WORKERS=1
FILES ?= 20000
SEED ?= 0
.PHONY: fuzz-readers
fuzz-readers: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/readers.py $(FILES) --seed $(SEED) --workers $(or $(WORKERS),1)

# Random small nets: every way they are differentiated against finite differences (minutes). A seed that fails goes into KEPT.
.PHONY: fuzz-nets
fuzz-nets: $(STAMP)
	$(BIN)/python tests/fuzz/random_nets.py --nets 300 --seed $(or $(SEED),0)

# 5,000 command lines through every verb: no traceback, no hang, nothing written outside --out (N=500 SEED=1 WORKERS=1)
.PHONY: fuzz-cli
fuzz-cli: $(STAMP)
	$(BIN)/python tests/fuzz/command_lines.py $(or $(N),5000) --seed $(SEED) --workers $(or $(WORKERS),1)

# 30 kills at random moments over train, audit, harden, sweep, reproduce and explore: same results, no leftovers (WORKERS=1)
.PHONY: fuzz-kills
fuzz-kills: $(STAMP)
	$(BIN)/python tests/fuzz/kills.py $(or $(N),30) --seed $(SEED) --workers $(or $(WORKERS),1)

# Every method on 88 architectures in float64, one process each, resumed if it was stopped: results/coverage.md. WORKERS=1
.PHONY: coverage-table
coverage-table: $(STAMP)
	$(BIN)/python benchmarks/coverage.py --workers $(or $(WORKERS),1)

# Four Ray actors, two killed at random moments: the records of one process, to the byte. ACTORS=4 KILLS=2
.PHONY: ray-kills
ray-kills: $(STAMP)
	$(BIN)/python benchmarks/ray_kills.py --actors $(or $(ACTORS),4) --kills $(or $(KILLS),2)
