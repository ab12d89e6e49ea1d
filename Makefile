# Everything runs in .venv, which the first target that needs it sets up; a change of the requirements
# brings it up to date. One `make` at a time does so, and one that was broken off is begun anew. Another interpreter: `make test PY=python3.13`, in a fresh checkout.
PY ?= python3
BIN := .venv/bin

.PHONY: report evidence book check test test-all bench clean lint

# The book from the archived evidence, a random part of which is computed again here: minutes. It is made in
# book/_build/report, beside what is committed; what differs is said. SEED=7 draws the sample of that seed,
# MINUTES=10 a larger one. PROFILE=full (a GPU) or PROFILE=smoke computes another size, into book/_build/profiles.
SAMPLE = $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JOBS),--jobs $(JOBS))
report: .venv/.ready
ifneq ($(FRESH),)
	$(error FRESH=1 writes what is committed: make evidence FRESH=1)
else ifneq ($(PROFILE),)
	$(BIN)/python -m atsbook run --profile $(PROFILE)
else
	$(BIN)/python -m atsbook report $(SAMPLE)
endif

# What ships, in the place of what is committed: pages, tables and texts, from the evidence. FRESH=1 computes
# all of it from nothing first.
evidence: .venv/.ready
	$(BIN)/python -m atsbook $(if $(FRESH),run,report --write $(SAMPLE))

# The book from the executed notebooks in book/results; computes nothing.
book: .venv/.ready
	$(BIN)/jupyter-book build book -W --keep-going

# Every page made again from the evidence, in book/_build/check, beside what is committed: some minutes.
check: .venv/.ready
	$(BIN)/python -m atsbook report --check $(if $(JOBS),--jobs $(JOBS))

# What must hold at every change: linter, oracles and laws, statistics, store, three notebooks at their smallest.
# One process a core with one thread each; in `test-all` two more, since many of its tests wait for other processes. Where a
# test has two threads, one that waits for the other takes no processor. Files go in the order of their names: by default
# those of few tests, which are often the longest, would all come at the end. Notebooks, the longest of all, come first.
CORES = `$(BIN)/python -c "import os; print(os.cpu_count())"`
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTEST_XDIST_AUTO_NUM_WORKERS=$$(($(CORES) + $(MORE))) \
	$(BIN)/python atsbook/report/warm_kernels.py $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
test: MORE = 0
test: lint
	$(PYTEST) -p no:nbval -m "not (notebook or book or browser or federated or alone or process or slow or hours)"

# Every notebook, browsers, federations, killed processes and long trainings besides, and at the end, one at a time, those
# that start servers of Flower. Not what takes an hour, which is `.venv/bin/python -m pytest -m hours`: each page with each
# of its parameters at another value. The three notebooks that a test executes by itself are not run a second time.
test-all: MORE = 2
test-all: lint
	$(PYTEST) notebooks tests --nbval $(addprefix --ignore=notebooks/,steps.ipynb regimes.ipynb ext4_hidden_details.ipynb) -m "not (alone or hours)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests -m "alone and not hours"

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Speed and memory, one JSON line a measurement.
bench: .venv/.ready
	$(BIN)/python benchmarks/transforms.py
	$(BIN)/python -m atsbook bench attack
	$(BIN)/python -m atsbook bench scores
	$(BIN)/python -m atsbook bench adaptive

# What can be made again in seconds; .venv and .store stay.
clean:
	rm -rf book/_build .pytest_cache .ruff_cache .import_linter_cache
	find atslib atsaudit atsfed atsbook benchmarks notebooks tests -name __pycache__ -prune -exec rm -rf {} +

# pip would compile one module after the other; some packages ship files that are not for this
# Python, and do not compile, and their own tests, which nothing imports.
# The process that sets up .venv is written in $(SETUP), which is there until that has succeeded.
SETUP := .venv.setup
.venv/.ready: requirements.txt pyproject.toml
	@fresh=; \
	if test -e $(SETUP) && kill -0 `cat $(SETUP)` 2>/dev/null; then \
		echo "error: process `cat $(SETUP)`, another make, sets up .venv; wait for it (or remove $(SETUP), if that is no make)" >&2; \
		exit 2; \
	elif test -e $(SETUP); then \
		fresh=--clear; rm -f $(SETUP); \
	fi; \
	if ! (set -C; echo $$$$ > $(SETUP)) 2>/dev/null; then \
		echo "error: $(SETUP) cannot be written here, or another make has just begun to set up .venv" >&2; \
		exit 2; \
	fi; \
	echo "setting up .venv, which takes some minutes"; \
	$(PY) -m venv $$fresh .venv && $(BIN)/python -m pip install -q --no-compile -r requirements.txt && \
	{ $(BIN)/python -W ignore -m compileall -q -j 0 -x '/tests?/' .venv/lib >/dev/null || true; } && touch $@ && rm $(SETUP)
