"""Guards held-out data: read by the harness alone, scored by the baseline as it was, and no part of what is trained on.

A run gets its baseline with the test examples sealed: reading them ends the run. The harness keeps its own, evaluates
on these, and hands the model no more of a batch than the baseline's own ``forward`` hands on: of labels no model sees
any. What it hands out are copies, since inputs may be labels, too (a text's next characters). A model that writes to
its copy ends the run: it would write to its labels as it trains. Validation examples may be looked at (a technique may
measure itself on some), and may be trained on no more than test examples.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from suite.entries.catalogue import reference_of
from suite.loop.baseline import Baseline, Predictor
from suite.loop.data import Batch, Data, Examples, HeldOut
from suite.loop.run import Diverged, Run
from suite.measure.rules.broken import RuleBroken, few
from suite.record.job import BASELINE, Setting, Size, Split

SEALED, KEPT, ABSENT = "test examples are sealed", "held-out data stay", "held-out data are not trained on"
UNTRAINED, PASSIVE = "nothing is known before it is learned", "evaluation trains nothing"
PARTS: tuple[HeldOut, ...] = ("validation", "test")
KNOWN_SHARE = 0.8  # of an untrained model's loss: what a start that has seen no example stays above
FEW_PASSES = 9  # forward passes of a batch: three training steps' worth, which a start may take unseen


class Seal:
    """Says whether the test examples may be read."""

    def __init__(self) -> None:
        self.broken = False
        self._opened = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Lets the test examples be read meanwhile: by the harness, by what reads recorded steps."""
        self._opened += 1
        try:
            yield
        finally:
            self._opened -= 1

    def check(self) -> None:
        """Raises RuleBroken, now and ever after, where they are read while nobody may."""
        self.broken |= not self._opened
        if self.broken:
            raise RuleBroken(SEALED, "the run read them; tune and stop by validation examples")


class SealedExamples(Examples):
    """Wraps examples so that they tell how many they are, and nothing else."""

    def __init__(self, whole: Examples, seal: Seal) -> None:
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_seal", seal)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        self._seal.check()  # type: ignore[attr-defined]
        return cast(Examples, self._whole).tensors  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._whole)  # type: ignore[attr-defined]


def with_sealed_test(whole: Baseline, seal: Seal) -> Baseline:
    """Returns the baseline whose data have their test examples sealed."""

    def data(size: Size, split: Split, location: str | None = None) -> Data:
        every = whole.data(size, split, location)
        return replace(every, test=SealedExamples(every.test, seal))

    sealed = copy.copy(whole)
    sealed.data = data  # type: ignore[method-assign]
    return sealed


class Scorer:
    """Evaluates a run on the harness's own held-out examples, by the baseline as it was before a technique loads."""

    def __init__(self, baseline: Baseline, setting: Setting, stack: str) -> None:
        self.baseline = baseline
        self.data = baseline.data(setting.size, setting.task, setting.data)
        self.batch_size = baseline.recipe_of(setting).batch_size
        self.sha256 = {part: sha256(getattr(self.data, part)) for part in PARTS}
        # Held-out examples are shown as the baseline shows them, unless the reference shows them in another way, too.
        self.own_form = reference_of(stack)[0] != BASELINE if stack != BASELINE else False
        self._batches: dict[HeldOut, list[Batch]] = {}
        self._batch_sha256: dict[HeldOut, str] = {}

    def check_data(self, run: Run) -> None:
        """Raises RuleBroken where the run's data have other held-out examples, or train on these."""
        for part in PARTS:
            theirs = getattr(run.data, part)
            same = isinstance(theirs, SealedExamples) or theirs is getattr(self.data, part)
            if not same and sha256(theirs) != self.sha256[part]:
                raise RuleBroken(KEPT, f"the run has {len(theirs)} {part} examples that are not the baseline's")
        if run.data.train is not self.data.train:
            held = torch.cat([rows(getattr(self.data, part)) for part in PARTS])
            own, before = rows(run.data.train), rows(self.data.train)
            leaked = torch.isin(own, held) & ~torch.isin(own, before)
            if leaked.any():
                raise RuleBroken(ABSENT, f"{int(leaked.sum())} of its training examples are held-out ones")

    def check_kept(self) -> None:
        """Raises RuleBroken where the examples themselves were written to."""
        for part in PARTS:
            if sha256(getattr(self.data, part)) != self.sha256[part]:
                raise RuleBroken(KEPT, f"the {part} examples were written to")

    def scores(self, run: Run, part: HeldOut) -> dict[str, float]:
        """Returns the mean loss and further metrics. Raises Diverged if the loss is not finite, RuleBroken if
        evaluating trains."""
        batches = self._held_out(run, part)
        before, at = state_of(run.model), (run.step, run.position)
        with run.predicting() as predict:
            means = self._means(predict, batches)
        if sha256_of(batches) != self._batch_sha256[part]:
            raise RuleBroken(KEPT, f"the {part} examples that are scored were written to by step {run.step}")
        if (run.step, run.position) != at or before != state_of(run.model):
            raise RuleBroken(PASSIVE, f"the {part} evaluation after step {run.step} left another model")
        if not math.isfinite(means["loss"]):
            raise Diverged(f"the {part} loss became {means['loss']} after step {run.step}")
        return means

    def untrained_loss(self, run: Run) -> float:
        """Returns the loss of a fresh model on the first validation batch."""
        (batch,) = self._held_out(run, "validation")[:1]
        return self._means(_of(run, run.plain_model().eval()), [batch])["loss"]

    def first_loss(self, run: Run) -> float:
        """Returns the run's own loss there."""
        with run.predicting() as predict:
            return self._means(predict, self._held_out(run, "validation")[:1])["loss"]

    def _means(self, predict: Predictor, batches: Sequence[Batch]) -> dict[str, float]:
        """Returns the loss and further metrics of what is predicted from copies. Raises RuleBroken where one is written
        to."""

        def from_copy(batch: Batch) -> Any:
            shown = {name: tensor.clone() for name, tensor in batch.items()}
            kept = dict(shown)
            outputs = predict(shown)
            if written := [name for name, tensor in kept.items() if not _same_bits(tensor, batch[name])]:
                raise RuleBroken(KEPT, f"the model writes to its inputs ({few(written)}); let it write to copies")
            return outputs

        return self.baseline.mean_scores(from_copy, batches)

    def _held_out(self, run: Run, part: HeldOut) -> list[Batch]:
        if part not in self._batches:
            data = self.data
            if self.own_form:
                data = replace(data, transform=run.data.transform, test_transform=run.data.test_transform)
            batches = data.held_out(part, self.batch_size)
            self._batches[part] = [run._to_device(batch) for batch in batches]
            self._batch_sha256[part] = sha256_of(self._batches[part])
        return self._batches[part]


