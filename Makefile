# make bench: from a fresh clone to a leaderboard.   make test: from a fresh clone to a tested one.
# It counts and times the catalogue here, each technique on one baseline first; curves that are committed are used.
# make test ONLY=lion: all tests of one entry, in under a minute.   make docs: the documentation, in site/.
# make mutants: what make test has no time for, an hour and a half of it: every entry on all baselines that its card
# names, and broken on purpose, one mutant after another; what no claim notices fails.
# make learn: the runs that take days, on one core at the lowest priority; stop it when you like, it goes on where it was.
# make evidence: renews by today's code what older code counted and learned, and draws the boards anew; goes on where it was.
# make gpu: on a borrowed GPU machine whose Python has torch: rehearsal, kernels, then measurements at base.
# All others make their own virtual environment; PYTHON names the interpreter it is made with (3.11 or newer).
PYTHON ?= python3
VENV ?= .venv
MINUTES ?= 10
ROUNDS ?= 8
SHARE ?= 1
READY = $(VENV)/.ready
ENTRY_TESTS = tests/techniques tests/chain tests/pipeline tests/kernels tests/measure/test_exact.py \
	tests/measure/test_paper_scale.py
# What may differ in this machine's own arithmetic, which timed runs have: a second time, in it. GPUs' machine code, prepared
# text and caches may not.
NATIVE_TESTS = tests/record/test_numerics.py tests/measure/test_learning.py tests/techniques/optimizers \
	$(patsubst %,tests/kernels/test_%.py,multi_tensor optimizer optimizer_parts portable) \
	$(patsubst %,tests/baselines/test_%.py,baselines classical models)

.PHONY: bench learn evidence gpu test mutants torture docs lint numbers axe lock clean

# What was measured is drawn whatever the run said, whose exit code is that of all: not 0 where nothing was measured.
bench: $(READY)
	@code=0; $(VENV)/bin/leantrain run --seeds 1 --rounds $(ROUNDS) --minutes $(MINUTES) || code=$$?; \
	$(VENV)/bin/leantrain repro; \
	$(VENV)/bin/leantrain leaderboard --write leaderboard.md --write leaderboard.html && exit $$code

# Off every clock, so other work may go on beside it; what has ended is in results/. In a clone of its own the code stays
# as it was when it began. LEARN has further options: make learn LEARN="-b gpt --size micro --seeds 2".
learn: $(READY)
	nice -n 19 $(VENV)/bin/leantrain run --no-time --cores 1 --seeds 3 --ruler 3 --minutes 10000 $(LEARN)

# Counts are made again. Of what was learned a tenth of a run is repeated, which renews all of it where it is equal to the
# bit; what is not is left to make learn. Off every clock.
evidence: $(READY)
	$(VENV)/bin/leantrain run --renew --size nano --size micro --size mini --recipe modern --recipe classic --ruler 3 \
		--minutes 10000
	$(VENV)/bin/leantrain leaderboard --replace --write leaderboard.md
	$(VENV)/bin/leantrain leaderboard --format findings --write README.md

# The bench of a machine that is lent for minutes: nothing is installed. OUT, DEVICE, SIZE, MINUTES (30): see gpu.sh.
gpu:
	PYTHON=$(PYTHON) MINUTES=$(if $(filter file,$(origin MINUTES)),30,$(MINUTES)) ./gpu.sh

test: $(READY)
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal --durations=20 $(if $(ONLY),-m "not slow" --only $(ONLY) $(ENTRY_TESTS))
	$(if $(ONLY),,LEANTRAIN_TESTS=native $(VENV)/bin/python -m pytest -n 2 --dist worksteal $(NATIVE_TESTS))

mutants: $(READY)
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal -m whole

# The documentation, from the README, the cards and the committed records: site/index.html opens without a server;
# its search needs one: python -m http.server -d site.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Attacks that a test may not afford: kills, signals, hostile techniques, full disks. SHARE=0.1 makes a tenth of them,
# ATTACK="kills disks" these alone; their rows take the place of those that are committed.
torture: $(READY)
	$(VENV)/bin/python -m tests.torture --share $(SHARE) --keep $(ATTACK)

# The harness's own figures: start-up, a learned run, several at once, A/A timings and their spread.
numbers: $(READY)
	$(VENV)/bin/python -m tests.numbers

# The page of the committed records under axe-core, where Chromium and axe-core are (npm install axe-core).
axe: $(READY)
	$(VENV)/bin/python -m tests.show.axe

# All is in the lock, so nothing is resolved; pip checks each file by its hash. What is imported is compiled then.
$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements.lock
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation -e .
	touch $(READY)

# What the tests and the documentation need, with its hashes, in the versions of constraints.txt. Needs uv.
lock:
	uv pip compile pyproject.toml --extra test --extra docs --constraints constraints.txt --universal \
		--python-version 3.11.7 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
		--custom-compile-command "make lock" --output-file requirements.lock

clean:
	rm -rf $(VENV) site
