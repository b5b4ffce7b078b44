"""The checkpoint that an ``adapt`` run starts from: the baseline, trained by this harness on its source data.

Made once for a machine and kept in the cache under the hash of all that decides it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from filelock import FileLock

from suite.contract.baseline import baseline_of
from suite.contract.run import Run
from suite.contract.sources import code_of
from suite.record.files import cache_folder, replacing
from suite.record.job import BASELINE, Job, Setting

SEED = 20_230_202  # every adapt run of a baseline starts from the same checkpoint


def checkpoint(setting: Setting) -> Path:
    """The checkpoint that runs of ``setting`` start from; trains it first where it is not cached.

    Safe under several processes at once.
    """
    eager = "modern" if setting.recipe == "compiled" else setting.recipe  # how the graph is compiled makes no weights
    wanted = setting.but(recipe=eager, task="pretrain", steps=None, rate=1.0, threads=1)
    baseline = baseline_of(wanted)
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
        "code": code_of(wanted, BASELINE).trajectory,
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_folder() / "checkpoints" / f"{baseline.id}-{wanted.size}-{key}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            run = Run(Job(setting=wanted, seed=SEED), split="source")
            run.train(run.recipe.steps)
            with replacing(path) as partial:
                torch.save({name: tensor.cpu() for name, tensor in run.model.state_dict().items()}, partial)
    return path
