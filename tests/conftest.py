"""The environment, set before any kernel module is imported (Triton decides at decoration whether a kernel is
interpreted) and before any operator runs, and ``--only ID``, which keeps the tests of one entry.

The tests have the portable arithmetic, so that they say the same on every CPU; LEANTRAIN_TESTS=native takes it away.
``make test`` runs the tests that depend on arithmetic natively, too.

Garbage is not looked for among the libraries and the collected tests, a million objects: each count of a step collects
it before, and looks through what is left for what the run holds. What tests load joins them every few tests.
"""

import gc
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from suite.record.numerics import PORTABLE, PORTABLE_ENVIRONMENT, compiled_apart, has, spelled
from tests import lent_server, only

if has(PORTABLE) and os.environ.get("LEANTRAIN_TESTS") != "native":
    os.environ.update(PORTABLE_ENVIRONMENT)
os.environ.update(compiled_apart(spelled(os.environ)))
os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # test workers share the cores; contenders set their own
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads stall a busy machine
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
gc.set_threshold(100_000)
ENDED = itertools.count()
lent_server.lend()

# No test fails for being slow: workers share the cores, perhaps with others. Every run tries the same cases, so that a
# gate fails for what changed; `pytest --hypothesis-profile fuzz` tries others.
settings.register_profile("fuzz", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("shared", settings.get_profile("fuzz"), derandomize=True)
settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only", metavar="ID", help="only the tests of this technique: its own file, and cases named by it"
    )


def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("--only")
    if wanted is not None and (problem := only.problem(wanted)):
        raise pytest.UsageError(problem)


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_runtest_teardown() -> None:
    if next(ENDED) % 10 == 0:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain of what is not taken down at the end


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What another entry's tests import need not be loaded."""
    wanted = config.getoption("--only")
    return True if wanted is not None and only.entry_of(collection_path) not in (wanted, None) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--only")
    if wanted is None:
        return
    kept = [item for item in items if only.is_of(wanted, item.path, item.name)]
    if others := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=others)
    items[:] = kept
