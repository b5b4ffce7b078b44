"""Counts without values against real runs, byte for byte, and against the known sizes of the papers' models."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from typer.testing import CliRunner

from suite.cli import app
from suite.entries.card import Card
from suite.entries.catalogue import catalogue
from suite.entries.installed import baselines
from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.measure.at_scale.full_size import Scale, SideBySide, StepCount, counted, side_by_side
from suite.measure.at_scale.weightless import weightless
from suite.measure.contenders.stock import data_of
from suite.measure.exact import exact_verdicts, one_thread
from suite.meters.holders import Living
from suite.meters.state import gradient_bytes, parameter_bytes, parameter_count
from suite.record.job import RECIPES, Job, Setting
from suite.show.amounts_in_words import amount
from suite.show.counts import lines, notes
from tests.runs import IN_EVERY_RUN, unless

PUBLISHED = Path(__file__).parents[2] / "baselines" / "published"
EAGER = tuple(name for name in RECIPES if name != "compiled")


@cache
def real(stack: str, setting: Setting) -> dict[str, Any]:
    """What a run with numbers counts."""
    with one_thread():
        before = Living()
        run = run_of(Job(setting=setting, stack=stack))
        for _ in range(run.recipe.steps):
            run.train_step(*run.next_batch())
        with before.left_out(*data_of(run)):
            counters = run.count_step()
        state = {"parameter_bytes": parameter_bytes(run.model), "gradient_bytes": gradient_bytes(run.model)}
        return state | counters.model_dump()


def all_numbers(count: StepCount) -> dict[str, Any]:
    assert count.counters is not None, count.unavailable
    state = {"parameter_bytes": count.parameter_bytes, "gradient_bytes": count.gradient_bytes}
    return state | count.counters.model_dump()


def assert_equal(stack: str, setting: Setting, *, left_out: tuple[str, ...] = ("operators",)) -> None:
    left_out = (*left_out, "host_bytes")  # a tier keeps shapes alone of what has no values
    ours, theirs = all_numbers(counted(stack, Scale(setting))), real(stack, setting)
    if stack in GROWN:
        ours, theirs = with_transients_together(ours), with_transients_together(theirs)
    assert {name: ours[name] for name in ours if name not in left_out} == {
        name: theirs[name] for name in theirs if name not in left_out
    }


GROWN = {"bert2bert", "compound_grow", "progressive_stacking"}
"""Their optimizer is new in the counted step. It counts its steps in numbers that ``torch.tensor`` makes, which passes
no dispatch, so that a meter first sees them as they are read; without values it sees some of them as they are made."""


def with_transients_together(numbers: dict[str, Any]) -> dict[str, Any]:
    """Whether a tensor was there before the window, or was made in it, is left open."""
    kinds = dict(numbers["peak_by_kind"])
    return numbers | {"peak_by_kind": kinds | {"transient": kinds.pop("temporaries", 0) + kinds.pop("other", 0)}}


def scale(baseline: str, **settings: Any) -> Scale:
    """At nano, where nothing else is said."""
    shape = {name: settings.pop(name) for name in ("batch_size", "sequence_length") if name in settings}
    return Scale(Setting(baseline=baseline, **settings), **shape)


@pytest.mark.parametrize("recipe", EAGER)
@pytest.mark.parametrize("baseline", baselines())
def test_a_baselines_counts_are_those_of_a_real_run(baseline: str, recipe: Any) -> None:
    setting = Setting(baseline=baseline, size="pico", recipe=recipe, steps=1)
    assert_equal("baseline", setting, left_out=())


def same_as_real(technique: str, setting: Setting) -> None:
    """Equal, or unavailable for a reason that lies in the technique itself, or in what it shares."""
    count = counted(technique, Scale(setting))
    if count.counters is None and technique not in NEEDS_NO_VALUES:
        assert any(words in count.unavailable for words in (f"{technique}/", "shared/", "ranks"))
    elif count.counters is not None and (count.counters.ranks or 1) > 1:
        assert count.quantities()  # test_fake_ranks has such counts beside those of real ranks
    elif technique in BY_BUDGET:
        assert count.counters is not None
        budget, spent = count.counters.saved_activation_bytes, real(technique, setting)["saved_activation_bytes"]
        assert 0.9 * budget <= spent <= budget
    else:
        assert_equal(technique, setting)


BY_BUDGET = {"actnn", "gact"}
"""Values say who gets how many bits of a budget. Without them all get the mean, which is the most that may be spent."""

STEPS = {"ssl_prototypes": 4}  # its prototypes are ten of the examples; one step does for all others
NEEDS_NO_VALUES = {
    "adamw",
    "bert2bert",
    "ckpt_chen_sqrt",
    "flashattention",
    "lawa",
    "layerscale",
    "lion",
    "lora",
    "pld",
    "progressive_patch",
    "progressive_resolution",
    "progressive_stacking",
    "sam",
}
CARDS = [entry.card for entry in catalogue().values()]
OF_EACH_CATEGORY = {card.category: card.id for card in reversed(CARDS)}
ONCE_EACH = [
    pytest.param(
        card,
        card.baselines[turn % len(card.baselines)],
        EAGER[turn // 2 % len(EAGER)],
        id=card.id,
        marks=unless(card.id in {*OF_EACH_CATEGORY.values(), *IN_EVERY_RUN}),
    )
    for turn, card in enumerate(CARDS)
    if card.id != "pipemare"  # it refuses autocast
]
EVERYWHERE = [
    pytest.param(card, baseline, recipe, id=f"{card.id}-{baseline}-{recipe}")
    for card in CARDS
    for baseline in card.baselines
    for recipe in EAGER
]


@pytest.mark.parametrize(("card", "baseline", "recipe"), ONCE_EACH)
def test_a_techniques_counts_are_those_of_a_real_run(card: Card, baseline: str, recipe: Any) -> None:
    steps = STEPS.get(card.id, 1)
    same_as_real(card.id, Setting(baseline=baseline, size="pico", recipe=recipe, task=card.task, steps=steps))


@pytest.mark.slow
@pytest.mark.parametrize(("card", "baseline", "recipe"), EVERYWHERE)
def test_they_are_so_on_every_baseline(card: Card, baseline: str, recipe: Any) -> None:
    same_as_real(card.id, Setting(baseline=baseline, recipe=recipe, task=card.task))


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 400,
    "max_position_embeddings": 64,
}


def test_half_precision_of_a_model_folder_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.text._texts", lambda *_: pytest.fail("text was read to count shapes"))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"dtype": "bfloat16"}))
    (pair,) = side_by_side(["lion"], scale("gpt", model=str(tmp_path), batch_size=2, sequence_length=16))
    assert any(note.startswith("parameters take 2 bytes each, as the model's own") for note in notes(pair))


def test_a_users_own_model_is_counted_as_it_runs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    # the real step looks for padding among the tokens, to warn of it
    assert_equal("baseline", Setting(baseline="gpt", model=str(tmp_path), steps=1))


@pytest.mark.parametrize(
    ("baseline", "size", "model", "parameters"),
    [
        ("gpt", "base", None, 124_439_808),  # openai-community/gpt2
        ("gpt", "large", None, 354_823_168),  # openai-community/gpt2-medium
        ("gpt", "base", "gpt2-xl", 1_557_611_200),
        ("bert", "large", "bert-large-uncased", 335_174_458),  # with the pre-training head
        ("vit", "base", "vit_large_patch16_224", 303_301_632 + 10 * 1025),  # timm's without a head, and one for 10
        ("vit", "base", "vit_huge_patch14_224", 630_764_800 + 10 * 1281),
    ],
)
def test_published_models_have_their_published_sizes(
    baseline: str, size: Any, model: str | None, parameters: int
) -> None:
    kind = baselines()[baseline]
    # of its facts a model needs the number of classes and the shape of pictures only
    data = kind.data(size if kind.modality == "image" else "nano", "pretrain")
    folder = PUBLISHED / model if model else None
    with weightless():
        built = kind.model(size, data, str(folder) if folder and folder.is_dir() else model)
        assert parameter_count(built) == parameters


@pytest.mark.parametrize("recipe", ["classic", "modern"])
def test_the_model_state_of_a_full_size_model_follows_the_formula(recipe: str) -> None:
    """fp32, autocast or not: 4 bytes a weight, 4 a gradient, 8 of Adam's moments (ZeRO, 1910.02054, section 3.1)."""
    full = scale("gpt", size="base", recipe=recipe, device="cuda", steps=1, batch_size=1, sequence_length=16)
    numbers, weights = counted("baseline", full).quantities(), 124_439_808
    assert numbers["parameter_bytes"] == numbers["gradient_bytes"] == 4 * weights
    assert numbers["optimizer_state_bytes"] == 8 * weights
    assert numbers["peak_tensor_bytes"] >= 16 * weights


