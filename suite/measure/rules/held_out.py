"""Guards held-out data: scored elsewhere, by the baseline as it was, and no part of what is trained on.

::

    referee (loads no technique)                       contender
      the inputs of each held-out batch  ── a file ──►   predicts, from copies
      losses and metrics, by its labels  ◄── a file ──   its outputs
      held-out examples, by their hashes ◄── a file ──   hashes of what it trains on, unless that is the baseline's own

A run gets its baseline with the test examples sealed, by whatever way it asks for them: reading them ends the run, and
until it has ended they are not in its process. What it predicts from is no more of a batch than the baseline's own
``forward`` reads: of labels that are no inputs it gets none. Inputs may be labels, too (a text's next characters), so a
model that writes to its copy ends the run: it would write to its labels as it trains. Validation examples may be looked
at (a technique may measure itself on some), and may be trained on no more than test examples.

Where a stack's reference shows held-out examples in a way of its own (masks), that way is the technique's code: such a
run is scored in its own process (:class:`Scorer`).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import IO, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from suite.loop.baseline import Baseline, Predictor
from suite.loop.data import Batch, Data, Examples, HeldOut
from suite.loop.run import Run
from suite.measure.rules.broken import RuleBroken, few
from suite.meters.flops import FlopCounter
from suite.record.job import Setting

SEALED, KEPT, ABSENT = "test examples are sealed", "held-out data stay", "held-out data are not trained on"
UNTRAINED, PASSIVE = "nothing is known before it is learned", "evaluation trains nothing"
PLAIN = "losses are plain tensors"
PARTS: tuple[HeldOut, ...] = ("validation", "test")
KNOWN_SHARE = 0.8  # of an untrained model's loss: what a start that has seen no example stays above
FEW_PASSES = 9  # forward passes of a batch: three training steps' worth, which a start may take unseen
LARGEST_FILE = 1 << 30  # bytes of outputs, and the batch that passes it
LONGEST_HEAD = 1 << 16
DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "bool")


class Seal:
    """Says whether the test examples may be read."""

    def __init__(self) -> None:
        self.broken = False
        self.given: list[weakref.ref[Data]] = []  # what baselines gave
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
    """Stands for examples: tells how many they are. ``load`` gets them, once the seal is opened."""

    def __init__(self, count: int, load: Callable[[], Examples]) -> None:
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "_load", load)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return cast(Examples, self._load()).tensors  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return cast(int, self._count)  # type: ignore[attr-defined]


def seal_baselines(classes: Iterable[type[Baseline]], seal: Seal) -> None:
    """Has every baseline of this process, from now on, give its data with the test examples sealed."""
    inside = threading.local()  # one baseline's data may be made of another's, which it reads

    def sealed(own: Callable[..., Data]) -> Callable[..., Data]:
        def data(self: Baseline, *arguments: Any, **named: Any) -> Data:
            def whole() -> Data:
                before, inside.deep = getattr(inside, "deep", False), True
                try:
                    return own(self, *arguments, **named)
                finally:
                    inside.deep = before

            def load() -> Examples:
                seal.check()
                return whole().test

            every = whole()
            if getattr(inside, "deep", False):
                return every
            every = replace(every, test=SealedExamples(len(every.test), load))
            seal.given.append(weakref.ref(every))
            return every

        return data

    owners: set[Any] = {base for own in classes for base in own.__mro__ if "data" in vars(base)}
    for each in owners - {Baseline}:
        each.data = sealed(each.data)


class Predicting:
    """Has a run predict what it is shown, in its own process."""

    def __init__(self) -> None:
        self._shown: dict[HeldOut, list[Batch]] = {}
        self._shown_sha256: dict[HeldOut, str] = {}

    def hand_over(self, run: Run, part: HeldOut, shown: HandOver, first: int) -> int:
        """Writes the outputs for the batches from ``first`` on, as many as a file takes, and returns how many. Raises
        RuleBroken where predicting trains, or writes to what is shown."""
        if part not in self._shown:
            batches: list[Batch] = torch.load(shown.inputs, weights_only=True)
            self._shown[part] = [run._to_device(batch) for batch in batches]
            self._shown_sha256[part] = sha256_of(self._shown[part])
        batches, written, size = self._shown[part], 0, 0
        where = shown.outputs if run.rank == 0 else os.devnull  # the others predict what it cannot alone
        with evaluating(run, part) as predict, open(where, "wb") as file:
            for batch in batches[first:]:
                outputs = from_copy(predict, batch)
                size += write_outputs({name: getattr(outputs, name) for name in shown.names}, file)
                written += 1
                if size > LARGEST_FILE:
                    break
        if sha256_of(batches) != self._shown_sha256[part]:
            raise RuleBroken(KEPT, f"the {part} examples that are scored were written to by step {run.step}")
        return written


class HandOver(NamedTuple):
    """Says where the inputs of a part are, where the outputs go, and what of these is wanted."""

    inputs: str
    outputs: str
    names: list[str]


@contextmanager
def evaluating(run: Run, part: HeldOut) -> Iterator[Predictor]:
    """Gives what predicts. Raises RuleBroken at the end where that trained."""
    before, at = state_of(run.model), (run.step, run.position)
    with ExitStack() as stack:
        with nullcontext() if run.recipe.compile else FlopCounter() as counter:
            predict = stack.enter_context(run.predicting())
        first: list[Batch] = []

        def noted(batch: Batch) -> Any:
            if not first:
                first.append({name: tensor.clone() for name, tensor in batch.items()})
            return predict(batch)

        yield noted
        if counter and counter.total and first:
            with FlopCounter() as one:
                predict(first[0])
            if counter.total > FEW_PASSES * one.total:
                raise RuleBroken(PASSIVE, f"before the {part} evaluation it computed as much as three training steps")
    if (run.step, run.position) != at or before != state_of(run.model):
        raise RuleBroken(PASSIVE, f"the {part} evaluation after step {run.step} left another model")


def from_copy(predict: Predictor, batch: Batch) -> Any:
    """Returns what is predicted from a copy. Raises RuleBroken where that is written to."""
    shown = {name: tensor.clone() for name, tensor in batch.items()}
    kept = dict(shown)
    outputs = predict(shown)
    if written := [name for name, tensor in kept.items() if not _same_bits(tensor, batch[name])]:
        raise RuleBroken(KEPT, f"the model writes to its inputs ({few(written)}); let it write to copies")
    return outputs


class Scorer:
    """Scores a run in its own process, where its reference shows held-out examples in a way of its own."""

    def __init__(self, baseline: Baseline, setting: Setting, seal: Seal) -> None:
        self.baseline, self.setting, self.seal = baseline, setting, seal
        self._batches: dict[HeldOut, list[Batch]] = {}
        self._batch_sha256: dict[HeldOut, str] = {}

    def scores(self, run: Run, part: HeldOut) -> dict[str, float]:
        """Returns the mean loss and further metrics. Raises RuleBroken if evaluating trains."""
        if part not in self._batches:
            own, setting = self.baseline, self.setting
            with self.seal.opened():
                data = own.data(setting.size, setting.task, setting.data)
                data = replace(data, transform=run.data.transform, test_transform=run.data.test_transform)
                batches = data.held_out(part, own.recipe_of(setting).batch_size)
            self._batches[part] = [run._to_device(batch) for batch in batches]
            self._batch_sha256[part] = sha256_of(self._batches[part])
        batches = self._batches[part]
        with evaluating(run, part) as predict:
            means = self.baseline.mean_scores(lambda batch: from_copy(predict, batch), batches)
        if sha256_of(batches) != self._batch_sha256[part]:
            raise RuleBroken(KEPT, f"the {part} examples that are scored were written to by step {run.step}")
        return means


def write_outputs(outputs: Mapping[str, Tensor], file: IO[bytes]) -> int:
    """Writes tensors: a line of JSON with names, types and shapes, then their bytes; returns how many these are."""
    plain = {name: getattr(tensor, "full_tensor", lambda own=tensor: own)() for name, tensor in outputs.items()}
    if odd := [name for name, tensor in plain.items() if type(tensor) is not Tensor]:
        raise RuleBroken(PLAIN, f"its {few(odd)} are no plain tensors, and may compute when they are read")
    known = {name: tensor.detach().contiguous().cpu() for name, tensor in plain.items()}
    heads = [[name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in known.items()]
    file.write(json.dumps(heads).encode() + b"\n")
    for tensor in known.values():
        file.write(tensor.view(-1).view(torch.uint8).numpy().data)
    return sum(tensor.nbytes for tensor in known.values())


def read_outputs(file: IO[bytes], names: Sequence[str], examples: int) -> SimpleNamespace:
    """Reads what :func:`write_outputs` wrote of a batch. Raises RuleBroken for anything else."""
    outputs: dict[str, Tensor] = {}
    try:
        heads = json.loads(file.readline(LONGEST_HEAD))
        if [name for name, _, _ in heads] != list(names):
            raise ValueError
        for name, dtype, shape in heads:
            if dtype not in DTYPES or shape[:1] != [examples]:
                raise ValueError
            outputs[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            rest = outputs[name].view(-1).view(torch.uint8).numpy()
            if file.readinto(rest.data) != rest.nbytes:  # type: ignore[attr-defined]
                raise ValueError
    except (ValueError, TypeError, RuntimeError, UnicodeDecodeError):
        raise RuleBroken(PLAIN, f"what it handed over is not {few(names)} of {examples} examples") from None
    return SimpleNamespace(**outputs)


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
