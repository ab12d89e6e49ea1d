# Everything runs in .venv, which the first target that needs it sets up; a change of the requirements
# brings it up to date. Another interpreter: `make test PY=python3.13`, in a fresh checkout.
PY ?= python3
PROFILE ?= quick
BIN := .venv/bin

.PHONY: report book test bench clean

# Compute the pages: PROFILE is smoke, quick (a laptop) or full (a GPU).
report: .venv/.ready
	$(BIN)/python -m atslib run --profile $(PROFILE)

# The book from the executed notebooks in book/results; computes nothing.
book: .venv/.ready
	$(BIN)/jupyter-book build book -W --keep-going

test: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest --nbval

# Speed and memory, one JSON line a measurement.
bench: .venv/.ready
	$(BIN)/python benchmarks/transforms.py
	$(BIN)/python -m atslib bench attack
	$(BIN)/python -m atslib bench scores

# What can be made again in seconds; .venv and .store stay.
clean:
	rm -rf book/_build .pytest_cache .ruff_cache
	find atslib benchmarks notebooks tests -name __pycache__ -prune -exec rm -rf {} +

.venv/.ready: requirements.txt pyproject.toml
	$(PY) -m venv .venv
	$(BIN)/python -m pip install -q -r requirements.txt
	touch $@
