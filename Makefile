# make bench: from a fresh clone to a leaderboard.   make test: from a fresh clone to a tested one.
# make test ONLY=lion: all tests of one entry, in under a minute.
# Both make their own virtual environment; PYTHON names the interpreter it is made with (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 10
READY = $(VENV)/.ready
ENTRY_TESTS = tests/techniques tests/measure/test_exact.py tests/measure/test_paper_scale.py

.PHONY: bench test lint numbers clean

bench: $(READY)
	$(VENV)/bin/leantrain run --minutes $(MINUTES)
	$(VENV)/bin/leantrain leaderboard --write leaderboard.md --write leaderboard.html

test: $(READY)
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal --durations=15 $(if $(ONLY),--only $(ONLY) $(ENTRY_TESTS))

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The harness's own figures: start-up, time between blocks, spread of A/A comparisons.
numbers: $(READY)
	$(VENV)/bin/python -m tests.numbers

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(READY)

clean:
	rm -rf $(VENV)
