"""Studies FLIP where the paper has it: in the image tower of a CLIP, here a small one that learns digits from texts
about them.

Each picture comes with a sentence that names its digit ("a handwritten seven"). Images and texts are told apart within
their batch (Radford et al., arXiv 2103.00020, figure 3), by transformers' own CLIP and loss; the schedule is that of
the baseline. A digit is then read by the nearest of ten texts, each the mean over the templates. The texts were seen in
training, so this is less than the paper's zero-shot transfer.

The paper spends what masking saves on a larger batch: rows with ``batch`` times the pictures have about the reference's
FLOPs a step. ``accuracy_masked`` is what the model is worth before the phase without masking, ``accuracy`` after it.
Times are medians of one process, unpaired, and say less than FLOPs. Nothing is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from suite.entries.installed import baseline_of
from suite.loop.data import Batch, Data, generator, mixed_seed
from suite.loop.recipe import Recipe
from suite.meters.flops import FlopCounter
from suite.model.patch_tokens import Entrance, patch_entrance
from suite.topics.studies.lab import Lab, StudyTable
from techniques.token_masking.flip.technique import Flip, dropping, kept_patches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASELINES = ("vit",)
CONTENDERS = ((0.0, 1), (0.5, 1), (0.75, 1), (0.5, 2), (0.75, 4))  # share of patches left out, times the batch
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = ("a handwritten {}", "the digit {}", "a picture of the number {}", "{} written by hand")
SPECIAL = ("<pad>", "<end>", "<begin>")  # transformers takes an end token of 2 for the highest id instead
WORDS = (*SPECIAL, *sorted({word for template in TEMPLATES for word in template.replace("{}", "").split()} | {*DIGITS}))
LENGTH = 2 + max(len(template.split()) for template in TEMPLATES)
IMAGE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
PATCHES_ALONG = 4


class Result(NamedTuple):
    """Holds a row of the table ``clip``; FLOPs and times are of a masked step, and over the first row's."""

    drop: float
    batch: int
    patches: int
    step_gflops: float
    relative_flops: float
    step_ms: float
    relative_time: float
    accuracy_masked: float
    accuracy: float


def tokens_of(text: str) -> list[int]:
    """Returns the tokens of a sentence of WORDS, int64 [LENGTH]. Raises ValueError for another word, or too many."""
    words = text.split()
    if unknown := [word for word in words if word not in WORDS]:
        raise ValueError(f"no such word: {unknown[0]!r}; the words are {', '.join(WORDS[len(SPECIAL) :])}")
    if len(words) > LENGTH - 2:
        raise ValueError(f"{text!r} has {len(words)} words, and there is room for {LENGTH - 2}")
    row = ["<begin>", *words, "<end>"]
    return [WORDS.index(word) for word in [*row, *["<pad>"] * (LENGTH - len(row))]]


SENTENCES = torch.tensor([[tokens_of(template.format(digit)) for template in TEMPLATES] for digit in DIGITS])
"""int64 [digits, templates, LENGTH]."""


def small_clip(pixels: Tensor) -> CLIPModel:
    """Makes a fresh CLIP for pictures in the shape of ``pixels`` [batch, channels, side, side]."""
    channels, side = pixels.shape[1:3]
    vision = {**IMAGE, "image_size": side, "patch_size": side // PATCHES_ALONG, "num_channels": channels}
    ids = {f"{name}_token_id": WORDS.index(word) for name, word in zip(("pad", "eos", "bos"), SPECIAL, strict=True)}
    text = {**TEXT, **ids, "vocab_size": len(WORDS), "max_position_embeddings": LENGTH}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))


@dataclass
class Trained:
    """Holds a trained CLIP, and what its masked steps cost."""

    model: CLIPModel
    flops: int
    step_s: float
    accuracy_masked: float
    accuracy: float


def trained(data: Data, recipe: Recipe, drop: float, seed: int) -> Trained:
    """Trains a CLIP with ``drop`` of the patches left out until the last phase."""
    torch.manual_seed(mixed_seed(seed, 0))
    first, _ = data.batch(mixed_seed(seed, 2), 0, 2)
    model = small_clip(first["pixel_values"]).train()
    optimizer = torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    entrance, whole_from = entrance_of(model, first), Flip().whole_from(recipe.steps)
    times: list[float] = []
    flops, masked = 0, float("nan")
    for step in range(recipe.steps):
        if step == whole_from:
            masked = accuracy(model, data)
        batch, _ = data.batch(mixed_seed(seed, 2), step * recipe.batch_size, recipe.batch_size)
        sentences = sentences_for(batch, generator(seed, 7, step))
        optimizer.param_groups[0]["lr"] = recipe.learning_rate_at(step)
        started = time.perf_counter()
        counter = FlopCounter() if step == 0 else None
        with counter or nullcontext(), dropping(entrance, drop) if drop and step < whole_from else nullcontext():
            optimizer.zero_grad(set_to_none=True)
            model(input_ids=sentences, pixel_values=batch["pixel_values"], return_loss=True).loss.backward()
            optimizer.step()
        if counter:
            flops = counter.total
        elif step < whole_from:
            times.append(time.perf_counter() - started)
    return Trained(model, flops, median(times), masked, accuracy(model, data))


