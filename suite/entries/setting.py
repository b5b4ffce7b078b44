"""Makes a setting from names and refuses, before a run is spent, what does not exist or cannot run here.

The command line and the library (:mod:`leantrain`) get their settings here, so both refuse the same in the same words.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from suite.entries.adapting import baseline_for
from suite.entries.catalogue import UnknownId, lookup
from suite.entries.installed import baselines
from suite.entries.locations import Outside, check_configuration, check_data, check_reached
from suite.loop.technique import Unavailable
from suite.record.job import RECIPES, SIZES, TASKS, Setting, Size, Task
from suite.record.numerics import check_environment

DEVICES = ("cpu", "cuda")

Name = TypeVar("Name", bound=str)


def chosen(kind: str, value: str, among: tuple[Name, ...]) -> Name:
    """Returns ``value`` if it is one of ``among``. Raises UnknownId with the nearest names."""
    return lookup(kind, value, {name: name for name in among})


def task_named(name: str | None) -> Task | None:
    """Returns the task, where one is named, in place of what a technique's card says. Raises UnknownId."""
    return chosen("task", name, TASKS) if name else None


def setting_of(
    *,
    baseline: str,
    size: str = "nano",
    recipe: str = "modern",
    task: str | None = None,
    steps: int | None = None,
    rate: float = 1.0,
    data: str | None = None,
    model: str | None = None,
    device: str = "cpu",
    threads: int = 1,
) -> Setting:
    """Returns the setting of these names; ``task`` None leaves the default, for a card to decide.

    Raises UnknownId with the nearest names, ValueError for a number that is no number of steps, rate or threads and for
    data or a model that would read or run what the user did not name, and Unavailable for a device that this machine
    does not have.
    """
    check_device(device)
    check_environment()
    if data is not None:  # before torch is loaded to look up a baseline
        check_reached(data)
    lookup("baseline", baseline, baselines())
    if steps is not None and steps < 2:
        raise ValueError(f"steps must be at least 2, not {steps}")
    if not 0 < rate < math.inf:
        raise ValueError(f"rate multiplies the learning rate and must be positive, not {rate}")
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    setting = Setting(
        baseline=baseline,
        size=chosen("size", size, SIZES),
        recipe=chosen("recipe", recipe, RECIPES),
        task=chosen("task", task or "pretrain", TASKS),
        steps=steps,
        rate=rate,
        data=data,
        model=model,
        device=device,
        threads=threads,
    )
    check_locations(setting)
    check_size(setting)
    return setting


def check_size(setting: Setting) -> None:
    """Raises ValueError where the baseline has no recipe of the size, with the sizes that it has."""
    baseline = baselines()[setting.baseline]

    def has(size: Size) -> bool:
        try:
            baseline.recipe(size, setting.recipe, setting.task)
        except KeyError:
            return False
        return True

    if not has(setting.size):
        sizes = ", ".join(size for size in SIZES if has(size))
        raise ValueError(f"baseline {setting.baseline} has no size {setting.size}; it has: {sizes}")


def check_device(device: str) -> None:
    """Raises UnknownId for a name that is no device, Unavailable with the reason for one that is not here."""
    if device == "gpu":
        raise UnknownId("no device is called 'gpu'; did you mean cuda?")
    if chosen("device", device, DEVICES) == "cpu":
        return
    import torch  # the CPU is there without it, and it takes seconds to load

    if not torch.cuda.is_available():
        why = "torch was built without CUDA" if not torch.backends.cuda.is_built() else "torch sees no CUDA GPU"
        raise Unavailable(f"device cuda: {why} on this machine; leave the device out to run on the CPU")


def check_locations(setting: Setting) -> None:
    """Raises :class:`~suite.entries.locations.Outside` for data that reads files elsewhere, for a model that runs code
    from elsewhere."""
    if setting.data is not None:
        check_data(setting.data, baselines()[setting.baseline].modality == "image")
    if setting.model is not None:
        path = Path(setting.model).expanduser() / "config.json"
        if path.exists() and not path.is_file():  # a pipe or a device keeps whoever reads it for ever
            raise Outside(f"--model {setting.model}: its config.json is no regular file; write one there")
        check_configuration(setting.model)


def check_model(setting: Setting) -> None:
    """Raises what the baseline says of a ``model`` that cannot take its own model's place: ValueError or OSError; and
    ValueError for the weights beside it where it is to adapt them, and they are not whole or not its own."""
    check_locations(setting)
    if not setting.model:
        return
    import torch

    from suite.entries import checkpoints
    from suite.model.anatomy import anatomy

    baseline = baseline_for(setting)
    data = baseline.shapes(setting.size, setting.task, setting.data)
    with suppress(RuntimeError), torch.device("meta"):  # of a model that needs values to be built a run will tell
        model = baseline.model(setting.size, data, setting.model)
        anatomy(model)
        if setting.task == "adapt":
            checkpoints.check(setting.model, model)