def peak_gib(baseline: str, recipe: Any, **settings: Any) -> float:
    at = scale(baseline, size="base", recipe=recipe, **settings)
    return float(counted("baseline", at).quantities()["peak_tensor_bytes"]) / 2**30


def test_a_gpu_s_operators_are_counted_where_it_is_asked_for() -> None:
    """With dropout a CPU keeps its noise in the activations' type, and fuses no attention. Of 32 rows of 512 tokens."""
    assert peak_gib("bert", "modern", device="cuda") == pytest.approx(13.1, abs=0.05)
    assert peak_gib("bert", "modern", device="cpu") == pytest.approx(27.7, abs=0.05)


def test_the_peak_of_gpt_2_xl_is_the_readme_s(tmp_path: Path) -> None:
    """Its 48 blocks are alike, so 4 and 8 of them say what all take."""
    config = json.loads((PUBLISHED / "gpt2-xl" / "config.json").read_text("utf-8"))
    peaks = []
    for blocks in (4, 8):
        folder = tmp_path / str(blocks)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | {"n_layer": blocks}))
        peaks.append(peak_gib("gpt", "classic", device="cuda", model=str(folder), batch_size=8))
    few, more = peaks
    assert config["n_layer"] == 48 and few + (48 - 4) / (8 - 4) * (more - few) == pytest.approx(173.3, abs=0.05)


