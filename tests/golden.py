"""Keeps a golden record of each entry, ``golden.txt`` beside its card: hashes of all weights after its set-up and after
steps 1, 2 and 8 at the smallest size, and after step 2 at the odd point (:mod:`tests.points`).

Where these are the reference's, they say nothing of what the entry does, and one more step is counted instead; of
several ranks, what they send is. An entry that refuses the odd point has its sentence there.

``python -m tests.golden [ID ...]`` tells which records differ from what the code does now, ``--renew`` writes them.
Hashes are of the portable arithmetic and one torch, which the record names; under another there is nothing to compare.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

from suite.record.numerics import PORTABLE, PORTABLE_ENVIRONMENT, compiled_apart, has, spelled

if __name__ == "__main__":  # before torch is loaded, as conftest.py does for tests
    os.environ.update(PORTABLE_ENVIRONMENT)
    os.environ.update(compiled_apart(spelled(os.environ)))
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}

import torch
import torch.distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from suite.device.ranks import joined
from suite.entries.catalogue import Entry, catalogue, reference_of
from suite.loop.run import Run
from suite.measure.exact import one_thread
from suite.meters.communication import Communication
from suite.record.job import StackError
from tests.only import problem
from tests.points import Point, ranks_of
from tests.real_ranks import Forked

FILE = "golden.txt"
STEPS = (0, 1, 2, 8)
ODD_STEPS = 2
AT_THE_ODD_POINT = {
    "gact": "gact:adaptive=false",  # sensitivities take three passes for each tensor of the nine blocks
    "bert2bert": "bert2bert:depth=3,width=3",  # three heads, nine blocks
    "compound_grow": "compound_grow:depth=3,ffn=3",
    "grasp": "grasp:sparsity=0.5",
    "snip": "snip:sparsity=0.3",
}
"""Stacks in the place of entries there, whose defaults ask for other numbers than the odd ones."""
COUNTED = ("flops", "peak_tensor_bytes", "saved_activation_bytes", "optimizer_state_bytes", "operators")
DIGITS = 16  # of a hash


def arithmetic() -> str:
    """Under which arithmetic this process's hashes repeat."""
    return f"{spelled(os.environ)} torch {torch.__version__}"


def incomparable(entry: Entry) -> str:
    """Why the entry's record cannot be compared here; empty where it can."""
    kept = (entry.folder / FILE).read_text("utf-8").partition("\n")[0]
    return "" if kept == arithmetic() else f"the golden record is of {kept}, and this process has {arithmetic()}"


def digest(run: Run) -> str:
    """Hash of the names, dtypes, shapes and bytes of all that the model holds, on all ranks."""
    total = hashlib.sha256()
    for name, value in sorted(run.model.state_dict().items()):
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        total.update(f"{name} {whole.dtype} {tuple(whole.shape)} ".encode())
        total.update(whole.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if run.mesh is None:
        return total.hexdigest()[:DIGITS]
    of_ranks: list[str | None] = [None] * run.world_size
    torch.distributed.all_gather_object(of_ranks, total.hexdigest(), group=run.group)
    return hashlib.sha256(" ".join(map(str, of_ranks)).encode()).hexdigest()[:DIGITS]


def lines(entry: Entry, mesh: DeviceMesh | None = None) -> Iterator[str]:
    """The record of an entry on the first of its card's baselines, line by line."""
    home, ranks = entry.card.baselines[0], mesh.size() if mesh else 1
    yield arithmetic()
    run = Point(home, STEPS[-1], ranks=ranks).run(entry.id, mesh)
    for step in sorted({min(step, run.recipe.steps) for step in STEPS}):
        run.train(step - run.step)
        yield f"{home} at pico, step {step}: {digest(run)}"
    odd, stack = Point(home, STEPS[-1], odd=True, ranks=ranks), AT_THE_ODD_POINT.get(entry.id, entry.id)
    yield from (f"{stack} on {home} at the odd point, {line}" for line in odd_lines(odd, stack, mesh))


def odd_lines(odd: Point, stack: str, mesh: DeviceMesh | None) -> Iterator[str]:
    """What a record says of the odd point."""
    try:
        run = odd.run(stack, mesh)
        with Communication() as traffic:
            run.train(ODD_STEPS)
    except (ValueError, StackError) as error:
        yield f"refused: {error}"
        return
    own = digest(run)
    yield f"step {ODD_STEPS}: {own}"
    if run.mesh is not None:
        yield f"sent by each rank: {traffic.ring_bytes(run.world_size)} B"
    elif own == reference_digest(odd, reference_of(stack)[0]):
        counts = run.count_step()
        yield from (f"{name} of step {ODD_STEPS + 1}: {getattr(counts, name)}" for name in COUNTED)


@cache
def reference_digest(odd: Point, reference: str) -> str:
    """Where the reference ends at the odd point."""
    run = odd.run(reference)
    run.train(ODD_STEPS)
    return digest(run)


def record(entry: Entry) -> str:
    """The text of an entry's record, of the code as it is."""
    ranks = ranks_of(entry.id)
    if ranks == 1:
        with one_thread():
            return "".join(f"{line}\n" for line in lines(entry))
    with tempfile.TemporaryDirectory() as folder:
        with Forked(ranks) as each:
            each.do(_rank, ranks, entry.id, folder)
        return Path(folder, FILE).read_text("utf-8")


def _rank(rank: int, ranks: int, name: str, folder: str) -> None:
    torch.set_num_threads(1)
    text = "".join(f"{line}\n" for line in lines(catalogue()[name], joined("cpu", rank, ranks, folder)))
    if rank == 0:
        Path(folder, FILE).write_text(text, "utf-8")
    torch.distributed.destroy_process_group()


def differences(entry: Entry, text: str) -> list[str]:
    """Each line of the entry's kept record that is not the one of ``text``."""
    path = entry.folder / FILE
    kept = path.read_text("utf-8").splitlines() if path.is_file() else []
    pairs = zip_longest(kept, text.splitlines(), fillvalue="nothing")
    return [f"{old} is now {new}" for old, new in pairs if old != new]


def main(arguments: list[str] | None = None) -> int:
    """Compares the records of the entries that are named, or of all, or renews them."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("ids", nargs="*", metavar="ID", help="entries; all unless some are named")
    parser.add_argument("--renew", action="store_true", help="write the records as the code is now")
    asked = parser.parse_args(arguments)
    for why in filter(None, map(problem, asked.ids)):
        parser.error(why)
    if not has(PORTABLE):
        parser.error("golden records are of the portable arithmetic, which needs a CPU with AVX2")
    differing = 0
    for entry in (catalogue()[name] for name in asked.ids or catalogue()):
        text = record(entry)
        found = differences(entry, text)
        differing += bool(found)
        print(f"{entry.id}: {'; '.join(found) or 'as it was'}", flush=True)
        if asked.renew and found:
            (entry.folder / FILE).write_text(text, "utf-8")
    return int(bool(differing) and not asked.renew)


if __name__ == "__main__":
    from tests import golden  # by which name ranks find it

    sys.exit(golden.main())
