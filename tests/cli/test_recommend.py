"""leantrain recommend: what fits is counted and ordered, what cannot be answered is one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from suite.cli import app
from suite.cli.shared import Exit
from suite.measure.at_scale.full_size import Scale
from suite.record.job import Setting
from suite.topics.recommend import recommendation
from suite.topics.recommend.choice import BY_FLOPS, Candidate, Estimate, StepCost
from suite.topics.recommend.costs import Counting
from tests.model.transformer_models import SIZES, TEXT

PICO = ["recommend", "-b", "gpt", "--size", "pico"]
CHECKPOINTED = "ckpt_chen_sqrt"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of these tests, and no others."""
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path / "cache"))


def asked(tmp_path: Path, *options: str) -> Any:
    """A call without records, which would take most of its time."""
    none = tmp_path / "none"
    none.mkdir(exist_ok=True)
    return CliRunner().invoke(app, [*PICO, "--results", str(none), *options])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--memory", "24XB"], "write 24GB, 24GiB or 25GB/s"),
        (["--memory", "1GB", "--goal", "speed"], "no goal is called 'speed'"),
        (["--memory", "1GB", "-t", "lion+adam"], "lion and adam cannot be stacked: each replaces the optimizer"),
        (["--memory", "1GB", "-t", "zero1"], "zero1 does not apply to a loop of your own: it shards"),
        (["--memory", "1GB", "--model", "no/such/folder"], "no/such/folder"),
        (["--memory", "1GB", "--recipe", "compiled"], "choose by --recipe modern"),
        (["--memory", "1GB", "--gpu", "H100", "--device", "cpu"], "leave out --device cpu"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(options: list[str], words: str, tmp_path: Path) -> None:
    done = asked(tmp_path, *options)
    assert (done.exit_code, words in " ".join((done.output + str(done.exception)).split())) == (2, True), done.output


def test_a_memory_below_the_weights_is_answered_by_what_was_counted(tmp_path: Path) -> None:
    done = asked(tmp_path, "--memory", "1kB", "--dry-run")
    assert done.exit_code == 1 and "Nothing that was counted fits: the least is" in done.output


def test_counts_decide_what_fits_and_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    counting = Counting(Scale(Setting(baseline="gpt", size="pico")))
    plain, small = (counting.cost(stack).peak_bytes for stack in ("baseline", CHECKPOINTED))
    assert 0 < small < plain
    between = f"{(plain + small) / 2 / 1e6}MB"
    done = asked(tmp_path, "--memory", between, "-t", CHECKPOINTED, "--dry-run", "--json")
    answer = json.loads(done.stdout)
    assert done.exit_code == 0 and answer["best"] == CHECKPOINTED and answer["rungs"] == []
    assert [each["peak_bytes"] for each in answer["fitting"]] == [small]
    assert [each["peak_bytes"] for each in answer["too_large"]] == [plain]
    (own,) = answer["contributions"]
    assert own["without"] == "baseline" and not own["without_fits"]
    assert answer["why_unmeasured"] and "no record of its quality here" in answer["left_out"].values()


def test_what_nothing_fits_says_the_least_that_there_is(tmp_path: Path) -> None:
    known = json.loads(asked(tmp_path, "--memory", "1GB", "--dry-run", "--json").stdout)["plain"]
    done = asked(tmp_path, "--memory", f"{(known['peak_bytes'] - 1) / 1e6}MB", "--dry-run")
    assert (done.exit_code, "Nothing that was counted fits: the least is" in done.output) == (Exit.REGRESSED, True)


def test_a_users_folder_that_no_machine_here_can_train_is_counted_and_said_to_be(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(**TEXT, **SIZES, architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path / "folder")
    options = ["--model", str(tmp_path / "folder"), "--batch", "2", "-t", "lion", "--gpu", "H100", "--memory", "80GB"]
    done = asked(tmp_path, *options)
    said = " ".join(done.output.split())
    assert done.exit_code == 0, done.output
    assert "modelled on" in said and "not measured here" in said and "lion" in said


def test_a_time_by_flops_is_not_called_exact() -> None:
    by_flops = Candidate("x", StepCost(stack="x", peak_bytes=10), Estimate(math.log(2), source=BY_FLOPS))
    ((_, _, _, to_quality, time, _, _),) = recommendation.ranked([by_flops], 10)
    assert (to_quality, time) == ("×2 (by its FLOPs)",) * 2
