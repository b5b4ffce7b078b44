"""What every technique must do, on every baseline that its card names; a technique with several ranks does it in ranks.

Runs are short (STEPS steps at nano) and exact: equality here is equality to the bit.
"""

from __future__ import annotations

import hashlib
import math
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.multiprocessing

from suite.contract.baseline import baselines
from suite.contract.catalogue import catalogue
from suite.contract.run import Run
from suite.contract.stack import build
from suite.measure.plan import reference_of
from suite.meters.counters import count_step
from suite.record.job import join
from tests.runs import new_run

STEPS = 6
PARTNERS = ("lawa", "lion")
CASES = [
    pytest.param(entry.id, baseline, id=f"{entry.id}-{baseline}")
    for entry in catalogue().values()
    for baseline in entry.card.baselines
]


def make(stack: str, baseline: str, weights: Path, mesh: object = None, task: str | None = None) -> Run:
    return new_run(
        baseline,
        stack,
        size="nano",
        recipe="classic",
        task=task or reference_of(stack)[1],
        seed=3,
        steps=STEPS,
        weights=weights,
        mesh=mesh,
    )


def digest(run: Run) -> str:
    """Hash of all of the model's values."""
    total = hashlib.sha256()
    for name, tensor in sorted(run.model.state_dict().items()):
        total.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def trained(run: Run) -> tuple[list[float], str]:
    losses = run.train(STEPS)
    return losses, digest(run)


def check(new: Callable[[str], Run], name: str, folder: Path) -> None:
    """All that is asked of a technique; ``new`` makes a run of a stack."""
    run = new(name)
    losses, end = trained(run)
    assert all(math.isfinite(loss) for loss in losses)

    half = new(name)
    first = half.train(STEPS // 2)
    path = folder / f"run{half.rank}.pt"
    half.save(path)
    assert math.isfinite(half.evaluate()["loss"])
    resumed = new(name)
    resumed.load(path)
    rest = resumed.train(STEPS - STEPS // 2)
    assert first == losses[: STEPS // 2], "the same seed must give the same trajectory to the bit"
    assert (rest, digest(resumed)) == (losses[STEPS // 2 :], end), "a resumed run must continue to the bit"

    reference = reference_of(name)[0]
    plain_run = new(reference)
    plain = trained(plain_run)
    neutral = catalogue()[name].technique.zero_strength
    if neutral is not None:
        stack = join([(name, {key: str(value) for key, value in neutral.items()})])
        assert trained(new(stack)) == plain, f"{stack} must equal {reference} to the bit"
    assert (losses, end) != plain or counts(run) != counts(plain_run), f"{name} changes nothing"

    partner = next(each for each in PARTNERS if each != name)
    for stack in (f"{name}+{partner}", f"{partner}+{name}"):
        together = new(stack)
        assert all(math.isfinite(loss) for loss in together.train(2))
        assert math.isfinite(together.evaluate()["loss"])


def counts(run: Run) -> tuple[object, ...]:
    batch, indices = run.next_batch()
    counted = count_step(lambda: run.train_step(batch, indices), run.model, run.optimizer, batch)
    peak, saved = counted.peak_tensor_bytes, counted.saved_activation_bytes
    return counted.operators, peak, saved, counted.optimizer_state_bytes, counted.flops, run.world_size


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of each baseline after a few steps, for the techniques that adapt one."""
    made: dict[str, Path] = {}

    def checkpoint(baseline: str) -> Path:
        if baseline not in made:
            run = new_run(baseline, "baseline", recipe="classic", split="source", steps=STEPS)
            run.train(STEPS)
            made[baseline] = tmp_path_factory.mktemp("checkpoints") / f"{baseline}.pt"
            torch.save(run.model.state_dict(), made[baseline])
        return made[baseline]

    return checkpoint


@pytest.mark.parametrize(("name", "baseline"), CASES)
def test_conformance(name: str, baseline: str, checkpoints: Callable[[str], Path], tmp_path: Path) -> None:
    task = reference_of(name)[1]
    weights = checkpoints(baseline) if task == "adapt" else None
    recipe = baselines()[baseline].recipe("nano", "classic", task)
    ranks = build(name).recipe(recipe).world_size
    arguments = (name, baseline, weights, tmp_path, task)
    if ranks == 1:
        in_process(0, 1, 0, *arguments)
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(in_process, (ranks, port, *arguments), nprocs=ranks)


def in_process(
    rank: int, ranks: int, port: int, name: str, baseline: str, weights: Path, folder: Path, task: str
) -> None:
    mesh = None
    if ranks > 1:
        torch.set_num_threads(1)
        address = f"tcp://127.0.0.1:{port}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
        mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
    reference = reference_of(name)[0]
    alone = build(reference).recipe(baselines()[baseline].recipe("nano", "classic", task)).world_size == 1

    def new(stack: str) -> Run:
        return make(stack, baseline, weights, None if stack == reference and alone else mesh, task)

    check(new, name, folder)
    if mesh is not None:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", catalogue())
def test_card(name: str) -> None:
    card = catalogue()[name].card
    assert card.claim, "every technique brings at least one claim"
    assert set(card.baselines) <= set(baselines())
    assert card.reference == "baseline" or card.reference in catalogue()
