"""Has the options that commands share, and the one place that turns them into a Setting and an Effort.

A group of options is a dataclass; a command takes it as one parameter, and :func:`with_options` shows its fields to
typer as options of the command.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from suite.cli.shared import understandable

if TYPE_CHECKING:
    from suite.measure.campaign import Effort
    from suite.record.job import Setting
    from suite.topics.publish.tracking import Tracker

RESULTS = Path("results")
THREADS = 1  # more would wait for each other whenever a neighbour takes a core


def technique_names(incomplete: str) -> list[str]:
    """Returns the techniques that ``incomplete``, the last part of a stack, may become."""
    from suite.entries.catalogue import catalogue

    stack, plus, begun = incomplete.rpartition("+")
    return [stack + plus + id for id in catalogue() if id.startswith(begun)]


def having(*files: str) -> Callable[[str], list[str]]:
    """Completes the techniques whose folder has one of these files."""

    def complete(incomplete: str) -> list[str]:
        from suite.entries.catalogue import catalogue

        entries = [entry for id, entry in catalogue().items() if id.startswith(incomplete)]
        return [entry.id for entry in entries if any((entry.folder / file).is_file() for file in files)]

    return complete


def baseline_names(incomplete: str) -> list[str]:
    return [point.name for point in entry_points(group="leantrain.baselines") if point.name.startswith(incomplete)]


def named(context: typer.Context, parameter: str) -> bool:
    """Tells whether the command line names this option or argument."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def refusing(check: Callable[[Any], object]) -> Callable[..., Any]:
    """Returns the callback that ends a command by the sentence of ``check`` before it loads what it is to run."""

    def callback(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
        if value and not context.resilient_parsing and named(context, parameter.name or ""):
            with understandable(context.meta.get("as_json", False)):
                for item in value if isinstance(value, list | tuple) else [value]:
                    check(item)
        return value

    return callback


def check_installed() -> None:
    """Raises ValueError where the project that this folder is in brings techniques and is not installed."""
    here = Path().resolve()
    for folder in (here, *here.parents):
        if (project := folder / "pyproject.toml").is_file():
            break
    else:
        return
    try:
        own = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]["leantrain.techniques"]
        missing = {*own.values()} - {point.value for point in entry_points(group="leantrain.techniques")}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # of something else
        return
    if missing:
        raise ValueError(f"the techniques of {folder} are not installed: pip install -e {folder}")


@contextmanager
def looking_up() -> Iterator[None]:
    """Says of a technique that nobody knows that its package is not installed, where that is why."""
    from suite.entries.catalogue import UnknownId

    try:
        yield
    except UnknownId:
        check_installed()
        raise


def check_stack(stack: str) -> None:
    from suite.entries.catalogue import catalogue, lookup
    from suite.record.job import Spelling

    with looking_up():
        for name in Spelling(stack).names:
            lookup("technique", name, catalogue())


def _check_baseline(name: str) -> None:
    from suite.entries.catalogue import lookup

    lookup("baseline", name, dict.fromkeys(baseline_names("")))


def one_of(kind: Literal["size", "recipe", "task"]) -> dict[str, Any]:
    """Completes to the words of that kind that :mod:`suite.record.job` has, and refuses all others."""

    def known() -> tuple[str, ...]:
        from suite.record import job

        return {"size": job.SIZES, "recipe": job.RECIPES, "task": job.TASKS}[kind]

    def check(value: str) -> None:
        from suite.entries.catalogue import lookup

        lookup(kind, value, dict.fromkeys(known()))

    def complete(incomplete: str) -> list[str]:
        return words(*known())(incomplete)

    return {"autocompletion": complete, "callback": refusing(check)}


OF_STACKS: dict[str, Any] = {"autocompletion": technique_names, "callback": refusing(check_stack)}
OF_BASELINES: dict[str, Any] = {"autocompletion": baseline_names, "callback": refusing(_check_baseline)}


def words(*known: str) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return complete


