"""What every technique must do, on every baseline that its card names (a run of the tests tries one of them, ``make
mutants`` and ``--only`` all); a technique with several ranks does it in ranks.

Runs are short and exact: equality here is equality to the bit. A technique to which two blocks leave nothing to do
(recomputation between sqrt(2) checkpoints) shows what it does at nano, and one that waits for examples to come back in
a longer run there. What techniques share is made once a process: the checkpoints, and the reference's run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from suite.entries.catalogue import catalogue, reference_of
from suite.entries.installed import baselines
from suite.entries.spelling import build
from suite.loop.run import Run
from suite.loop.sites import NotAttached
from suite.measure.rules.conduct import watched
from suite.measure.rules.surroundings import check_methods
from suite.record.job import Size, StackError, Task, canonical, join
from suite.record.schema import Counters
from tests.real_ranks import Forked
from tests.runs import home, new_run, unless

TRIED: tuple[tuple[Size, int], ...] = (("pico", 6), ("nano", 6), ("nano", 24))  # with the steps of a whole run
CHECKPOINT_STEPS = 6
PARTNERS = ("lawa", "lion")
CASES = [
    pytest.param(
        entry.id,
        baseline,
        id=f"{entry.id}-{baseline}",
        marks=unless(baseline == home(entry.card)),
    )
    for entry in catalogue().values()
    for baseline in entry.card.baselines
]


@dataclass(frozen=True)
class Place:
    """Where a technique is tried; ``weights`` is the checkpoint that an ``adapt`` run starts from."""

    baseline: str
    size: Size
    steps: int
    task: Task
    weights: Path | None

    def ranks(self, stack: str) -> int:
        return build(stack).recipe(baselines()[self.baseline].recipe(self.size, "classic", self.task)).world_size

    def run(self, stack: str, mesh: DeviceMesh | None = None) -> Run:
        return new_run(
            self.baseline,
            stack,
            size=self.size,
            recipe="classic",
            task=self.task,
            seed=3,
            steps=self.steps,
            weights=self.weights,
            mesh=mesh,
        )


class Trained(NamedTuple):
    """The trajectory of as many steps as the reference makes."""

    losses: list[float]
    digest: str


def trained(run: Run, steps: int) -> Trained:
    losses = run.train(steps)
    assert all(math.isfinite(loss) for loss in losses)
    return Trained(losses, digest(run))


def digest(run: Run) -> str:
    """Hash of all of the model's values, by the names that they have without torch's data-parallel wrapper."""
    total = hashlib.sha256()
    values = {name.removeprefix("module."): each for name, each in run.model.state_dict().items()}
    values = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in values.items()}
    for name, tensor in sorted(values.items()):
        total.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def counts(run: Run) -> tuple[Counters, int]:
    return run.count_step(), run.world_size


@cache
def reference_run(reference: str, place: Place, mesh: DeviceMesh | None) -> tuple[Trained, tuple[Counters, int]]:
    """The run that techniques are compared with, and the counts of its next step."""
    run = place.run(reference, mesh)
    return trained(run, place.steps), counts(run)


@cache
def reference_evaluation(reference: str, place: Place, mesh: DeviceMesh | None) -> dict[str, float]:
    """What the reference's run ends at: a technique may change evaluation alone."""
    run = place.run(reference, mesh)
    run.train(place.steps)
    return run.evaluate()


def check(name: str, place: Place, folder: Path, mesh: DeviceMesh | None = None) -> bool:
    """Check all that is asked of a technique but that it changes something and does all that it says that it does, and
    return whether it does."""
    run = place.run(name, mesh)
    objects = watched(run)
    assert run.attachment.sites, "a technique says where it acts"
    own = trained(run, place.steps)
    check_methods(objects)
    assert run.attachment.proven

    half = place.run(name, mesh)
    middle = place.steps // 2
    first = half.train(middle)
    path = folder / f"run{half.rank}.pt"
    half.save(path)
    assert math.isfinite(half.evaluate()["loss"])
    resumed = place.run(name, mesh)
    resumed.load(path)
    rest = resumed.train(place.steps - middle)
    assert first == own.losses[:middle], "the same seed must give the same trajectory to the bit"
    assert rest == own.losses[middle:], "a resumed run must continue to the bit"
    assert digest(resumed) == own.digest, "a resumed run must end in the same weights to the bit"

    reference = reference_of(name)[0]
    their_mesh = mesh if place.ranks(reference) > 1 else None
    plain, plain_counts = reference_run(reference, place, their_mesh)
    neutral = catalogue()[name].technique.zero_strength
    if neutral is not None:
        stack = join([(name, {key: str(value) for key, value in neutral.items()})])
        assert trained(place.run(stack, mesh), place.steps) == plain, f"{stack} must equal {reference} to the bit"

    for together in stacked(name, place, mesh):
        assert all(math.isfinite(loss) for loss in together.train(2))
        assert math.isfinite(together.evaluate()["loss"])
    evaluation = run.evaluate()
    changed = own != plain or evaluation != reference_evaluation(reference, place, their_mesh)
    changed = changed or counts(run) != plain_counts
    try:
        run.attachment.end(run)
    except NotAttached:
        return False
    return changed


def stacked(name: str, place: Place, mesh: DeviceMesh | None) -> Iterator[Run]:
    """The technique with the first of the partners that it does not refuse, in both orders."""
    for partner in (each for each in PARTNERS if each != name):
        try:
            yield place.run(f"{name}+{partner}", mesh)
            yield place.run(f"{partner}+{name}", mesh)
            return
        except StackError:
            continue
    raise AssertionError(f"{name} stacks with none of {', '.join(PARTNERS)}")


def check_on_a_rank(rank: int, ranks: int, name: str, place: Place, folder: Path) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    assert check(name, place, folder, torch.distributed.init_device_mesh("cpu", (ranks,))), f"{name} changes nothing"
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Size], Path]:
    """A baseline's checkpoint after a few steps, for the techniques that adapt one."""

    @cache
    def trained_checkpoint(baseline: str, size: Size) -> Path:
        run = new_run(baseline, size=size, recipe="classic", split="source", steps=CHECKPOINT_STEPS)
        run.train(CHECKPOINT_STEPS)
        path = tmp_path_factory.mktemp("checkpoints") / f"{baseline}.pt"
        torch.save(run.model.state_dict(), path)
        return path

    return trained_checkpoint


@pytest.mark.parametrize(("name", "baseline"), CASES)
def test_conformance(name: str, baseline: str, checkpoint_of: Callable[[str, Size], Path], tmp_path: Path) -> None:
    task = reference_of(name)[1]
    for size, steps in TRIED:
        place = Place(baseline, size, steps, task, checkpoint_of(baseline, size) if task == "adapt" else None)
        ranks = place.ranks(name)
        if ranks > 1:
            with Forked(ranks) as each:
                each.do(check_on_a_rank, ranks, name, place, tmp_path)
            return
        if check(name, place, tmp_path):
            return
    pytest.fail(f"{name} changes nothing, or does not do by the end of a run what it says that it does")


@pytest.mark.parametrize("name", catalogue())
def test_card(name: str) -> None:
    card = catalogue()[name].card
    assert card.claim, "every technique brings at least one claim"
    assert set(card.baselines) <= set(baselines())
    assert card.reference == canonical(card.reference)
    build(card.reference)