def test_what_is_saved_grows_by_the_same_bytes_with_every_example() -> None:
    saved = [
        counted("baseline", scale("gpt", batch_size=batch, steps=1)).quantities()["saved_activation_bytes"]
        for batch in (2, 3, 4)
    ]
    assert saved[2] - saved[1] == saved[1] - saved[0] > 0


@pytest.mark.parametrize(
    ("technique", "recipe", "words"),
    [
        ("rigl", "classic", "sparse_training/rigl/technique.py, line "),
        ("el2n", "classic", "importance_sampling/el2n/technique.py, line "),
    ],
)
def test_what_cannot_be_counted_says_exactly_why(technique: str, recipe: Any, words: str) -> None:
    count = counted(technique, scale("gpt", recipe=recipe))
    assert count.counters is None and words in count.unavailable
    assert count.quantities() == {} and count.as_dict()["provenance"] == "unavailable"


def test_an_added_activation_is_seen_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    one = scale("gpt", recipe="classic", batch_size=1, steps=1)
    before = counted("baseline", one).quantities()
    forward = Run.forward

    def wasteful(run: Run, batch: Any) -> torch.Tensor:
        loss = forward(run, batch)
        hoard = torch.empty(1000, requires_grad=True).sin()  # saves its input, 4000 bytes
        return loss + 0 * hoard.sum()

    monkeypatch.setattr(Run, "forward", wasteful)
    assert counted("baseline", one).quantities()["saved_activation_bytes"] - before["saved_activation_bytes"] == 4000


