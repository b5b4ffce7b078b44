"""Holds a run's data: examples, the order they come in, and how a batch is made of them.

Order and batch are functions of (seed, position), not of a mutable iterator: two contenders of one seed see the same
examples in the same order whatever else they do, and a resumed run needs no replay.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

Batch = dict[str, Tensor]
Transform = Callable[[Batch, torch.Generator], Batch]
"""Makes a model's batch of raw examples: masks tokens, normalises pixels. Random choices come from the generator."""

HeldOut = Literal["validation", "test"]

Sampler = Callable[[int, int, int, int], Tensor]
"""``sampler(examples, seed, position, count)``: int64 indices of ``count`` examples after ``position`` were seen."""


def mixed_seed(*parts: int) -> int:
    """Returns one 63-bit seed from several integers (the splitmix64 finaliser), so that streams of near seeds are
    unrelated."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def generator(*parts: int) -> torch.Generator:
    """Returns a CPU generator seeded with :func:`mixed_seed`."""
    return torch.Generator().manual_seed(mixed_seed(*parts))


def shuffled(examples: int, seed: int, position: int, count: int) -> Tensor:
    """Draws without replacement inside an epoch, each epoch in its own random order."""
    taken: list[Tensor] = []
    while count > 0:
        epoch, offset = divmod(position, examples)
        taken.append(example_order(examples, seed, epoch)[offset : offset + count])
        position, count = position + len(taken[-1]), count - len(taken[-1])
    return torch.cat(taken)


@lru_cache(maxsize=2)  # an epoch's order is asked for at every step, on the training clock
def example_order(examples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(examples, generator=generator(seed, epoch))


@dataclass(frozen=True)
class Examples:
    """Holds a map-style data set: equal-length tensors by name, examples along the first dimension."""

    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        lengths = {name: len(tensor) for name, tensor in self.tensors.items()}
        if len(set(lengths.values())) != 1 or not min(lengths.values()):
            raise ValueError(f"a data set needs tensors of one length, at least 1 example; got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, indices: Tensor) -> Batch:
        return {name: tensor[indices] for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class Data:
    """Holds training, validation and test examples with their transform and sampler. Tuning and stopping see validation
    examples, reports say what the test examples gave.

    ``name`` says where the examples come from; ``sha256`` is the hash of their content, and records carry it.
    """

    name: str
    sha256: str
    train: Examples
    validation: Examples
    test: Examples
    transform: Transform
    test_transform: Transform | None = None  # the training transform unless it augments; for validation too
    sampler: Sampler = shuffled

    def batch(self, seed: int, position: int, count: int) -> tuple[Batch, Tensor]:
        """Returns the training batch of the ``count`` examples after ``position`` seen ones, and their indices
        [count]."""
        indices = self.sampler(len(self.train), seed, position, count)
        return self.transform(self.train[indices], generator(seed, position, 1)), indices

    def held_out(self, part: HeldOut, count: int) -> list[Batch]:
        """Returns all examples of a part in order, with the same masks and noise at every call and in every run."""
        examples, transform = getattr(self, part), self.test_transform or self.transform
        stream = {"test": 2, "validation": 3}[part]
        return [
            transform(examples[torch.arange(start, min(start + count, len(examples)))], generator(0, start, stream))
            for start in range(0, len(examples), count)
        ]

    def subset(self, indices: Tensor) -> "Data":
        """Keeps, of the same data, only the training examples ``indices`` (int64)."""
        return replace(self, train=Examples(self.train[indices]))
