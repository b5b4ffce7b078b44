"""A run in real processes: what comes back, and how each way to end reads in the parent."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from suite.measure.contenders.contender import Contender, Limits, check_model_apart
from suite.measure.contenders.worker import Session
from suite.process.child import ContenderFailed, end_all
from suite.record.job import Job, Setting, StackError


@contextmanager
def contender(stack: str = "baseline", **settings: Any) -> Iterator[Contender]:
    limits = settings.pop("limits", Limits())
    setting = Setting(**{"baseline": "gpt", "size": "pico", "recipe": "classic", "steps": 8} | settings)
    run = Contender(Job(setting=setting, stack=stack), limits)
    run.start()
    try:
        yield run
    finally:
        run.close()


def alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_run_from_start_to_end() -> None:
    with contender("lion") as run:
        run.prepare()
        ready = run.set_up()
        first, second = run.block(3), run.block(5)
        score = run.evaluate("test", 8)
        counters, probes = run.count(), run.probes()
        memory, energy = run.usage()
    assert (ready.steps, len(first.losses), len(second.losses)) == (8, 3, 5)
    assert ready.setup_s > 0
    assert first.seconds > 0
    assert first.cpu_s > 0
    assert run.spent_s == pytest.approx(ready.setup_s + first.seconds + second.seconds)
    assert score.step == 8
    assert math.isfinite(score.loss)
    assert counters.flops > 0
    assert counters.communication_bytes is None
    assert probes == {}
    assert memory.process_peak_bytes and memory.process_start_bytes
    assert memory.process_peak_bytes > memory.process_start_bytes
    assert memory.cuda_allocated_peak_bytes is None
    assert (energy.joules_per_step, bool(energy.reason)) == (None, True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_what_preparation_took_is_no_memory_of_the_run() -> None:
    """A first run trains the checkpoint that it starts from, and a later one finds it in the cache."""
    peaks = []
    for taken in (0, 400):
        session = Session(Job(setting=Setting(baseline="gpt", size="pico", steps=8), stack="baseline"), 0, 1, "")
        session.prepare(True)
        small = [bytearray(2**14) for _ in range(taken * 2**6)]  # in MiB; the allocator keeps such small pieces
        del small
        session.set_up(recorded=False, nudge=0, tallied=False, counted=False)
        session.block(2)
        memory, _ = session.usage(0.0)
        assert memory.process_start_bytes and memory.process_peak_bytes
        peaks.append((memory.process_start_bytes, memory.process_peak_bytes))
    (start, peak), (start_after, peak_after) = peaks
    assert abs(start_after - start) < 100 * 2**20 and abs(peak_after - peak) < 100 * 2**20


def test_blocks_do_not_change_the_trajectory() -> None:
    ends = []
    for blocks in ((8,), (1, 2, 5)):
        with contender() as run:
            run.prepare()
            run.set_up()
            losses: list[float] = []
            for steps in blocks:
                run.evaluate("validation", len(losses))
                losses += run.block(steps).losses
            ends.append((losses, run.evaluate("test", 8)))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("limits", "status"), [({"train_s": 2.0}, "timeout"), ({"reply_s": 2.0}, "hung")])
def test_a_block_beyond_its_limit_is_not_waited_for(limits: dict[str, float], status: str) -> None:
    with contender(steps=10**6) as run:
        run.prepare()
        run.set_up()
        run.limits = Limits(limits.get("train_s", 3600.0) + run.spent_s, limits.get("reply_s", 600.0))
        with pytest.raises(ContenderFailed) as caught:
            run.block(10**6)
        processes = run.pids
    assert caught.value.status == status
    assert processes
    assert not any(map(alive, processes))


def test_a_set_up_that_spent_the_limit_is_a_timeout() -> None:
    with contender(limits=Limits(train_s=1e-6)) as run:
        run.prepare()
        with pytest.raises(ContenderFailed, match="more than the time limit of 1e-06 s"):
            run.set_up()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_death_between_and_within_calls_is_told(how: signal.Signals) -> None:
    with contender() as run:
        run.prepare()
        os.kill(run._ranks[0].pid, how)
        assert run._ranks[0].ended(60)
        with pytest.raises(ContenderFailed, match=how.name) as caught:
            run.set_up()
    assert caught.value.status == "crashed", "a SIGKILL is a want of memory where the kernel counted one"


def test_errors_of_the_run_come_with_their_reason() -> None:
    with contender("progressive_stacking+dp_ddp") as run:
        run.prepare()
        with pytest.raises(ContenderFailed, match="use it in a single process") as caught:
            run.set_up()
    assert caught.value.status == "failed"
    assert "technique.py" in caught.value.details


def test_a_model_that_would_take_for_ever_to_be_built_is_given_up(tmp_path: Path) -> None:
    whole = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 10**7, "vocab_size": 128, "n_positions": 64}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    setting = Setting(baseline="gpt", size="pico", model=str(tmp_path))
    with pytest.raises(ContenderFailed, match="no answer within 2 s") as caught:
        check_model_apart(setting, limit_s=2.0)
    assert caught.value.status == "hung"
    (tmp_path / "config.json").write_text(json.dumps(whole | {"n_layer": 2}))
    check_model_apart(setting)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"config\.json"):
        check_model_apart(setting)


def test_what_cannot_be_built_raises_before_a_process_starts() -> None:
    with pytest.raises(StackError, match="cannot be stacked"):
        Contender(Job(setting=Setting(baseline="gpt"), stack="lion+adamw"))


def test_ranks_train_as_one() -> None:
    """Two ranks on halves of the batch follow the single process on all of it, and say what they sent."""
    losses = {}
    for stack, ranks in (("baseline", 1), ("dp_ddp", 2)):
        with contender(stack, size="nano") as run:
            run.prepare()
            run.set_up()
            losses[stack] = run.block(1).losses + run.block(3).losses
            counters = run.count()
            assert len(run._ranks) == ranks
    assert losses["dp_ddp"][0] == pytest.approx(losses["baseline"][0], rel=0.02)  # dropout differs by rank
    assert losses["dp_ddp"][-1] == pytest.approx(losses["baseline"][-1], rel=0.05)
    assert counters.communication_bytes is not None
    gradients = 4 * counters.trainable_parameter_count
    assert gradients <= counters.communication_bytes <= 1.1 * gradients


def test_the_death_of_one_rank_ends_all() -> None:
    with contender("dp_ddp") as run:
        run.prepare()
        run.set_up()
        os.kill(run._ranks[1].pid, signal.SIGKILL)
        with pytest.raises(ContenderFailed):
            run.block(4)
        folder, processes = Path(run._folder), run.pids
    assert not any(map(alive, processes))
    assert not folder.exists()


def test_all_live_contenders_can_be_ended_and_whoever_waits_is_told() -> None:
    with contender(steps=10**6) as run:
        run.prepare()
        run.set_up()
        timer = threading.Timer(0.5, end_all)
        timer.start()
        with pytest.raises(ContenderFailed):
            run.block(10**6)
        timer.join()


def test_closing_ends_a_busy_process_at_once() -> None:
    with contender(steps=10**6) as run:
        run.prepare()
        run.set_up()
        run._ranks[0].ask(0, "block", (10**6,))
        time.sleep(0.2)
        pid = run._ranks[0].pid
        assert alive(pid)
    assert not alive(pid)


UNGUARDED = """
import sys
from suite.measure.contenders.contender import Contender
from suite.record.job import Job, Setting