def stacks_option(help: str) -> Any:
    """Returns the option ``-t``, which takes stacks and says what for."""
    return typer.Option("-t", "--technique", help=help, **OF_STACKS)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Stack = Annotated[str, typer.Argument(help="The technique or stack, e.g. lion or lion+sam:rho=0.1.", **OF_STACKS)]
Techniques = Annotated[
    list[str] | None, stacks_option("A technique or a stack like lion+sam:rho=0.1; repeatable. [all]")
]
Baselines = Annotated[
    list[str] | None,
    typer.Option("-b", "--baseline", help="bert, gpt, vit or mae; repeatable. [all]", **OF_BASELINES),
]
OneBaseline = Annotated[
    list[str] | None,
    typer.Option("-b", "--baseline", help="bert, gpt, vit or mae. [gpt]", **OF_BASELINES),
]
OF_SIZES = one_of("size")
OF_RECIPES = one_of("recipe")
SizeOption = Annotated[
    str,
    typer.Option("--size", help="nano, micro, mini, base or large (pico: for tests).", **OF_SIZES),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        help="nano, micro, mini, base or large (pico: for tests); repeatable. [nano]",
        **OF_SIZES,
    ),
]
OneRecipe = Annotated[
    list[str] | None,
    typer.Option("--recipe", help="classic, modern or compiled. [modern]", **OF_RECIPES),
]
Recipes = Annotated[
    list[str] | None,
    typer.Option("--recipe", help="classic, modern or compiled; repeatable. [modern]", **OF_RECIPES),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="pretrain or adapt. [what the technique's card says]",
        **one_of("task"),
    ),
]


def _check_model(model: str) -> None:
    """Refuses a folder that holds no model, or is not there, and a name that is no model's."""
    path = Path(model).expanduser()
    is_folder = path.is_dir() or model.startswith(("/", "./", "../", "~"))
    if is_folder and not (path / "config.json").exists():
        raise ValueError(f"--model {model}: no config.json there; give a Hugging Face configuration folder")
    if not is_folder:
        _check_model_name(model)


def _check_model_name(model: str) -> None:
    """Refuses a name that stands nowhere in timm's models: read, not loaded, which takes seconds."""
    timm = importlib.util.find_spec("timm")
    if timm is None or not timm.submodule_search_locations:
        return
    folder = Path(timm.submodule_search_locations[0]) / "models"
    text = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.py")))
    architecture = model.removeprefix("timm/").partition(".")[0]
    if not re.search(rf"\b{re.escape(architecture)}\b", text):
        near = " or ".join(get_close_matches(architecture, re.findall(r"^def (\w+)\(pretrained", text, re.M)))
        hint = f"did you mean {near}?" if near else "timm.list_models() in Python lists them"
        raise ValueError(f"--model {model}: neither a folder nor a timm model; {hint}")


ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A Hugging Face configuration folder or a timm model name. [the baseline's]",
        callback=refusing(_check_model),
    ),
]


def _check_device(device: str) -> None:
    from suite.entries.setting import check_device

    if device != "cuda":  # whether it is here, torch knows, which takes seconds to load
        check_device(device)


