"""The checkpoint that an ``adapt`` run starts from: the baseline, trained by this harness on its source data.

Made once for a machine and kept in the cache under the hash of all that decides it.
"""

import hashlib
import json
import os
from pathlib import Path

import torch
from filelock import FileLock

from suite.contract.baseline import Baseline, RecipeName, Size
from suite.contract.run import Run, replacing
from suite.contract.stack import Stack

SEED = 20_230_202  # every adapt run of a baseline starts from the same checkpoint


def cache_folder() -> Path:
    """``$LEANTRAIN_CACHE``, else ``$XDG_CACHE_HOME/leantrain``, else ``~/.cache/leantrain``."""
    chosen = os.environ.get("LEANTRAIN_CACHE")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "leantrain").expanduser()


def checkpoint(
    baseline: Baseline,
    size: Size,
    recipe: RecipeName,
    *,
    data: str | None = None,
    model: str | None = None,
    device: str = "cpu",
) -> Path:
    """The checkpoint's path; trains it first where it is not cached. Safe under several processes at once."""
    recipe = "modern" if recipe == "compiled" else recipe  # the weights do not depend on how the graph was compiled
    source = baseline.data(size, "source", data)  # the embedded data, with a head that fits what comes after
    what = {
        "baseline": baseline.id,
        "version": baseline.version,
        "size": size,
        "model": model,
        "data": source.sha256,
        "for": data,
        "recipe": baseline.recipe(size, recipe, "pretrain").as_dict(),
        "device": device,
        "torch": torch.__version__,
    }
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_folder() / "checkpoints" / f"{baseline.id}-{size}-{key}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            run = Run(
                baseline, Stack({}), size=size, recipe=recipe, seed=SEED, split="source", data=data, model=model,
                device=device,
            )  # fmt: skip
            run.train(run.recipe.steps)
            with replacing(path) as partial:
                torch.save({name: tensor.cpu() for name, tensor in run.model.state_dict().items()}, partial)
    return path