def _of(run: Run, model: nn.Module) -> Any:
    def predict(batch: Batch) -> Any:
        with torch.no_grad(), run.autocast():
            return run.baseline.forward(model, batch)

    return predict


def check_first_loss(own: float, untrained: float, flops: int, flops_of_a_pass: int) -> None:
    """Raises RuleBroken where a run predicts before its first step what no fresh model can, and has not computed for
    it: its answers are those of an earlier run."""
    if own < KNOWN_SHARE * untrained and flops < FEW_PASSES * flops_of_a_pass:
        raise RuleBroken(
            UNTRAINED,
            f"before the first step the loss is {own:.4g}, a fresh model's {untrained:.4g}, and the set-up computed "
            "less than three training steps: what it knows is from an earlier run",
        )


def sha256(examples: Examples) -> str:
    """Returns a hash of all that the examples are."""
    return sha256_of([examples.tensors])


def sha256_of(batches: Iterable[Mapping[str, Tensor]]) -> str:
    """Returns a hash of the tensors' names, types, shapes and bits."""
    digest = hashlib.sha256()
    for batch in batches:
        for name, tensor in sorted(batch.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(_bytes_of(tensor).cpu().numpy().data)
    return digest.hexdigest()


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bytes_of(a), _bytes_of(b))


def rows(examples: Examples) -> Tensor:
    """Returns an int64 hash of each example: a random linear form of its bytes, modulo 2^64."""
    total = torch.zeros(len(examples), dtype=torch.int64)
    for name, tensor in sorted(examples.tensors.items()):
        numbers = _numbers_of(tensor)
        coin = torch.Generator().manual_seed(sum(name.encode()))
        total += (numbers * torch.randint(-(2**62), 2**62, (numbers.shape[1],), generator=coin)).sum(1)
    return total


def _numbers_of(tensor: Tensor) -> Tensor:
    """Returns the bytes of each example [examples, numbers], as int64 numbers of eight where they divide so."""
    rows_of_bytes = _bytes_of(tensor).reshape(len(tensor), -1)
    eights = rows_of_bytes.shape[1] % 8 == 0
    return rows_of_bytes.view(torch.int64) if eights else rows_of_bytes.to(torch.int64) + 1


def _bytes_of(tensor: Tensor) -> Tensor:
    """Returns the bytes [bytes] of a tensor, where eight of them can be read as a number."""
    own = tensor.detach().contiguous()
    aligned = own.storage_offset() * own.element_size() % 8 == 0
    return (own if aligned else own.clone()).view(-1).view(torch.uint8)


def state_of(model: nn.Module) -> list[int]:
    """Returns a sum of each parameter's bits, wrapped around: what a step changes. A tensor would count as the run's
    own."""
    sums = []
    for parameter in model.parameters():
        own = getattr(parameter, "_local_tensor", parameter).detach()
        if type(own) in (Tensor, nn.Parameter) and own.device.type != "meta" and own.numel():
            bits = _bytes_of(own)
            sums.append(bits.view(torch.int32).sum() if bits.numel() % 4 == 0 else bits.sum())
    return [int(total) for total in torch.stack(sums).tolist()] if sums else []
