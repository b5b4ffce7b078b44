"""A rank of many on one process, against ZeRO's formulas; tests/techniques/parallelism holds it against real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

from suite.cli import app
from suite.device.ranks import STEP_S, wait_a_few_times
from suite.measure import exact, torchrun
from suite.measure.at_scale.fake_ranks import fake_ranks
from suite.measure.at_scale.full_size import Scale, StepCount, counted
from suite.measure.contenders.contender import check_batches
from suite.measure.contenders.world import is_distributed, with_ranks
from suite.measure.missing import pairs_of
from suite.record.job import Setting

# Rajbhandari et al., SC 2020, figure 1 and section 7, Adam in float32: bytes of states a parameter, volume in models.
FORMULAS = {
    "dp_ddp": (lambda n: 16, 2),
    "comm_overlap": (lambda n: 16, 2),
    "zero1": (lambda n: 8 + 8 / n, 2),
    "zero2": (lambda n: 4 + 12 / n, 2),
    "zero3_fsdp": (lambda n: 16 / n, 3),
    "zero1:mixed_precision=true": (lambda n: 4 + 12 / n, 1),  # of half as many bytes
    "zero2:mixed_precision=true": (lambda n: 2 + 14 / n, 1),
    "zero3_fsdp:mixed_precision=true": (lambda n: 16 / n, 1.5),
}


def of(stack: str, ranks: int, **setting: Any) -> StepCount:
    at = Setting(**({"baseline": "vit", "size": "pico", "recipe": "classic", "device": "cuda", "steps": 2} | setting))
    count = counted(with_ranks(stack, ranks), Scale(at, ranks=ranks))
    assert count.counters is not None, count.unavailable
    return count


@pytest.mark.parametrize(
    ("stack", "ranks"),
    [
        ("dp_ddp", 2),
        ("comm_overlap", 64),
        ("zero1", 64),
        ("zero2", 1024),
        ("zero1:mixed_precision=true", 1024),
        ("zero2:mixed_precision=true", 2),
    ],
)
def test_states_and_volume_are_the_papers(stack: str, ranks: int) -> None:
    """Of flat buffers, but for less than N elements of padding in each of two parameter groups."""
    state, volume = FORMULAS[stack]
    count = of(stack, ranks)
    assert count.counters is not None and count.ranks == ranks
    parameters = count.counters.parameter_count
    padding = 2 * (ranks - 1) * 16
    assert state(ranks) * parameters <= count.state_bytes <= state(ranks) * parameters + padding
    ideal = volume * 4 * parameters * (ranks - 1) / ranks
    sent = count.counters.communication_bytes
    assert sent is not None and ideal - 1 < sent <= ideal + 3 * padding  # a whole number of bytes


@pytest.mark.parametrize(("stack", "ranks"), [("zero3_fsdp", 4), ("zero3_fsdp:mixed_precision=true", 2)])
def test_fully_sharded_states_are_the_papers_where_a_dimension_divides(stack: str, ranks: int) -> None:
    state, volume = FORMULAS[stack]
    count = of(stack, ranks, baseline="gpt")
    assert count.counters is not None and count.counters.communication_bytes is not None
    assert count.state_bytes_per_parameter == pytest.approx(state(ranks), rel=1e-3)
    ideal = volume * 4 * count.counters.parameter_count * (ranks - 1) / ranks
    assert count.counters.communication_bytes == pytest.approx(ideal, rel=0.02)
    assert set(count.collectives()) == {"all_gather", "reduce_scatter", "all_reduce"}


def test_each_rank_has_the_baselines_batch_or_its_share() -> None:
    own, shared = of("dp_ddp", 4), counted("dp_ddp:ranks=4", Scale(Setting(baseline="vit", size="pico", steps=2)))
    assert own.batch["labels"] == (4,) and shared.batch["labels"] == (1,)


def test_an_exact_verdict_is_of_the_same_ranks_and_batch_as_a_count_that_is_kept() -> None:
    at = Setting(baseline="vit", size="pico", recipe="classic", steps=2)
    seen = exact.at_scale(at, "dp_ddp:ranks=4").counters
    assert seen is not None and seen == of("dp_ddp", 4).counters


def test_the_command_answers_by_rank_and_refuses_in_a_sentence() -> None:
    command = ["count", "-b", "gpt", "--size", "pico", "--recipe", "classic", "--ranks", "4", "-t"]
    told = CliRunner().invoke(app, [*command, "zero2", "--json"])
    assert told.exit_code == 0, told.output
    (report,) = json.loads(told.stdout)
    assert (report["reference"]["stack"], report["stack"]["stack"]) == ("dp_ddp:ranks=4", "zero2:ranks=4")
    assert report["reference"]["state_bytes_per_parameter"] == 16
    assert report["stack"]["state_bytes_per_parameter"] == pytest.approx(7, rel=1e-3)
    scattered = report["stack"]["collectives"]["reduce_scatter"]
    assert scattered["ring_bytes"] == pytest.approx(0.75 * scattered["bytes"], abs=1)
    shown = CliRunner().invoke(app, [*command, "zero2"], env={"COLUMNS": "400"})
    assert "rank 0 of 4" in shown.stdout and "each of 4 ranks holds 7" in shown.stdout
    for stack, options, words in (
        ("lion", [], "lion trains in one process"),
        ("zero2", ["--batch", "6"], "does not divide among 4 ranks"),
    ):
        refused = CliRunner().invoke(app, [*command, stack, *options])
        assert refused.exit_code == 2 and words in refused.output.replace("\n", " "), refused.output


def test_one_rank_is_no_group_and_a_group_is_left_behind() -> None:
    with fake_ranks(1) as mesh:
        assert mesh is None
    with fake_ranks(8) as mesh:
        assert mesh is not None and mesh.size() == 8
        with pytest.raises(ValueError, match="one of real ranks"), fake_ranks(2):
            pass
    assert not dist.is_initialized()


def test_every_technique_with_ranks_of_a_stack_gets_them() -> None:
    assert with_ranks("lion+dp_ddp:bucket_mb=1", 8) == "lion+dp_ddp:bucket_mb=1,ranks=8"
    assert is_distributed("lion+zero1") and not is_distributed("lion") and not is_distributed("baseline")


def test_outside_of_torchrun_its_module_says_who_starts_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        torchrun.main(["-t", "zero2"])
    assert "start it by torchrun" in capsys.readouterr().err


def test_both_sides_of_a_pair_get_as_many_ranks() -> None:
    at = Setting(baseline="gpt", size="pico")
    (pair,) = pairs_of(["zero2"], ["gpt"], ["modern"], at, ranks=4)
    assert (pair.reference, pair.stack) == ("dp_ddp:ranks=4", "zero2:ranks=4")
    (alone,) = pairs_of(["dp_ddp"], ["gpt"], ["modern"], at, ranks=4)
    assert alone.reference == "baseline"
    with pytest.raises(ValueError, match="lion trains in one process"):
        pairs_of(["lion"], ["gpt"], ["modern"], at, ranks=4)


@pytest.mark.parametrize(("stack", "ranks"), [("gpipe", 2), ("pipedream", 4)])
def test_a_pipeline_s_first_rank_sends_what_it_hands_on_once(stack: str, ranks: int) -> None:
    setting = Setting(baseline="gpt", size="nano", recipe="classic", device="cuda", steps=2)
    count = counted(with_ranks(stack, ranks), Scale(setting))
    assert count.counters is not None, count.unavailable
    hidden = 4 * 32 * 32 * 48  # float32 of each token of each example of the batch
    assert count.collective_bytes["send"] == hidden
    reduced = 2 * (ranks - 1) / ranks * count.collective_bytes["all_reduce"]
    assert count.counters.communication_bytes == pytest.approx(hidden + reduced, abs=1)
    assert count.state_bytes_per_parameter == 16  # of the parameters that it holds


@pytest.mark.parametrize(
    ("stack", "ranks", "words"),
    [
        ("dp_ddp", 3, "a batch of 4 does not divide among 3 ranks: take 1, 2 or 4 of them"),
        ("gpipe", 4, "2 blocks do not make 4 stages"),
    ],
)
def test_ranks_that_do_not_divide_are_refused_before_anything_is_written(
    tmp_path: Path, stack: str, ranks: int, words: str
) -> None:
    folder = tmp_path / "results"
    command = ["run", "-t", stack, "-b", "gpt", "--size", "pico", "--ranks", str(ranks), "--results", str(folder)]
    refused = CliRunner().invoke(app, command, env={"COLUMNS": "400"})
    assert refused.exit_code == 2 and words in refused.output, refused.output
    assert not folder.exists()


def test_of_all_techniques_a_batch_that_does_not_divide_is_refused() -> None:
    check_batches([Setting(baseline="gpt", size="pico")], 2)
    with pytest.raises(ValueError, match="a batch of 4 does not divide among 8 ranks"):
        check_batches([Setting(baseline="gpt", size="pico")], 8)


class Clocked:
    """A run of 40 steps, each of which takes as many seconds as its number in a clock that others read."""

    def __init__(self) -> None:
        self.step, self.now_s, self.recipe = 0, 0.0, SimpleNamespace(steps=40)

    def train(self, steps: int) -> list[float]:
        self.step += steps
        self.now_s += 10.0 * steps
        return [0.0] * steps


def test_ranks_of_torchrun_wait_a_few_times_as_long_as_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    run, limits = Clocked(), []
    mesh = SimpleNamespace(get_group=lambda: SimpleNamespace(set_timeout=lambda limit: limits.append(limit)))
    monkeypatch.setattr(torchrun.time, "monotonic", lambda: run.now_s)
    assert len(torchrun.trained(run, mesh, quiet=True)) == run.step == 40  # type: ignore[arg-type]
    assert {limit.total_seconds() for limit in limits} == {30.0}, "three times the 10 seconds of a step"
    wait_a_few_times(mesh, 0.1)  # type: ignore[arg-type]
    assert limits[-1].total_seconds() == STEP_S