def test_a_compiled_step_saves_what_its_partitioned_graphs_do() -> None:
    eager, compiled = (
        counted("baseline", scale("bert", size="pico", recipe=recipe, device="cuda", steps=1))
        for recipe in ("modern", "compiled")
    )
    assert eager.counters is not None and compiled.counters is not None, compiled.unavailable
    assert 0 < compiled.counters.saved_activation_bytes < eager.counters.saved_activation_bytes
    assert (eager.counters.saved_semantics, compiled.counters.saved_semantics) == ("eager", "compiled")
    assert (compiled.counters.semantics, compiled.counters.flops) == ("eager", eager.counters.flops)
    assert not any(name.startswith("peak") for name in compiled.quantities())
    assert "generated" in compiled.as_dict()["not_counted"]["peak_tensor_bytes"]
    (pair,) = side_by_side(["baseline"], scale("bert", size="pico", recipe="compiled", device="cuda", steps=1))
    assert notes(pair)[-1] == "saved for backward: by the compiled graph; FLOPs: of the eager operators"


def test_operators_without_a_flop_formula_are_named_with_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Run.forward

    def distant(run: Run, batch: Any) -> torch.Tensor:
        x = torch.randn(8, 4, requires_grad=True)
        return forward(run, batch) + 0 * torch.cdist(x, torch.zeros(8, 4)).sum()

    monkeypatch.setattr(Run, "forward", distant)
    (pair,) = side_by_side(["baseline"], scale("gpt", size="pico", steps=1))
    assert notes(pair)[-1:] == [
        "baseline: FLOPs are a lower bound, without aten._cdist_backward ×1, aten._cdist_forward ×1"
    ]


def test_nothing_stays_behind() -> None:
    """Neither patches, nor the random state, nor fake tensors in what real runs cache."""
    owners = (torch.utils, torch.utils._foreach_utils, __import__("transformers.masking_utils").masking_utils)
    before = [dict(vars(owner)) for owner in owners]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    counted("rigl", scale("gpt"))  # fails halfway
    counted("baseline", scale("bert", steps=1))
    assert torch.equal(torch.rand(3), expected)
    for owner, names in zip(owners, before):
        assert all(vars(owner)[name] is value for name, value in names.items())
    batch = baselines()["bert"].data("nano", "pretrain").batch(0, 0, 2)[0]
    assert {type(each) for each in batch.values()} == {torch.Tensor}


def test_a_kept_value_is_forgotten_once_unknown_values_are_added() -> None:
    with weightless():
        steps = [torch.zeros(()), torch.zeros(())]
        torch._foreach_add_(steps, 1)
        assert [int(step) for step in steps] == [1, 1]
        torch._foreach_add_(steps, [torch.rand(()), torch.rand(())])
        with pytest.raises(DataDependentOutputException):
            int(steps[0])
        assert torch.arange(4).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.AdamW])
def test_a_fused_step_takes_no_memory_of_the_models_size(optimizer: Any) -> None:
    with weightless():
        parameter = torch.nn.Parameter(torch.empty(10**13))  # 40 TB: no machine has them
        parameter.grad = torch.empty_like(parameter)
        optimizer([parameter], lr=0.1, fused=True).step()


