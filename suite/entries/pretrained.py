"""Makes the checkpoint that an ``adapt`` run starts from: the baseline, trained by this harness on its source data, or
a user's own (:mod:`suite.entries.checkpoints`).

Made once for a machine and kept in the cache under the hash of all that decides it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from suite.entries import checkpoints
from suite.entries.adapting import baseline_for
from suite.entries.installed import baseline_of
from suite.entries.jobs import run_of
from suite.entries.sources import code_of
from suite.loop.baseline import Baseline
from suite.loop.data import mixed_seed
from suite.record.files import cache_folder, replacing
from suite.record.job import BASELINE, Job, Setting
from suite.record.numerics import spelled

SEED = 20_230_202  # every adapt run of a baseline starts from the same checkpoint


def checkpoint(setting: Setting) -> Path:
    """Returns the checkpoint that runs of ``setting`` start from; trains it first where it is not cached.

    Safe under several processes at once. Raises ValueError for a user's own that is not whole or does not fit.
    """
    baseline = baseline_for(setting)
    if setting.model is not None and checkpoints.weight_files(setting.model):
        return _of_a_user(setting, baseline, setting.model)
    eager = "modern" if setting.recipe == "compiled" else setting.recipe  # how the graph is compiled makes no weights
    wanted = setting.but(recipe=eager, task="pretrain", steps=None, rate=1.0, threads=1)
    source = baseline.data(wanted.size, "source", wanted.data)  # the embedded data, with a head that fits what follows
    content = {
        "baseline": baseline.id,
        "version": baseline.version,
        "size": wanted.size,
        "model": wanted.model,
        "data": source.sha256,
        "for": wanted.data,
        "recipe": baseline.recipe_of(wanted).as_dict(),
        "device": wanted.device,
        "torch": torch.__version__,
        "numerics": spelled(os.environ),
        "code": code_of(wanted if baseline is baseline_of(wanted) else setting, BASELINE).trajectory,
    }

    def trained() -> dict[str, Tensor]:
        run = run_of(Job(setting=wanted, seed=SEED), baseline=baseline, split="source")
        run.train(run.recipe.steps)
        return run.model.state_dict()

    return _kept(baseline, wanted, content, trained)


def _of_a_user(setting: Setting, baseline: Baseline, folder: str) -> Path:
    configuration = (Path(folder).expanduser() / "config.json").read_bytes()
    content = {
        "weights": checkpoints.content_of(folder),
        "configuration": hashlib.sha256(configuration).hexdigest(),
        "baseline": baseline.id,
        "version": baseline.version,
        "size": setting.size,
        "for": setting.data,
        "code": code_of(setting, BASELINE).trajectory,
    }

    def read() -> dict[str, Tensor]:
        torch.manual_seed(mixed_seed(SEED, 0))
        data = baseline.data(setting.size, "adapt", setting.data)
        return checkpoints.weights(folder, baseline.model(setting.size, data, folder))

    return _kept(baseline, setting, content, read)


def _kept(
    baseline: Baseline, setting: Setting, content: Mapping[str, Any], make: Callable[[], Mapping[str, Tensor]]
) -> Path:
    """Returns the file of what ``content`` decides; ``make`` gives the weights where it is not there yet."""
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_folder() / "checkpoints" / f"{baseline.id}-{setting.size}-{key}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            weights = make()
            with replacing(path) as partial:
                torch.save({name: tensor.cpu() for name, tensor in weights.items()}, partial)
    return path
