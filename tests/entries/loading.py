"""Run as a script: a short training run of every technique that is named, each in a fork of its own, and which of the
project's functions it has called. Prints JSON: technique -> {"baseline", "task", "called"}, the last as [module, line].

A fork begins with the libraries loaded and nothing of the project; the baselines that it trains are the only ones
installed.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PROJECT = ("suite", "baselines", "techniques")
STEPS = 4
WITHOUT_AUTOCAST = {"pipemare"}


Called = list[tuple[str, int]]
TREE = Path(__file__).parents[2]


@contextmanager
def watching() -> Iterator[set[CodeType]]:
    """The code of all functions that are called meanwhile, in every thread, but for what loading a module calls."""
    codes: set[CodeType] = set()

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        caller = frame.f_back
        if event == "call" and (caller is None or caller.f_code.co_flags & inspect.CO_OPTIMIZED):
            codes.add(frame.f_code)  # not called by the body of a module or a class

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield codes
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # what it is at first


def of_project(codes: set[CodeType]) -> Called:
    """The project's functions among them; bodies of modules and classes are none."""
    called = set()
    for code in codes:
        path = Path(code.co_filename)
        if code.co_flags & inspect.CO_OPTIMIZED and path.is_relative_to(TREE):
            module = ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
            if module.split(".")[0] in PROJECT:
                called.add((module, code.co_firstlineno))
    return sorted(called)


def project_modules() -> list[str]:
    return sorted(name for name in sys.modules if name.split(".")[0] in PROJECT)


def forget_project() -> None:
    for name in project_modules():
        del sys.modules[name]


def train(name: str, baseline: str, trained: set[str], rank: int, ranks: int, rendezvous: str) -> Called:
    """Makes a run as a contender makes it, and counts a step; returns what that called."""
    import torch

    torch.set_num_threads(1)  # a fork makes its own pool at the first call, which must not be two threads' at once
    from suite.entries import installed as contract
    from suite.entries.jobs import run_of
    from suite.record.job import Job, Setting

    installed = entry_points(group=contract.GROUP)
    contract.entry_points = lambda group: [each for each in installed if each.name in trained]  # type: ignore[assignment]  # a stand-in
    recipe = "classic" if name in WITHOUT_AUTOCAST else "modern"
    setting = Setting(baseline=baseline, size="pico", recipe=recipe, task=task_of(name), steps=STEPS)
    mesh = weights = None
    if ranks > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
        mesh = torch.distributed.init_device_mesh("cpu", (ranks,))
    if setting.task == "adapt":
        from suite.entries.pretrained import checkpoint

        weights = checkpoint(setting)
    with watching() as codes:
        run = run_of(Job(setting=setting, stack=name), weights=weights, mesh=mesh)
        run.train(run.recipe.steps)
        run.evaluate("validation")
        run.technique.probes(run)
        run.count_step()
    return of_project(codes)


def task_of(name: str) -> Any:
    from suite.entries.catalogue import catalogue

    return catalogue()[name].card.task


def ranks_of(name: str, baseline: str) -> int:
    from suite.entries.installed import baselines
    from suite.entries.spelling import build
    from suite.record.job import Setting

    setting = Setting(baseline=baseline, size="pico", task=task_of(name))
    return build(name).recipe(baselines()[baseline].recipe_of(setting)).world_size


def forked(name: str, baseline: str, trained: set[str], ranks: int) -> Called:
    """What rank 0 has called."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if not child:
                try:
                    Path(folder, str(rank)).write_text(
                        json.dumps(train(name, baseline, trained, rank, ranks, f"{folder}/store"))
                    )
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            raise RuntimeError(f"{name} on {baseline} failed")
        called: Called = json.loads(Path(folder, "0").read_text())
        return called


def main() -> None:
    import torch

    torch.set_num_threads(1)
    from suite.entries.catalogue import catalogue
    from suite.entries.installed import baselines
    from suite.entries.sources import trained_besides

    known = sorted(baselines())  # loads their libraries
    jobs = []
    for number, entry in enumerate(catalogue().values()):
        if entry.id not in sys.argv[1:]:
            continue
        assert entry.technique  # loads its libraries
        baseline = entry.card.baselines[number % len(entry.card.baselines)]
        assert baseline in known
        trained = {baseline, *trained_besides(entry.id)}
        jobs.append((entry.id, baseline, trained, entry.card.task, ranks_of(entry.id, baseline)))
    forget_project()
    import_module("suite.loop.run")  # every fork has it
    gc.freeze()  # a collection before each count would copy all libraries' pages into the fork
    runs = {}
    for name, baseline, trained, task, ranks in jobs:
        runs[name] = {"baseline": baseline, "task": task, "called": forked(name, baseline, trained, ranks)}
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