def _check_there(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; measure something with: leantrain run --results {folder}")


OF_DEVICES: dict[str, Any] = {"autocompletion": words("cpu", "cuda"), "callback": refusing(_check_device)}
Device = Annotated[str, typer.Option("--device", help="cpu or cuda.", **OF_DEVICES)]
Threads = Annotated[int, typer.Option("--threads", min=1, help="CPU threads of a contender.")]
Results = Annotated[Path, typer.Option("--results", help="The folder that records are read from and written to.")]
KnownResults = Annotated[
    Path,
    typer.Option("--results", help="The folder that records are read from.", callback=refusing(_check_there)),
]


def minutes_option(help: str, least: float = 0.1) -> Any:
    """Returns the option ``--minutes``, of at least so many."""
    return typer.Option("--minutes", min=least, help=help)


def gpu_option(help: str) -> Any:
    """Returns the option ``--gpu``, which takes a GPU of the tables by any of its names."""
    return typer.Option("--gpu", help=help, autocompletion=_gpu_names, callback=refusing(_check_gpu))


def _gpu_names(incomplete: str) -> list[str]:
    from suite.topics.modelled_time.devices import devices

    return [name for name in devices() if name.lower().startswith(incomplete.lower())]


def _check_gpu(name: str) -> None:
    from suite.entries.catalogue import lookup
    from suite.topics.modelled_time.devices import by_any_name

    lookup("GPU", name, by_any_name())


def share_of(percentage: str) -> float:
    """Returns the share that a percentage such as ``10%`` is. Raises ValueError for what is none, and no slow-down."""
    number = percentage.strip().removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        raise ValueError(f"--slower {percentage}: a percentage is wanted, e.g. --slower 10%") from None
    if not percentage.strip().endswith("%"):
        raise ValueError(f"--slower {percentage}: of a step's time, so with its sign: --slower {percentage.strip()}%")
    if not 0 < share <= 1:
        raise ValueError(f"--slower {percentage}: a slow-down is more than 0% and at most 100%, e.g. --slower 10%")
    return share


Slower = Annotated[
    str | None,
    typer.Option(
        "--slower",
        help="The slow-down of a step that --speed must notice; implies it. [10%]",
        callback=refusing(share_of),
    ),
]
Limit = Annotated[float, typer.Option("--time-limit", min=1, help="Seconds that one contender may train in all.")]
Hang = Annotated[float, typer.Option("--hang-limit", min=0.1, help="Seconds of silence that end a contender as hung.")]


class Options:
    """Describes a group of options. A command that takes one has its fields as options."""


@dataclass(frozen=True)
class TargetOptions(Options):
    """Says what one comparison, study or count is made on."""

    baselines: OneBaseline = None
    size: SizeOption = "nano"
    recipes: OneRecipe = None

    @property
    def baseline(self) -> str | None:
        """Returns the baseline, where one was named. Raises ValueError for several."""
        return _one("-b", self.baselines)

    @property
    def recipe(self) -> str:
        return _one("--recipe", self.recipes) or "modern"


@dataclass(frozen=True)
class TrainingOptions(Options):
    """Says what a training run has besides its baseline, size and recipe."""

    task: TaskOption = None
    steps: Annotated[
        int | None, typer.Option("--steps", min=2, help="Training steps of the reference. [the baseline's]")
    ] = None
    data: Annotated[
        str | None,
        typer.Option("--data", help="A Hugging Face data set id, or a local file or folder. [embedded data]"),
    ] = None
    model: ModelOption = None


@dataclass(frozen=True)
class MachineOptions(Options):
    """Says what it runs on."""

    device: Device = "cpu"
    threads: Threads = THREADS


@dataclass(frozen=True)
class LearningOptions(Options):
    """Says how much is learned, in which time, and where it is kept."""

    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Runs that each side learns, each with its own seed.")
    ] = 3
    minutes: Annotated[float, minutes_option("Begin nothing new after this time.")] = 10.0
    results: Results = RESULTS


@dataclass(frozen=True)
class EvidenceOptions(Options):
    """Says what else is measured, and how."""

    timings: Annotated[
        int, typer.Option("--timings", min=1, help="Sets of fresh processes that are timed in lock-step.")
    ] = 3
    ruler: Annotated[
        int,
        typer.Option(
            "--ruler",
            min=0,
            help="Learn the reference's scaling curve with so many seeds. It gives the time to the same quality. "
            "[0: use the curve that the results have]",
        ),
    ] = 0
    learn: Annotated[
        bool, typer.Option("--learn", help="Learn curves here even where another machine's are known.")
    ] = False
    tune: Annotated[
        bool,
        typer.Option("--tune/--no-tune", help="Choose learning rates on validation data where a card asks for that."),
    ] = True
    time: Annotated[bool, typer.Option("--time/--no-time", help="Time the steps; without, count and learn only.")] = (
        True
    )
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, help="Cores that counting and learning fill. [all]")
    ] = None
    rounds: Annotated[int | None, typer.Option("--rounds", min=2, help="Paired rounds of a timing. [12]")] = None
    time_limit: Limit = 3600.0
    hang_limit: Hang = 600.0
    sequential: Annotated[
        bool, typer.Option("--sequential", help="Time one side at a time: fits more in memory, pairs less.")
    ] = False

    def effort(self, learning: LearningOptions) -> Effort:
        from suite.measure.campaign import Effort
        from suite.measure.contenders.contender import Limits
        from suite.measure.missing import Wanted
        from suite.measure.timing import ROUNDS

        timings = self.timings if self.time else 0
        return Effort(
            Wanted(learning.seeds, timings, self.ruler, self.learn, self.tune),
            learning.minutes,
            Limits(self.time_limit, self.hang_limit),
            self.rounds or ROUNDS,
            self.sequential,
            self.cores,
        )


