"""The lines that ``leantrain apply`` writes train what they are written for, and it refuses in one sentence."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers as hf
from typer.testing import CliRunner

from suite.cli import app
from suite.cli.shared import Exit
from suite.entries.catalogue import catalogue
from tests.model.transformer_models import SIZES, TEXT, TIMM

TOKENS = torch.randint(3, 64, (4, 12), generator=torch.Generator().manual_seed(0))
TEXTS = {"input_ids": TOKENS, "labels": TOKENS}
CLASSES = {"input_ids": TOKENS, "labels": torch.arange(4) % 3}
PICTURES = (torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(4))


def llama(folder: Path) -> str:
    hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, **SIZES, num_key_value_heads=2)).save_pretrained(folder)
    return str(folder)


def classifier(folder: Path) -> str:
    hf.BertForSequenceClassification(hf.BertConfig(**TEXT, **SIZES, num_labels=3)).save_pretrained(folder)
    return str(folder)


def configuration_alone(folder: Path) -> str:
    hf.BertConfig(**TEXT, **SIZES, architectures=["BertForMaskedLM"]).save_pretrained(folder)
    return str(folder)


def timm_folder(folder: Path) -> str:
    model = timm.create_model("vit_tiny_patch16_224", **TIMM)
    timm.models.save_for_hf(model, folder, model_args=TIMM, safe_serialization=True)
    return str(folder)


def applied(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["apply", *arguments])


@pytest.mark.parametrize(
    ("make", "batch", "stack"),
    [
        (llama, TEXTS, "lora+adam8bit_blockwise+ckpt_chen_sqrt"),
        (classifier, CLASSES, "bitfit+lion"),
        (configuration_alone, TEXTS, "saf_mesa:start=0"),
        (llama, TEXTS, "sam+lion"),
        (timm_folder, PICTURES, "lion+lawa"),
        (timm_folder, PICTURES, "esam"),
    ],
)
def test_the_written_lines_train(make: Callable[[Path], str], batch: Any, stack: str, tmp_path: Path) -> None:
    folder, script = make(tmp_path / "model"), tmp_path / "train_step.py"
    result = applied("-t", stack, "--model", folder, "--write", str(script))
    assert result.exit_code == 0, result.output
    assert len(script.read_text().splitlines()) < 45
    lines = runpy.run_path(str(script))
    torch.manual_seed(0)
    before = {name: each.clone() for name, each in lines["begin"](batch, 3)[0].named_parameters()}
    model, state = lines["train"]([batch] * 2, 3, learning_rate=1e-3)
    assert state["step"] == 3 and state["stack"] == stack
    changed = [
        name for name, each in model.named_parameters() if name in before and not torch.equal(each, before[name])
    ]
    assert changed


def test_a_loader_that_ends_early_is_said(tmp_path: Path) -> None:
    script = tmp_path / "train_step.py"
    assert applied("-t", "lion", "--model", llama(tmp_path / "model"), "--write", str(script)).exit_code == 0
    lines = runpy.run_path(str(script))
    with pytest.raises(ValueError, match="the loader ended after 2 of 5 steps: give a list or a DataLoader"):
        lines["train"](iter([TEXTS] * 3), 5)  # whose first batch shows how the model computes


def test_without_a_stack_every_entry_has_an_answer() -> None:
    table = json.loads(applied("--json").stdout)
    assert table.keys() == catalogue().keys()
    assert all(each["applies"] != bool(each["why_not"]) for each in table.values())
    assert "el2n" in applied().stdout


@pytest.mark.parametrize(
    ("stack", "model", "sentence"),
    [
        ("", "vit_tiny_patch16_224", "the stack names no technique"),
        ("lora:rank=0", "vit_tiny_patch16_224", "lora changes nothing at rank=0"),
        ("lion", None, "name your model, --model FOLDER"),
        ("lion", "nowhere", "no such folder, and timm has no model of that name"),
        ("lion", "resnet18", "no Transformer blocks"),
        ("sam+esam", "vit_tiny_patch16_224", "cannot be stacked"),
        ("zero2", "vit_tiny_patch16_224", "zero2 does not apply to a loop of your own: it shards"),
    ],
)
def test_what_cannot_be_written_is_said(stack: str, model: str | None, sentence: str, tmp_path: Path) -> None:
    script = tmp_path / "train_step.py"
    result = applied("-t", stack, *(["--model", model] if model else []), "--write", str(script), "--json")
    assert result.exit_code == Exit.USAGE
    assert sentence in json.loads(result.stdout)["error"]
    assert not script.exists()
