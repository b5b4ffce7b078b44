"""Alpaca-LoRA: the recipe of its script, its data, and the files that it refuses."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from baselines.gpt_tasks import CUTOFF, GptOnInstructions
from baselines.instructions import IGNORED, prompt
from baselines.text import PAD, SEP, normalised, spelled
from suite.entries.adapting import baseline_for
from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.loop.run import Run
from suite.measure.at_scale.weightless import weightless
from suite.measure.missing import pair_of
from suite.model.anatomy import anatomy
from suite.record.job import Job, Setting
from techniques.fine_tuning.alpaca_lora import data as instructions
from techniques.fine_tuning.alpaca_lora.technique import AlpacaLoRA
from techniques.fine_tuning.shared.low_rank import updates

ENTRY = {"instruction": "Say it.", "input": "", "output": "It."}


def setting(data: str | Path | None, **changes: object) -> Setting:
    own = Setting(baseline="gpt", size="pico", recipe="classic", task="adapt", data=str(data) if data else None)
    return own.but(**changes)


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def run_on(location: str | Path, technique: AlpacaLoRA | None = None, **changes: object) -> Run:
    own = setting(location, **changes)
    return run_of(Job(setting=own), technique=technique, baseline=baseline_for(own))


# the recipe -----------------------------------------------------------------------------------------------------------


def test_the_recipe_is_that_of_finetune_py() -> None:
    reference = baseline_of(setting(None)).recipe("nano", "classic", "adapt")
    recipe = AlpacaLoRA().recipe(reference)
    assert (recipe.batch_size, recipe.learning_rate, recipe.weight_decay, recipe.schedule) == (128, 3e-4, 0.0, "linear")
    assert (recipe.beta1, recipe.beta2, recipe.eps, recipe.gradient_clip) == (0.9, 0.999, 1e-8, 1.0)
    assert math.isclose(recipe.warmup_fraction * 1172, 100, rel_tol=1e-3)
    assert recipe.steps * 128 == pytest.approx(reference.steps * reference.batch_size, rel=0.02)
    own = AlpacaLoRA()
    assert (own.rank, own.alpha, own.dropout, own.targets) == (8, 16.0, 0.05, ("query", "value"))


LLAMA_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "vocab_size": 32_000,
}


def test_of_llama_7b_as_many_parameters_are_trained_as_finetune_py_prints(tmp_path: Path) -> None:
    """trainable params: 4194304 || all params: 6742609920 || trainable%: 0.0622"""
    written(tmp_path, "config.json", json.dumps(LLAMA_7B))
    with weightless():
        run = run_of(Job(setting=setting(None, task="pretrain", model=str(tmp_path)), stack="alpaca_lora"))
        every = list(run.model.parameters())
        assert sum(each.numel() for each in every if each.requires_grad) == 4_194_304
        assert sum(each.numel() for each in every) == 6_742_609_920


# its data -------------------------------------------------------------------------------------------------------------


def test_both_sides_adapt_to_it_unless_data_is_named() -> None:
    own = pair_of(Setting(baseline="gpt"), "alpaca_lora").setting.data
    assert own == pair_of(Setting(baseline="gpt"), "adamw+alpaca_lora").setting.data
    entries = json.loads(Path(own or "").read_text("utf-8"))
    assert entries == instructions.entries() and len(entries) == instructions.ENTRIES
    assert all(set(each) == {"instruction", "input", "output"} for each in entries)
    assert pair_of(Setting(baseline="gpt", data="own.json"), "alpaca_lora").setting.data == "own.json"
    assert pair_of(Setting(baseline="gpt"), "lora").setting.data is None


def test_a_row_is_prompt_and_answer_then_the_end_then_padding(tmp_path: Path) -> None:
    entries = [ENTRY | {"output": f"It {'is ' * number}."} for number in range(30)]
    run = run_on(written(tmp_path, "own.json", json.dumps(entries)))
    assert isinstance(run.baseline, GptOnInstructions)
    for row, length in zip(run.data.train.tensors["input_ids"], run.data.train.tensors["lengths"], strict=True):
        assert row.shape == (CUTOFF,)
        assert row[length - 1] == SEP and (row[length:] == PAD).all()
        assert spelled(row[: length - 1]).startswith(normalised(prompt("Say it.") + "It"))
    batch, _ = run.data.batch(0, 0, 4)
    assert torch.equal(batch["labels"] == IGNORED, batch["input_ids"] == PAD)


def test_the_prompt_is_alpacas() -> None:
    assert prompt("Do.", "That.").split("\n\n")[1:] == ["### Instruction:\nDo.", "### Input:\nThat.", "### Response:\n"]
    assert "### Input" not in prompt("Do.") and prompt("Do.").startswith("Below is an instruction")


def test_the_loss_is_the_mean_over_tokens_that_are_no_padding(tmp_path: Path) -> None:
    entries = [ENTRY | {"output": "so " * (1 + 5 * number % 17)} for number in range(30)]
    run = run_on(written(tmp_path, "own.json", json.dumps(entries)))
    batch, _ = run.data.batch(0, 0, 5)
    outputs = run.baseline.forward(run.model.eval(), batch)
    losses = []
    for logits, labels in zip(outputs.logits, batch["labels"], strict=True):
        inside = labels[1:] != IGNORED
        losses.append(F.cross_entropy(logits[:-1][inside].double(), labels[1:][inside], reduction="none"))
    expected = torch.cat(losses).mean()
    torch.testing.assert_close(run.baseline.losses(outputs, batch).mean().double(), expected)
    assert 0 <= run.baseline.metrics(outputs, batch)["accuracy"].mean() <= 1


def test_it_trains_on_them_and_any_causal_model_does(tmp_path: Path) -> None:
    GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64).save_pretrained(tmp_path / "own")
    few = written(tmp_path, "few.json", json.dumps(instructions.entries(60)))
    for model in (None, str(tmp_path / "own")):
        run = run_on(few, AlpacaLoRA(batch_size=8), steps=4, model=model)
        assert isinstance(run.model, GPT2LMHeadModel) and len(updates(run.model)) == anatomy(run.model).depth
        assert all(math.isfinite(loss) for loss in run.train(2))
        assert math.isfinite(run.evaluate()["loss"])


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.json", json.dumps([ENTRY, ENTRY, {"instruction": "x", "input": ""}]), "entry 3 has no field 'output'"),
        ("b.jsonl", f'{json.dumps(ENTRY)}\n{{"instruction": "x", "output": "y"}}\n', "line 2 has no field 'input'"),
        ("c.json", json.dumps([ENTRY, ENTRY | {"instruction": ""}]), "entry 2 has an empty field 'instruction'"),
        ("d.json", json.dumps([ENTRY, ENTRY | {"output": 7}]), "entry 2 has no text in its field 'output'"),
        ("e.json", json.dumps([ENTRY, "text"]), "entry 2 has no field 'instruction'"),
        ("f.jsonl", f"{json.dumps(ENTRY)}\n{{broken\n", "line 2 is no JSON"),
        ("g.json", json.dumps([ENTRY]), "need at least 2"),
    ],
)
def test_an_entry_that_lacks_a_field_is_named(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    location = written(tmp_path, name, text)
    with pytest.raises(ValueError, match=sentence):
        baseline_for(setting(location)).data("pico", "adapt", location)


def test_a_table_without_a_field_is_refused_and_one_without_instructions_is_text(tmp_path: Path) -> None:
    table = written(tmp_path, "own.csv", "instruction,output\nSay it.,It.\nSay that.,That.\n")
    with pytest.raises(ValueError, match="train entry 1 has no field 'input'"):
        baseline_for(setting(table)).data("pico", "adapt", table)
    text = written(tmp_path, "plain.jsonl", '{"text": "one"}\n{"text": "two"}\n')
    assert baseline_for(setting(text)) is baseline_of(setting(text))