@dataclass(frozen=True)
class SinkOptions(Options):
    """Says where else evidence goes when it is stored."""

    wandb: Annotated[
        bool,
        typer.Option(
            "--wandb", help="Also send to Weights & Biases: as WANDB_MODE says; without a login to local files."
        ),
    ] = False
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Also send to MLflow: MLFLOW_TRACKING_URI, or mlflow.db in this folder.")
    ] = False
    trackio: Annotated[
        bool, typer.Option("--trackio", help="Also send to trackio: local files, unless its settings name a server.")
    ] = False

    @property
    def trackers(self) -> list[type[Tracker]]:
        """Returns what sends to each sink that is named, not made yet."""
        known: list[type[Tracker]] = []
        if self.wandb:
            from suite.topics.publish.wandb_tracker import WandbTracker

            known.append(WandbTracker)
        if self.mlflow:
            from suite.topics.publish.mlflow_tracker import MlflowTracker

            known.append(MlflowTracker)
        if self.trackio:
            from suite.topics.publish.trackio_tracker import TrackioTracker

            known.append(TrackioTracker)
        return known


PLAIN, HERE = TrainingOptions(), MachineOptions()


def setting_of(target: TargetOptions, training: TrainingOptions = PLAIN, machine: MachineOptions = HERE) -> Setting:
    """Returns the setting that the options describe, of gpt where they name no baseline.

    Raises UnknownId with the nearest names, ValueError where one is wanted and several are named, and Unavailable for
    a device that is not here.
    """
    from suite.entries import setting

    own = vars(training) | vars(machine)
    return setting.setting_of(baseline=target.baseline or "gpt", size=target.size, recipe=target.recipe, **own)


def check_reached(training: TrainingOptions) -> None:
    """Raises FileNotFoundError for data that is nowhere, before what measures is loaded, which takes seconds."""
    if training.data is not None:
        from suite.entries import locations

        locations.check_reached(training.data)


def device_named(device: str, gpu: str | None = None) -> str:
    """Returns the device whose operators are meant, whether it is here or not.

    Raises UnknownId with the nearest name for one that is none, ValueError where a GPU is to run another's.
    """
    from suite.entries.setting import check_device
    from suite.loop.technique import Unavailable

    with suppress(Unavailable):
        check_device(device)
    if gpu and device != "cuda":
        raise ValueError(f"{gpu} runs the operators of a GPU: leave out --device {device}")
    return device


def _one(option: str, values: list[str] | None) -> str | None:
    if values and len(values) > 1:
        raise ValueError(f"{option} is given {len(values)} times, and this command takes one: {' or '.join(values)}")
    return values[0] if values else None


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Returns ``command``, with the fields of every group of options among its parameters as options of its own."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Options)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if group := groups.get(parameter.name):
            own = get_type_hints(group, include_extras=True)
            for field in fields(group):
                parameters.append(
                    inspect.Parameter(
                        field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=own[field.name]
                    )
                )
        else:
            kind, annotation = inspect.Parameter.KEYWORD_ONLY, hints[parameter.name]
            parameters.append(parameter.replace(kind=kind, annotation=annotation))

    @wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat
