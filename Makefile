# make bench: from a fresh clone to a leaderboard.   make test: from a fresh clone to a tested one.
# It counts and times the catalogue here, each technique on one baseline first; curves that are committed are used.
# make test ONLY=lion: all tests of one entry, in under a minute.   make docs: the documentation, in site/.
# All make their own virtual environment; PYTHON names the interpreter it is made with (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 10
SHARE ?= 1
READY = $(VENV)/.ready
# A committed run, to be learned again here: its curves are used, so one of them is checked.
REPEATED = $(shell sed -n '1s/.*"id":"\([0-9a-f]*\)".*/\1/p' results/*/learned.jsonl 2>/dev/null | head -1)
ENTRY_TESTS = tests/techniques tests/measure/test_exact.py tests/measure/test_paper_scale.py

.PHONY: bench test torture docs lint numbers axe clean

bench: $(READY)
	$(VENV)/bin/leantrain run --seeds 1 --minutes $(MINUTES)
	$(if $(REPEATED),-$(VENV)/bin/leantrain repro $(REPEATED))
	$(VENV)/bin/leantrain leaderboard --write leaderboard.md --write leaderboard.html

test: $(READY)
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal --durations=15 $(if $(ONLY),--only $(ONLY) $(ENTRY_TESTS))

# The documentation, from the README, the cards and the committed records: site/index.html opens without a server;
# its search needs one: python -m http.server -d site.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Attacks that a test may not afford: kills, signals, hostile techniques, full disks. SHARE=0.1 makes a tenth of them.
torture: $(READY)
	$(VENV)/bin/python -m tests.torture --share $(SHARE) --write tests/torture/README.md

# The harness's own figures: start-up, a learned run, several at once, A/A timings and their spread.
numbers: $(READY)
	$(VENV)/bin/python -m tests.numbers

# The page of the committed records under axe-core, where Chromium and axe-core are (npm install axe-core).
axe: $(READY)
	$(VENV)/bin/python -m tests.show.axe

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $(READY)

$(VENV)/.docs: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) site
