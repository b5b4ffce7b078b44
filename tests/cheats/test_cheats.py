"""Planted cheats end as failures that name the rule which they break; what plays by the rules does not.

Of those that learn, some of every rule are tried here, and all by ``python -m tests.numbers.cheats``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from suite.loop.technique import Unavailable
from suite.measure.rules import held_out, oversight
from suite.measure.rules.broken import RuleBroken
from suite.measure.rules.threads import all_threads_counted
from tests.cheats import planted, tried
from tests.cheats.tried import HONEST

OTHERS = ("bert", "vit", "mae")
SAMPLED = ("masks_the_inputs_that_are_its_labels", "steps_in_a_thread", "steps_beside_torch")
HONEST_ELSEWHERE = f"{HONEST} of vit"  # where those that gain nothing are tried
ON_OTHERS = [f"{name} of {baseline}" for baseline in OTHERS for name in (HONEST, *SAMPLED)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tried.installed(tmp_path_factory.mktemp("cheats"))


@pytest.fixture(scope="module")
def ends(root: Path) -> dict[str, list[str]]:
    """Status and reason of all, tried by two processes at once."""
    asked = {
        "learn": [HONEST, *planted.UNSEEN, *planted.quick(), *ON_OTHERS],
        "time": [HONEST, *planted.TIMED, *planted.MISREPORTED],
    }
    known: dict[str, list[str]] = {}
    for how, names in asked.items():
        ended = tried.ends(root, how, names)
        known |= {(how if name == HONEST else name): end for name, end in ended.items()}
    return known


def test_there_are_enough() -> None:
    assert len(planted.CHEATS) - len(planted.UNCAUGHT) >= 40


def test_the_committed_table_has_them_all() -> None:
    assert (Path(planted.__file__).parent / "README.md").read_text("utf-8").endswith(f"\n\n{planted.table()}")


TRIED = [*planted.quick(), *planted.TIMED]


@pytest.mark.parametrize("name", [each for each in TRIED if each not in planted.UNCAUGHT])
def test_a_cheat_is_caught_by_the_rule_that_it_breaks(name: str, ends: dict[str, list[str]]) -> None:
    honest = ends[HONEST_ELSEWHERE] if name in planted.ON else ends["learn"]
    assert planted.is_caught(name, ends[name], honest), ends[name]


def test_what_comes_through_is_named(ends: dict[str, list[str]]) -> None:
    assert {name: ends[name][:2] for name in planted.UNCAUGHT} == {name: ["ok", ""] for name in planted.UNCAUGHT}


def test_no_accident_fools_another_baseline(ends: dict[str, list[str]]) -> None:
    """Of those that ``python -m tests.numbers.cheats`` tries, some that take no clock."""
    for baseline in OTHERS:
        assert ends[f"{HONEST} of {baseline}"][:2] == ["ok", ""]
        for name in SAMPLED:
            status, reason, *_ = ends[f"{name} of {baseline}"]
            if name in planted.UNSEEN:
                assert status == "unavailable" and "ran in a thread of the technique's own" in reason
            else:
                assert status == "failed" and f"rule {planted.CHEATS[name][1]!r} is broken" in reason, reason


def test_a_number_that_is_none_is_the_failure_of_its_side_alone(ends: dict[str, list[str]]) -> None:
    for name in planted.MISREPORTED:
        status, reason = ends[name]
        assert status == "failed" and "its reply to 'set_up' cannot be kept: setup_s" in reason, (status, reason)
    assert ends["time"] == ["ok", ""]


@pytest.mark.parametrize("how", ["learn", "time"])
def test_what_plays_by_the_rules_is_fine(how: str, ends: dict[str, list[str]]) -> None:
    assert ends[how][:2] == ["ok", ""]


def test_work_that_no_counter_sees_is_unavailable(ends: dict[str, list[str]]) -> None:
    """Counters are those of the thread that steps."""
    status, reason, *_ = ends["steps_in_a_thread"]
    assert status == "unavailable" and "aten::addmm" in reason and "ran in a thread of the technique's own" in reason


def test_a_learned_run_names_what_it_could_not_count(ends: dict[str, list[str]]) -> None:
    status, _, _, *uncounted = ends["computes_what_has_no_formula"]
    assert status == "ok" and uncounted == ["aten._cdist_forward"]


def test_threads_that_compute_no_products_are_no_work() -> None:
    def elsewhere(work: Callable[[], object]) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()

    ones = torch.ones(3, 3)
    with all_threads_counted():
        elsewhere(lambda: torch.nn.functional.dropout(ones.sort().values[:2] + 1).sum())
        _ = ones @ ones
    with pytest.raises(Unavailable, match="aten::mm ran in a thread"), all_threads_counted():
        elsewhere(lambda: ones @ ones)


def test_a_part_of_a_shard_has_the_sum_of_the_same_bits_elsewhere() -> None:
    whole = torch.arange(12).bfloat16()
    parts = torch.nn.ParameterList([whole[1:5], whole[1:5].clone()])
    first, second = held_out.state_of(parts)
    assert first == second


def watched(outside_s: float, queued_s: float) -> oversight.Watch:
    """Of a child that is away for longer than it says, in every block, and waited for a core."""
    watch = oversight.Watch(os.getpid())
    for _ in range(oversight.FEWEST_BLOCKS):
        watch.asked()
        watch.answered(0.1 - outside_s, 0.0, queued_s)
    watch.outside_s = [each + 0.1 for each in watch.outside_s]
    watch.said_s = [0.1] * oversight.FEWEST_BLOCKS
    return watch


def test_a_child_that_waited_for_a_core_is_no_cheat() -> None:
    oversight.check(watched(0.2, 0.2), None)
    with pytest.raises(RuleBroken, match="the clock is the parent's"):
        oversight.check(watched(0.2, 0.0), None)


def test_what_a_process_left_behind_computes_is_no_matter_of_its_share() -> None:
    """A busy machine leaves it little of the time: all of it counts."""
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    watch = oversight.Watch(os.getpid())
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as orphan:
        assert orphan.stdout
        watch.left([orphan.pid])
        orphan.stdout.readline()
        watch.asked()
        watch.answered(0.0, 0.0)
        orphan.kill()
    watch.said_s, watch.outside_s = [99.0] * oversight.FEWEST_BLOCKS, [0.0] * oversight.FEWEST_BLOCKS
    watch.said_cpu_s = watch.wall_s = 99.0 * oversight.FEWEST_BLOCKS
    with pytest.raises(RuleBroken, match=r"processes that it left behind computed for 0\.\d+ s"):
        oversight.check(watch, 1)
    watch.orphans_cpu_s = 0.0
    oversight.check(watch, 1)


def test_what_waits_for_a_core_is_seen_to() -> None:
    """Three at once on one core wait for two thirds of their time."""
    core = min(os.sched_getaffinity(0))
    burn = (
        f"import os, time; os.sched_setaffinity(0, {{{core}}}); end = time.time() + 1.5\nwhile time.time() < end: pass"
    )
    children = [subprocess.Popen([sys.executable, "-c", f"{burn}\ninput()"], stdin=subprocess.PIPE) for _ in range(3)]
    time.sleep(2.5)
    try:
        assert all(oversight.queued_s(child.pid) > 0.3 for child in children)
    finally:
        for child in children:
            child.kill()
            child.wait()