@pytest.mark.parametrize(
    ("baseline", "length", "words"), [("gpt", 33, "32 positions"), ("vit", 32, "no sequence length")]
)
def test_a_length_that_cannot_be_is_refused(baseline: str, length: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        counted("baseline", scale(baseline, sequence_length=length))


def test_reports_stand_beside_the_reference_with_their_ratio() -> None:
    (pair,) = side_by_side(["lion"], scale("gpt", recipe="classic", batch_size=2, sequence_length=16))
    assert pair.reference is not None and pair.reference.stack == "baseline"
    assert pair.ratios()["optimizer_state_bytes"] == 0.5
    table = {line[0]: line[1:] for line in lines(pair)}
    adamw, lion, ratio = table["optimizer state, bytes"]
    moments = 2 * counted("baseline", pair.scale).parameter_bytes
    assert (adamw, ratio) == (amount("optimizer_state_bytes", moments), "0.5") and lion.endswith(" KiB")
    assert notes(pair) == [
        "operators: unavailable: autograd takes other operators for views of tensors without values",
        "held on the host: unavailable: tensors without values take no memory on the host",
        "communication: unavailable: one process is counted, which sends nothing",
    ]
    alone = SideBySide(pair.scale, None, StepCount("baseline", unavailable="no"))
    assert lines(alone) == [] and notes(alone) == ["baseline: unavailable: no"]


def test_exact_claims_of_bytes_and_flops_are_judged_at_larger_sizes() -> None:
    cards = [catalogue()[name].card for name in ("lion", "zero1")]
    verdicts = {each.claim.id: each for each in exact_verdicts(cards, ("gpt",), "micro")}
    state = verdicts["state_bytes"]
    assert (state.outcome, state.reason) == ("holds", "exactly; counted at paper scale")
    assert state.interval is not None and state.interval.estimate == 0.5
    assert state.basis.size == "micro" and state.command.endswith("--size micro")
    assert verdicts["sign_step"].outcome == "not measured" and "no count" in verdicts["sign_step"].reason
    assert verdicts["state_divided_by_ranks"].outcome == "holds"
    assert CliRunner().invoke(app, ["claims", "lion", "--size", "base"]).exit_code == 2


def test_the_command_prints_json_that_says_how_it_was_counted() -> None:
    result = CliRunner().invoke(app, ["count", "-t", "lora", "-b", "bert", "--size", "nano", "--batch", "2", "--json"])
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)
    assert report["stack"]["provenance"] == report["reference"]["provenance"] == "counted at paper scale"
    assert report["scale"]["task"] == "adapt" and report["stack"]["batch"]["labels"] == [2, 16]
    assert report["ratios"]["trainable_parameter_count"] < 0.1
    assert report["scale"]["device"] == "cuda"
    assert "views" in report["stack"]["not_counted"]["operators"] and "operators" not in report["stack"]


def test_the_command_says_whose_operators_it_counted() -> None:
    command = ["count", "-t", "baseline", "-b", "bert", "--size", "pico"]
    for options, words in (([], "the operators of a GPU"), (["--device", "cpu"], "the operators of a CPU")):
        result = CliRunner().invoke(app, [*command, *options], env={"COLUMNS": "200"})
        assert result.exit_code == 0 and words in result.stdout, result.output
    assert CliRunner().invoke(app, [*command, "--device", "tpu"]).exit_code == 2


def test_the_command_says_by_its_exit_code_that_nothing_could_be_counted() -> None:
    result = CliRunner().invoke(app, ["count", "-t", "rigl", "-b", "gpt", "--size", "nano"])
    assert result.exit_code == 4 and "reads values" in result.stdout
    assert CliRunner().invoke(app, ["count", "-t", "lion", "-b", "vit", "--sequence-length", "64"]).exit_code == 2


def test_copies_without_values_share_and_hold_what_real_ones_do() -> None:
    def copies() -> tuple[Any, ...]:
        whole = torch.ones(6, 4)
        module = torch.nn.Linear(3, 2)
        module.register_buffer("head", whole[2:])
        module.register_buffer("tail", whole[4:])
        return copy.deepcopy(module).eval(), module

    def shape(module: Any) -> list[Any]:
        storages = [each.untyped_storage() for each in (*module.parameters(), *module.buffers())]
        views = [(each.shape, each.stride(), each.storage_offset(), each.requires_grad) for each in module.buffers()]
        same = [[one._cdata == other._cdata for one in storages] for other in storages]
        return [[each.nbytes() for each in storages], views, same, [type(p) for p in module.parameters()]]

    expected = [shape(each) for each in copies()]
    with weightless():
        modules = copies()
        shapes = [shape(each) for each in modules]
        assert modules[0].tail.untyped_storage()._cdata != modules[1].tail.untyped_storage()._cdata
        for each in modules[0].parameters():
            assert isinstance(each, torch.nn.Parameter) and each.requires_grad
        with pytest.raises(RuntimeError):
            modules[0].tail.data_ptr()
    assert [each[:3] for each in shapes] == [each[:3] for each in expected]


def test_what_does_not_go_on_tensors_without_values_raises_and_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with weightless(), pytest.raises(RuntimeError, match="broadcast"):
        torch.ones(2, 5) + torch.ones(2, 17)
    assert not caplog.records