def entrance_of(model: CLIPModel, batch: Batch) -> Entrance:
    """Finds where patches enter the image tower."""
    sentences = sentences_for(batch, generator(0))
    return patch_entrance(model, lambda: model(input_ids=sentences, pixel_values=batch["pixel_values"]))


def sentences_for(batch: Batch, random: torch.Generator) -> Tensor:
    """Draws a sentence for each picture, about its digit, int64 [batch, LENGTH]."""
    templates = torch.randint(len(TEMPLATES), batch["labels"].shape, generator=random)
    return SENTENCES[batch["labels"], templates]


@torch.no_grad()
def accuracy(model: CLIPModel, data: Data) -> float:
    """Computes, of the test pictures, the share whose nearest text is about their digit. All patches are seen."""
    model.eval()
    of_texts = embedded(model.get_text_features(input_ids=SENTENCES.flatten(0, 1)))
    of_digits = F.normalize(of_texts.view(len(DIGITS), len(TEMPLATES), -1).mean(1), dim=-1)
    right = count = 0
    for batch in data.held_out("test", 64):
        of_pictures = embedded(model.get_image_features(pixel_values=batch["pixel_values"]))
        right += int(((of_pictures @ of_digits.T).argmax(1) == batch["labels"]).sum())
        count += len(batch["labels"])
    model.train()
    return right / count


def embedded(features: Any) -> Tensor:
    """Returns features of length 1; transformers gives them bare, or (since 5) as what is pooled."""
    bare: Tensor = features if isinstance(features, Tensor) else features.pooler_output
    return F.normalize(bare, dim=-1)


def study(lab: Lab) -> list[StudyTable]:
    """Makes the table ``clip``: means over the seeds."""
    baseline, at = baseline_of(lab.setting), lab.setting
    data, recipe = baseline.data(at.size, at.task, at.data), baseline.recipe_of(at)
    rows: list[Result] = []
    for number, (drop, times) in enumerate(CONTENDERS):
        lab.progress(number / len(CONTENDERS), f"a CLIP without {drop:.0%} of the patches, {times} times the batch")
        wide = replace(recipe, batch_size=times * recipe.batch_size)
        runs = [trained(data, wide, drop, seed) for seed in range(lab.seeds)]
        gflops, step_ms = runs[0].flops / 1e9, 1e3 * fmean(run.step_s for run in runs)
        first = rows[0] if rows else None
        rows.append(
            Result(
                drop=drop,
                batch=wide.batch_size,
                patches=kept_patches(PATCHES_ALONG**2, drop),
                step_gflops=gflops,
                relative_flops=gflops / (first.step_gflops if first else gflops),
                step_ms=step_ms,
                relative_time=step_ms / (first.step_ms if first else step_ms),
                accuracy_masked=fmean(run.accuracy_masked for run in runs),
                accuracy=fmean(run.accuracy for run in runs),
            )
        )
    note = "the last tenth of the steps sees all patches; FLOPs and times are of the steps before, both towers together"
    return [StudyTable("clip", Result._fields, [tuple(row) for row in rows], note)]


def plot(tables: Sequence[StudyTable]) -> Figure:
    """Draws accuracy over the cost of a step, in FLOPs and in time: hollow before the phase without masking, full
    after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    rows = [Result(*row) for row in next(table for table in tables if table.name == "clip").rows]
    for axes, cost, label in zip(
        figure.subplots(1, 2, sharey=True), ("relative_flops", "relative_time"), ("FLOPs", "time"), strict=True
    ):
        for number, row in enumerate(rows):
            place, name = getattr(row, cost), f"r = {row.drop:g}, batch {row.batch}"
            axes.plot([place] * 2, [row.accuracy_masked, row.accuracy], "-", color=f"C{number}", linewidth=1)
            axes.plot(place, row.accuracy_masked, "o", color=f"C{number}", fillstyle="none")
            axes.plot(place, row.accuracy, "o", color=f"C{number}", label=name)
        axes.set(xlabel=f"{label} of a masked step, over the whole pictures'", ylabel="accuracy over the label texts")
    axes.legend()
    return figure
