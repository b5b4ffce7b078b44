"""The two points at which every entry is tried: its baseline at the smallest size, and an odd one, whose numbers divide
by nothing that is convenient: nine blocks, batches of five, rows of thirteen tokens, dropout, embeddings tied or not.

A run at either is the same to the bit whatever ran before it in the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, ViTMAEConfig, ViTMAEForPreTraining

from baselines.images import DIGIT
from baselines.mae import initialised
from baselines.text import VOCABULARY
from suite.entries.catalogue import reference_of
from suite.entries.installed import baselines
from suite.entries.jobs import run_of
from suite.entries.spelling import build
from suite.loop.baseline import Baseline
from suite.loop.data import Data, Examples
from suite.loop.recipe import Recipe
from suite.loop.run import Run
from suite.record.job import Job, RecipeName, Setting, Size, Split, Task

DEPTH, WIDTH, HEADS, LENGTH, DROPOUT = 9, 24, 3, 13, 0.1
BATCH, BATCH_OF_RANKS = 5, 12  # of several ranks: a multiple of two and three ranks, and of four micro-batches
INNER = 2 * WIDTH
PRETRAINING_STEPS = 4


def ranks_of(stack: str) -> int:
    """How many processes a stack asks for."""
    return build(stack).recipe(baselines()["gpt"].recipe("base", "classic", "pretrain")).world_size


@dataclass(frozen=True)
class Point:
    """Where entries are tried: on a ``baseline`` at pico, as it is or ``odd``, for ``steps``. ``tied``: of an odd one,
    whether it predicts tokens by their embeddings. ``ranks`` make the steps together. ``recipe``: classic, the plain
    arithmetic, or another."""

    baseline: str
    steps: int
    odd: bool = False
    tied: bool = True
    ranks: int = 1
    recipe: RecipeName = "classic"

    def setting(self, task: Task = "pretrain") -> Setting:
        """At pico."""
        return Setting(baseline=self.baseline, size="pico", recipe=self.recipe, task=task, steps=self.steps)

    def run(self, stack: str, mesh: DeviceMesh | None = None, seed: int = 0) -> Run:
        """A new run of a stack, which starts from the baseline's own checkpoint where that is what it is about."""
        task = reference_of(stack)[1]
        weights = _checkpoint(replace(self, steps=PRETRAINING_STEPS)) if task == "adapt" else None
        job = Job(setting=self.setting(task), stack=stack, seed=seed)
        return run_of(job, baseline=_baseline(self), weights=weights, mesh=mesh)


def _baseline(point: Point) -> Baseline:
    whole = baselines()[point.baseline]
    return _odd(type(whole), point.tied, BATCH if point.ranks == 1 else BATCH_OF_RANKS) if point.odd else whole


@cache
def _checkpoint(point: Point) -> Path:
    run = run_of(Job(setting=point.setting()), baseline=_baseline(point), split="source")
    run.train(point.steps)
    path = Path(tempfile.mkdtemp(prefix="leantrain-points-"), "weights.pt")
    torch.save(run.model.state_dict(), path)
    return path


class _Odd(Baseline):
    """A baseline with the odd point's model, rows and batches."""

    tied: bool
    batch: int

    def recipe(self, size: Size, name: RecipeName, task: Task) -> Recipe:
        return replace(super().recipe(size, name, task), batch_size=self.batch)

    def data(self, size: Size, split: Split, location: str | None = None) -> Data:
        data = super().data(size, split, location)
        parts = {name: _shortened(getattr(data, name)) for name in ("train", "validation", "test")}
        return replace(data, **parts)

    def model(self, size: Size, data: Data, override: str | None = None) -> nn.Module:
        return MODELS[self.id](self.tied, data)


@cache
def _odd(whole: type[Baseline], tied: bool, batch: int) -> Baseline:
    return type(f"Odd{whole.__name__}", (_Odd, whole), {"tied": tied, "batch": batch})()


def _shortened(part: Examples) -> Examples:
    rows = part.tensors.get("input_ids")
    return part if rows is None else Examples({**part.tensors, "input_ids": rows[:, :LENGTH]})


def _bert(tied: bool, data: Data) -> nn.Module:
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY["pico"],
            hidden_size=WIDTH,
            num_hidden_layers=DEPTH,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT,
            tie_word_embeddings=tied,
        )
    )


def _gpt(tied: bool, data: Data) -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY["pico"],
            n_positions=LENGTH,
            n_embd=WIDTH,
            n_layer=DEPTH,
            n_head=HEADS,
            n_inner=INNER,
            use_cache=False,
            resid_pdrop=DROPOUT,
            embd_pdrop=DROPOUT,
            attn_pdrop=DROPOUT,
            tie_word_embeddings=tied,
        )
    )


def _vit(tied: bool, data: Data) -> nn.Module:
    return VisionTransformer(
        img_size=DIGIT.side,
        patch_size=DIGIT.patch,
        in_chans=DIGIT.channels,
        num_classes=data.classes,  # type: ignore[attr-defined]
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        mlp_ratio=INNER / WIDTH,
        drop_rate=DROPOUT,
        pos_drop_rate=DROPOUT,
        proj_drop_rate=DROPOUT,
        attn_drop_rate=DROPOUT,
    )


def _mae(tied: bool, data: Data) -> nn.Module:
    config = ViTMAEConfig(
        image_size=DIGIT.side,
        num_channels=DIGIT.channels,
        patch_size=DIGIT.patch,
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        decoder_hidden_size=WIDTH,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=HEADS,
        decoder_intermediate_size=INNER,
        mask_ratio=0.5,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )
    return initialised(ViTMAEForPreTraining(config))


MODELS: Mapping[str, Callable[[bool, Data], nn.Module]] = {"bert": _bert, "gpt": _gpt, "vit": _vit, "mae": _mae}
"""The model of each baseline's odd point; of pictures there is nothing to tie."""
