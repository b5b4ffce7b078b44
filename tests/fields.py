"""Tells of every hyper-parameter of every entry what changes at pico when it alone has another legal value: the state
after eight steps, what the model says then, or what one more step costs.

``python -m tests.fields [ID ...]`` looks, and ``--keep`` puts what it sees into ``fields.json``. A field that changes
nothing there must stand in its card's table ``acts``, with where it acts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from suite.record.numerics import PORTABLE_ENVIRONMENT

if __name__ == "__main__":  # before torch is loaded
    os.environ.update(PORTABLE_ENVIRONMENT)
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}

import torch
import torch.distributed
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from suite.device.ranks import joined, wait_at_most
from suite.entries.catalogue import Entry, catalogue
from suite.loop.run import Diverged, Run
from suite.loop.sites import NotAttached
from suite.loop.technique import Unavailable
from suite.measure.exact import one_thread
from suite.record.job import StackError, join
from tests.only import problem
from tests.points import Point, ranks_of
from tests.real_ranks import Forked

TABLE = Path(__file__).with_name("fields.json")
STEPS = 8
REFUSED = (ValueError, StackError, Unavailable, NotAttached, Diverged)
NUMBERS = (1, 2, 3, 0.5, 0.1, 0, 4, 8)
"""What is tried where neither twice nor half of a default is legal, or changes anything."""
COUNTS = ("flops", "peak_tensor_bytes", "saved_activation_bytes", "optimizer_state_bytes", "operators", "host_bytes")
NOTHING, NO_VALUE = "nothing", "no other value"


def settable(entry: Entry) -> dict[str, Any]:
    """The hyper-parameters of an entry, with their defaults, but for how many processes it asks for."""
    return {each.name: each.default for each in fields(entry.technique) if each.init and each.name != "ranks"}


def others(hint: Any, default: Any) -> list[Any]:
    """Values of a type other than the default, the nearest first; some may be refused."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    found: list[Any] = []
    for option in options:
        if get_origin(option) is Literal:
            found += get_args(option)
        elif option is bool:
            found += [True, False]
        elif option in (int, float):
            near = [default * 2, default / 2, (1 + default) / 2] if isinstance(default, int | float) else []
            found += [option(each) for each in (*near, *NUMBERS)]
        elif get_origin(option) is tuple and default:
            found += [
                tuple(each / 2 if isinstance(each, float) else each for each in default),
                default[:1],
                default[1:],
            ]
        elif option is NoneType:
            found.append(None)
    distinct = {str(each): each for each in found if each != default and each != ()}
    return list(distinct.values())


def spelled(value: Any) -> str:
    """A value as a stack has it."""
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    return str(value).lower() if isinstance(value, bool | NoneType) else str(value)


def hashed(value: Any) -> str:
    """Hash of a nest of tensors, numbers and texts."""
    total = hashlib.sha256()

    def add(each: Any) -> None:
        if isinstance(each, Tensor):
            whole = (each.full_tensor() if isinstance(each, DTensor) else each).detach().cpu().contiguous()
            total.update(f"{whole.dtype} {tuple(whole.shape)}".encode())
            total.update(whole.view(-1).view(torch.uint8).numpy().tobytes() if whole.numel() else b"")
        elif isinstance(each, Mapping):
            for key in each:
                total.update(repr(key).encode())
                add(each[key])
        elif isinstance(each, list | tuple):
            total.update(f"{len(each)}".encode())
            for part in each:
                add(part)
        else:
            total.update(repr(each).encode())

    add(value)
    return total.hexdigest()


class Seen(dict[str, str]):
    """What a run shows, each looked at when it is asked for."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        run.train(min(STEPS, run.recipe.steps) - run.step)

    def __missing__(self, what: str) -> str:
        run = self.run
        if what == "state":
            value: Any = (run.recipe, run.model.state_dict(), run.optimizer.state_dict(), run.technique.state())
        elif what == "answers":
            value = run.evaluate()
        else:
            counted = run.count_step()
            value = [getattr(counted, name) for name in (*COUNTS, "communication_bytes")]
        own = hashed(value)
        if run.mesh is not None:
            of_ranks = [own] * run.world_size
            torch.distributed.all_gather_object(of_ranks, own, group=run.group)
            own = " ".join(of_ranks)
        self[what] = own
        return own


def survey(entry: Entry, mesh: DeviceMesh | None = None) -> Iterator[tuple[str, str]]:
    """Each field, and what changes with which value of it."""
    home = Point(entry.card.baselines[0], STEPS, ranks=mesh.size() if mesh else 1)
    plain = Seen(home.run(entry.id, mesh))
    hints = get_type_hints(entry.technique)
    for name, default in settable(entry).items():
        found = NO_VALUE
        for value in others(hints[name], default):
            stack = join([(entry.id, {name: spelled(value)})])
            if ranks_of_or_none(stack) != home.ranks:
                continue
            try:
                own = Seen(home.run(stack, mesh))
                changed = next((what for what in ("state", "answers", "counts") if own[what] != plain[what]), NOTHING)
            except REFUSED:
                continue
            found = f"{changed}, {name}={spelled(value)}"
            if changed != NOTHING:
                break
        yield name, found


def ranks_of_or_none(stack: str) -> int | None:
    try:
        return ranks_of(stack)
    except REFUSED:
        return None


def seen(entry: Entry) -> dict[str, str]:
    """The survey of an entry, in ranks where it has several."""
    ranks = ranks_of(entry.id)
    if ranks == 1:
        with one_thread():
            return dict(survey(entry))
    with tempfile.TemporaryDirectory() as folder:
        with Forked(ranks) as each:
            each.do(_rank, ranks, entry.id, folder)
        return dict(json.loads(Path(folder, "seen.json").read_text("utf-8")))


def _rank(rank: int, ranks: int, name: str, folder: str) -> None:
    torch.set_num_threads(1)
    mesh = joined("cpu", rank, ranks, folder)
    wait_at_most(mesh, 120)
    found = dict(survey(catalogue()[name], mesh))
    if rank == 0:
        Path(folder, "seen.json").write_text(json.dumps(found), "utf-8")
    torch.distributed.destroy_process_group()


def kept() -> dict[str, dict[str, str]]:
    """The committed table: entry, field, what changes with it."""
    return dict(json.loads(TABLE.read_text("utf-8"))) if TABLE.is_file() else {}


def main() -> int:
    """Looks at the entries that are named, or at all."""
    parser = argparse.ArgumentParser(prog="python -m tests.fields", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("ids", nargs="*", metavar="ID", help="entries; all unless some are named")
    parser.add_argument("--keep", action="store_true", help="put what is seen into fields.json")
    asked = parser.parse_args()
    for why in filter(None, map(problem, asked.ids)):
        parser.error(why)
    for entry in (catalogue()[name] for name in asked.ids or catalogue()):
        found = seen(entry)
        for name, what in found.items():
            print(f"{entry.id}.{name}: {what}", flush=True)
        if asked.keep:
            table = dict(sorted((kept() | {entry.id: found}).items()))
            TABLE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    from tests import fields as module  # by which name ranks find it

    sys.exit(module.main())
