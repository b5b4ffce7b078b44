"""Scores runs in a process that loads no technique: it has the baseline, its held-out examples and their labels.

It is forked before a technique's code is loaded, and asked by the command alone. Of a run it sees outputs, hashes of
the examples that it trains on, and of their order; what it answers from are its own examples. Which names of a batch
are inputs, and which outputs are scored, is what the baseline's own ``forward``, ``losses`` and ``metrics`` read of a
batch on a fresh model.

Inputs may be labels, too: a text's next characters, the pixels of hidden patches. So the last batches that a run is
shown with the test examples are the first one with one element of each example altered. Where a fresh model's outputs
do not depend on that element, those of the run may not follow it either: its loss on the unaltered labels would rise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from types import SimpleNamespace
from typing import IO, Any

import torch
from torch import Tensor

from suite.entries.adapting import baseline_for
from suite.loop.data import Batch, HeldOut, generator, mixed_seed
from suite.measure.rules import held_out
from suite.measure.rules.broken import RuleBroken, few
from suite.measure.rules.held_out import ABSENT, KEPT, PARTS, read_outputs
from suite.meters.flops import FlopCounter
from suite.model.anatomy import anatomy
from suite.record.job import Job

ORDER = "examples come in the baseline's order"
KNOWN_FROM_INPUTS = "what inputs say is the baseline's"
AHEAD = "answers are not looked up in the inputs"
LOOKED_SHARE = 0.01  # of the loss: by what it rises where a prediction follows inputs that a model does not get to see


class Referee:
    """Answers the command's questions about one job's run; each method is one, and answers plain values."""

    def __init__(self, job: Job) -> None:
        setting = job.setting
        torch.set_num_threads(setting.threads)
        self.job, self.baseline = job, baseline_for(setting)
        self.data = self.baseline.data(setting.size, setting.task, setting.data)
        self.recipe = self.baseline.recipe_of(setting)
        self._batches: dict[HeldOut, list[Batch]] = {}
        self._firsts: dict[HeldOut, Any] = {}
        self._of_inputs: dict[HeldOut, list[dict[str, Tensor]]] = {}

    # what it shows ---------------------------------------------------------------------------------------------------

    def show(self, part: HeldOut, path: str) -> list[str]:
        """Writes the inputs of a part's batches; returns the names of the outputs that are scored."""
        inputs, outputs = self._names
        batches = self._of(part) + (self._altered if part == "test" else [])
        shown = [{name: tensor for name, tensor in batch.items() if name in inputs} for batch in batches]
        torch.save(shown, path)
        return outputs

    # what it judges --------------------------------------------------------------------------------------------------

    def score(self, part: HeldOut, path: str, first: int, count: int) -> dict[str, Any]:
        """Returns the means of what was handed over for the ``count`` batches from ``first`` on, over how many examples
        they are, and the loss of the first batch."""
        whole = self._of(part)
        altered = self._altered if part == "test" else []
        batches = whole[first : first + count]
        with open(path, "rb") as file:
            number = iter(range(first, first + count))

            def handed(batch: Batch) -> Any:
                outputs = self._read(file, batch)
                self._check_known(part, here := next(number), outputs)
                if not here:
                    self._firsts[part] = outputs
                return outputs

            means = self.baseline.mean_scores(handed, batches) if batches else {}
            for batch in altered[max(0, first - len(whole)) : max(0, first + count - len(whole))]:
                self._check_ahead(batch, self._read(file, batch))
        loss = self.baseline.losses(self._firsts[part], whole[0]).double().mean().item()
        examples = sum(len(next(iter(batch.values()))) for batch in batches)
        left = len(whole) + len(altered) - first - count
        return {"means": means, "examples": examples, "left": left, "first_loss": loss}

    def _read(self, file: IO[bytes], batch: Batch) -> Any:
        """Returns the next outputs of the file, on the device."""
        outputs = read_outputs(file, self._names[1], len(next(iter(batch.values()))))
        return SimpleNamespace(**{name: tensor.to(self._device) for name, tensor in vars(outputs).items()})

    def _check_ahead(self, altered: Batch, outputs: Any) -> None:
        """Raises RuleBroken where predictions follow what was altered, and those of a fresh model do not."""
        batch, own = self._of("test")[0], self._firsts["test"]
        same = self._plain(batch).logits == self._plain(altered).logits
        mixed = SimpleNamespace(**{**vars(own), "logits": torch.where(same, outputs.logits, own.logits)})
        shown, hidden = (self.baseline.losses(each, batch).double().mean().item() for each in (own, mixed))
        if hidden > (1 + LOOKED_SHARE) * shown:
            raise RuleBroken(
                AHEAD,
                f"with inputs altered that a fresh model does not look at there, its loss on the first batch is "
                f"{hidden:.4g} instead of {shown:.4g}",
            )

    def check_start(self, own: float, set_up_flops: int) -> None:
        """Raises RuleBroken where a run's loss on the first validation batch, before its first step, is that of an
        earlier run."""
        batch = self._of("validation")[0]
        with FlopCounter() as counter:
            outputs = self._plain(batch)
        held_out.check_first_loss(own, self.baseline.losses(outputs, batch).mean().item(), set_up_flops, counter.total)

    def check_held(self, held: dict[HeldOut, str]) -> None:
        """Raises RuleBroken where these are not the hashes of its held-out examples."""
        for part, own in held.items():
            if own != held_out.sha256(getattr(self.data, part)):
                raise RuleBroken(KEPT, f"the run has {part} examples that are not the baseline's, or were written to")

    def check_absent(self, path: str) -> None:
        """Raises RuleBroken where held-out examples are among those whose hashes (int64) the file has, unless the
        baseline's own training examples have them, too."""
        own = torch.load(path, weights_only=True)
        held = torch.cat([held_out.rows(getattr(self.data, part)) for part in PARTS])
        leaked = torch.isin(own, held) & ~torch.isin(own, held_out.rows(self.data.train))
        if leaked.any():
            raise RuleBroken(ABSENT, f"{int(leaked.sum())} of its training examples are held-out ones")

    def check_order(self, own: str, position: int, steps: int, batch_size: int, share: tuple[int, int]) -> None:
        """Raises RuleBroken where ``own`` is not the hash of the examples that ``steps`` steps after ``position``
        examples train on; ``share``: the rank, and how many there are."""
        digest = hashlib.sha256()
        for step in range(steps):
            at = position + step * batch_size
            indices = self.data.sampler(len(self.data.train), mixed_seed(self.job.seed, 2), at, batch_size)
            digest.update(order_bytes(indices[slice(share[0], None, share[1])]))
        if digest.hexdigest() != own:
            raise RuleBroken(
                ORDER,
                f"the {steps} steps after {position} examples trained on others than the baseline's; a technique that "
                "chooses or orders examples does it in its data method",
            )

    # parts -----------------------------------------------------------------------------------------------------------

    @cached_property
    def _device(self) -> torch.device:
        return torch.device(self.job.setting.device)

    def _of(self, part: HeldOut) -> list[Batch]:
        if part not in self._batches:
            batches = self.data.held_out(part, self.recipe.batch_size)
            self._batches[part] = [{name: tensor.to(self._device) for name, tensor in one.items()} for one in batches]
        return self._batches[part]

    @cached_property
    def _altered(self) -> list[Batch]:
        """Returns the first test batch, once for each input of two dimensions or more, with one element of each example
        replaced by another example's."""
        batch, coin = self._of("test")[0], generator(self.job.seed, 9)
        every = []
        for name in self._names[0]:
            flat = batch[name].flatten(1) if batch[name].ndim > 1 else batch[name][:0]
            if min(flat.shape) < 2:
                continue
            places = torch.randint(1, flat.shape[1], (len(flat), 1), generator=coin).to(flat.device)
            changed = flat.scatter(1, places, flat.roll(1, 0).gather(1, places))
            every.append({**batch, name: changed.view_as(batch[name])})
        return every

    @cached_property
    def _model(self) -> torch.nn.Module:
        setting = self.job.setting
        torch.manual_seed(mixed_seed(self.job.seed, 0))
        model = self.baseline.model(setting.size, self.data, setting.model).to(self._device).eval()
        anatomy(model).set_fused_attention(self.recipe.fused_attention)
        return model

    def _plain(self, batch: Batch) -> Any:
        """Returns the outputs of a fresh model."""
        precision = torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self.recipe.precision == "bf16")
        with torch.no_grad(), precision:
            return self.baseline.forward(self._model, batch)

    @cached_property
    def _names(self) -> tuple[list[str], list[str]]:
        """Returns what ``forward`` reads of a batch, and what ``losses`` and ``metrics`` read of the outputs."""
        batch = self._of("validation")[0]
        inputs = Read(batch)
        outputs = ReadOutputs(self._plain(inputs))
        self.baseline.losses(outputs, batch)
        self.baseline.metrics(outputs, batch)
        return sorted(inputs.read), sorted(outputs.read)

    def _check_known(self, part: HeldOut, number: int, outputs: Any) -> None:
        """Raises RuleBroken where outputs beside the logits are not those of a fresh model: masks, which follow from
        the inputs."""
        names = [name for name in self._names[1] if name != "logits"]
        if not names:
            return
        if part not in self._of_inputs:
            every = (self._plain(batch) for batch in self._of(part))
            self._of_inputs[part] = [{name: getattr(one, name).cpu() for name in names} for one in every]
        known = self._of_inputs[part][number]
        if odd := [name for name in names if not torch.equal(known[name], getattr(outputs, name))]:
            raise RuleBroken(KNOWN_FROM_INPUTS, f"its {few(odd)} of the {part} examples is another one than they have")


class Read(dict[str, Any]):
    """Is a batch that remembers what was read of it."""

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns what is there, remembered."""
        self.read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self.read |= set(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        """Returns all names, which are read."""
        self.read |= set(super().keys())
        return super().keys()

    def items(self) -> Any:
        """Returns all, which is read."""
        self.read |= set(super().keys())
        return super().items()

    def values(self) -> Any:
        """Returns all values, which are read."""
        self.read |= set(super().keys())
        return super().values()


class ReadOutputs:
    """Are outputs that remember what was read of them."""

    def __init__(self, outputs: Any) -> None:
        self.outputs, self.read = outputs, set[str]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.outputs, name)
        self.read |= {name}
        return value


def order_bytes(indices: Tensor) -> bytes:
    """Returns what is hashed of a step's examples."""
    return indices.to(torch.int64).contiguous().numpy().tobytes()