main = sys.modules["__main__"]
run = Contender(Job(setting=Setting(baseline="gpt", size="pico", steps=2)))
run.start()
run.prepare()
run.set_up()
print("losses:", len(run.block(2).losses))
run.close()
assert sys.modules["__main__"] is main
"""


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    """Nor is one from standard input, as from a notebook's cell: tests/leantrain/test_library.py compares there."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "losses: 2\n"), done.stderr


READY = {"setup_s": 0.1, "steps": 8, "recipe": {}}
BLOCK = {"seconds": 0.1, "cpu_s": 0.1, "losses": [3.0, 3.0]}
HANDED = {"batches": 2, "held": {}}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        *[("set_up", READY | {"setup_s": bad}) for bad in (-3804.0, math.nan, math.inf, "soon", None)],
        ("set_up", READY | {"steps": 10**13}),
        *[("block", BLOCK | {name: bad}) for name in ("seconds", "cpu_s") for bad in (-1.0, math.nan, math.inf, 1e13)],
        *[("block", BLOCK | {"losses": losses}) for losses in ([3.0, math.nan], [math.inf, 3.0], [3.0])],
        *[("evaluate", HANDED | {"scores": scores}) for scores in ({}, {"loss": 1.0, "accuracy": "good"}, [1.0])],
        *[("evaluate", said) for said in (HANDED | {"batches": 0}, HANDED | {"held": {"train": ""}}, {}, [1.0])],
        *[("flops", {"total": bad}) for bad in (-1, 2**63, math.nan)],
        *[("link", {"latency_s": math.inf, "bytes_per_s": 1.0}), ("traffic", {"sent_bytes": 2**64, "messages": 0})],
    ],
)
def test_a_number_that_no_record_takes_is_a_failed_row(
    command: str, said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at where it arrives, so that the other side of a timing stays."""
    run = Contender(Job(setting=Setting(baseline="gpt", size="pico"), stack="baseline"))
    monkeypatch.setattr(run, "_call", lambda *_, **__: [said])
    monkeypatch.setattr(run, "referee", lambda *_: ["logits"])
    arguments = {"block": (2,), "evaluate": ("test", 8)}.get(command, ())
    with pytest.raises(ContenderFailed, match=f"its reply to '{command}' cannot be kept") as failed:
        getattr(run, command)(*arguments)
    assert failed.value.status == "failed"
