"""The public package: lazy, typed, and the same numbers as the commands."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leantrain
from leantrain import Effort, Training, layers, optim
from suite.entries.catalogue import UnknownId
from suite.loop.technique import Unavailable
from suite.record.store import Store
from tests import factories, plugin


def python(code: str, cwd: Path, *, idle: bool = True, **extra: str) -> subprocess.CompletedProcess[str]:
    """``code`` from standard input: there is no file that is ``__main__``."""
    return subprocess.run(
        [sys.executable, "-"],
        input=code,
        env=plugin.environment(cwd, idle=idle, **extra),
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=300,
    )


def test_importing_it_loads_nothing_and_every_name_is_there(tmp_path: Path) -> None:
    done = python(
        "import sys, leantrain\n"
        "heavy = {'torch', 'pandas', 'numpy', 'pydantic', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)), leantrain.__version__, dir(leantrain) == sorted(leantrain.__all__))\n"
        "print([name for name in leantrain.__all__ if getattr(leantrain, name) is None])",
        tmp_path,
        idle=False,  # the pretence would load what this is about
    )
    assert done.stdout.split("\n")[:2] == ["[] 0.1.0 True", "[]"], done.stderr
    with pytest.raises(AttributeError, match="module 'leantrain' has no attribute 'compere'"):
        leantrain.compere  # type: ignore[attr-defined]  # noqa: B018


# compare --------------------------------------------------------------------------------------------------------------

COMPARED = """
import leantrain
if __name__ == "__main__": print("main")  # once: contenders do not import what started them
training = leantrain.Training(steps=4)
effort = leantrain.Effort(seeds=1, timings=1, rounds=2, tune=False)
result = leantrain.compare("lion", "adamw", baseline="gpt", size="pico", training=training, effort=effort)
print(repr(result))
"""


def test_compare_runs_from_standard_input(tmp_path: Path) -> None:
    done = python(COMPARED, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("main\n") == 1
    assert "lion against adamw on gpt pico (modern, pretrain), 1 seed" in done.stdout
    assert "peak tensors" in done.stdout
    records = plugin.records(tmp_path / "results")
    assert {each.stack for each in records.learned} == {"adamw", "lion"}
    code, again, error = plugin.called(
        "compare",
        "lion",
        "adamw",
        "-b",
        "gpt",
        "--size",
        "pico",
        "--steps",
        4,
        "--seeds",
        1,
        "--timings",
        1,
        "--rounds",
        2,
        "--no-tune",
        "--results",
        tmp_path / "results",
        "--json",
    )
    assert code == 0, error
    ids = {each.id for each in records.lines}
    assert set(json.loads(again)["records"]) == ids, "the command sees it as measured"
    assert {each.id for each in plugin.records(tmp_path / "results").lines} == ids

    frame = leantrain.records(tmp_path / "results")
    flops = frame[frame.metric == "flops"].iloc[0]
    assert (flops.stack, flops.reference, flops.kind, flops["size"], flops.steps) == (
        "lion",
        "adamw",
        "exact",
        "pico",
        4,
    )


def test_compare_refuses_before_it_runs(tmp_path: Path) -> None:
    def refused(*arguments: Any, **options: Any) -> str:
        with pytest.raises((LookupError, ValueError, OSError, Unavailable)) as caught:
            leantrain.compare(*arguments, results=tmp_path / "results", **options)
        return str(caught.value)

    assert "no technique is called 'lionn'; did you mean lion" in refused("lionn")
    assert "no technique is called 'adamx'; did you mean adam" in refused("lion", "adamx")
    assert "no baseline is called 'gtp'; did you mean gpt" in refused("lion", baseline="gtp")
    assert "no size is called 'nan'; did you mean nano" in refused("lion", size="nan")
    assert "no task is called 'pretain'; did you mean pretrain" in refused("lion", training=Training(task="pretain"))
    assert "progressive_patch is not for gpt: its card names vit" in refused("progressive_patch", baseline="gpt")
    assert "steps must be at least 2" in refused("lion", training=Training(steps=1))
    assert "threads must be at least 1" in refused("lion", training=Training(threads=0))
    assert "seeds and timings are 1 or more" in refused("lion", effort=Effort(seeds=0))
    assert "no config.json there" in refused("lion", training=Training(model="/no/such/folder"))
    if not torch.cuda.is_available():
        assert "device cuda: torch" in refused("lion", training=Training(device="cuda"))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: leantrain.compare("lion", steps=4),  # type: ignore[call-arg]
            "compare takes steps in training: compare(..., training=leantrain.Training(steps=...))",
        ),
        (
            lambda: leantrain.compare("lion", seeds=1),  # type: ignore[call-arg]
            "compare takes seeds in effort: compare(..., effort=leantrain.Effort(seeds=...))",
        ),
        (
            lambda: leantrain.compare("lion", baselines=["gpt"]),  # type: ignore[call-arg]
            "compare has no 'baselines'; did you mean baseline?",
        ),
        (lambda: Effort(seed=1), "Effort has no 'seed'; did you mean seeds?"),  # type: ignore[call-arg]
        (
            lambda: Training(rho=1.0),  # type: ignore[call-arg]
            "Training has no 'rho'; it has recipe, task, steps, data, model, device, threads",
        ),
    ],
)
def test_an_unknown_keyword_is_refused_with_where_it_belongs(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == sentence


def test_options_have_the_names_and_defaults_of_the_command() -> None:
    from suite.cli import measure

    command = inspect.signature(measure.compare).parameters
    renamed = {"time_limit_s": "time_limit", "hang_limit_s": "hang_limit"}
    offered = {name: parameter.default for name, parameter in inspect.signature(leantrain.compare).parameters.items()}
    assert len(offered) <= 8
    offered |= vars(Training()) | vars(Effort())
    for name in ("progress", "training", "effort", "baseline", "recipe"):  # the command takes lists to refuse several
        del offered[name]
    for name, default in offered.items():
        others = command[renamed.get(name, name)].default
        assert default == (str(others) if name == "results" else others), name


# results --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    for each in factories.evidence("lion"):
        Store(tmp_path).append(each, factories.MACHINE.name)
    return tmp_path


def test_records_are_a_line_for_each_metric_with_what_is_unknown_missing(stored: Path) -> None:
    frame = leantrain.records(stored)
    step = frame.query("metric == 'step_time'").iloc[0]
    assert step.low <= step.value <= step.high
    assert (step.stack, step.kind, step.n) == ("lion", "measured", 3)
    unknown = frame[frame.kind == "unavailable"]
    assert len(unknown) and unknown.value.isna().all() and (unknown.reason != "").all()
    assert frame.dtypes[["stack", "steps", "value"]].astype(str).tolist() == ["string", "Int64", "float64"]
    assert not frame.duplicated(["stack", "metric"]).any()


def test_records_say_what_is_wrong_with_a_folder(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="measure something with: leantrain run"):
        leantrain.records(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert leantrain.records(tmp_path / "empty").empty
    path = next(stored.glob("*/learned.jsonl"))
    path.write_bytes(b'{"schema_version": 2, "id": "cut o\n' + path.read_bytes())
    with pytest.warns(UserWarning, match=r"learned.jsonl:1: .*left in place"):
        assert len(leantrain.records(stored))


def test_a_result_prints_a_sentence_and_the_numbers(stored: Path) -> None:
    from suite.judge.rows import rows

    result = leantrain.Compared(rows(Store(stored).read()[0])[0])
    assert repr(result).startswith("lion against baseline on ")
    html = result._repr_html_()
    assert html.startswith("<p>lion against baseline") and "<td>step_time</td>" in html
    assert not any(f">{each}<" in html for each in ("nan", "NaN", "&lt;NA&gt;"))
    assert set(result.to_frame().metric) >= {"step_time", "loss", "flops"}


# count ----------------------------------------------------------------------------------------------------------------


def test_count_is_what_the_command_counts() -> None:
    counted = leantrain.count("lora", baseline="bert", size="pico", batch_size=2)
    frame = counted.to_frame()
    line = frame.loc["trainable_parameter_count"]
    assert line.ratio == pytest.approx(line.stack / line.reference) and line.ratio < 1
    assert counted.sides.scale.setting.task == "adapt"
    assert repr(counted).startswith("counted at paper scale: bert") and "trainable parameters" in repr(counted).lower()
    assert counted._repr_html_().count("<tr") == len(frame) + 2
    alone = leantrain.count("baseline", size="pico")
    assert alone.sides.reference is None and alone.to_frame().reference.isna().all()
    assert "ratio" not in repr(alone)


def test_count_says_what_cannot_be_counted() -> None:
    with pytest.raises(Unavailable, match="rigl cannot be counted: its step reads values"):
        leantrain.count("rigl", size="pico")
    with pytest.raises(UnknownId, match="did you mean lora"):
        leantrain.count("lorra")


# optimizers and layers ------------------------------------------------------------------------------------------------


WRAPPERS = ("SAM", "ESAM", "SAF", "MESA", "LAWA")  # of another optimizer or model: tests/leantrain/test_wrappers.py


@pytest.mark.parametrize("name", [each for each in optim.__all__ if each[0].isupper() and each not in WRAPPERS])
def test_an_optimizer_lowers_a_loss_in_a_plain_loop_and_its_state_is_saved(name: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4), torch.randn(32, 8)
    y = x @ torch.randn(8, 4)
    rate = {"Lars": 1.0, "Lion": 0.01, "Lamb": 0.05, "Adam": 0.05, "AdamW": 0.05}.get(name, 0.1)
    optimizer = getattr(optim, name)(model.parameters(), lr=rate)

    def loss() -> torch.Tensor:
        return (model(x) - y).square().mean()

    before = loss().item()
    for _ in range(20):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < before
    other = getattr(optim, name)(model.parameters(), lr=rate)
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="lr"):
        getattr(optim, name)(model.parameters(), lr=-1.0)


def test_sam_ascends_by_rho_and_comes_back_to_the_bit() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    parameters = list(model.parameters())
    model(torch.randn(16, 8)).square().mean().backward()
    before = [each.detach().clone() for each in parameters]
    weights = optim.sam_ascend(parameters, rho=0.05)
    moved = torch.cat([(now - then).flatten() for now, then in zip(parameters, before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.05, rel=1e-5)
    optim.sam_restore(parameters, weights)
    assert all(torch.equal(now, then) for now, then in zip(parameters, before, strict=True))


def test_layer_scale_scales_a_branch() -> None:
    linear, x = nn.Linear(8, 4), torch.randn(3, 8)
    scaled = layers.LayerScale(linear, initial=0.1)
    torch.testing.assert_close(scaled(x), 0.1 * linear(x))
    assert scaled.scale.shape == (4,)


@pytest.mark.parametrize("name", [name for name in optim.__all__ if isinstance(getattr(optim, name), type)])
def test_a_misspelled_setting_of_an_optimizer_is_no_setting(name: str) -> None:
    with pytest.raises(TypeError, match="weight_deacy"):
        getattr(optim, name)([torch.nn.Parameter(torch.ones(4, 4))], weight_deacy=0.5)
