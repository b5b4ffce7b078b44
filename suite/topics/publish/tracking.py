"""Shows evidence where people follow runs: sent after it is stored, and while nothing is timed.

There is one run for each run of ours: of a count and of a curve the one that it is, of a timing one a contender. Its
group is the board that it belongs to, its job type the kind of evidence and the stack. Curves are its history,
everything else its summary, and the line as stored goes with the first run. What is unknown is not sent, its reason is.
A renewal measures nothing, and is not sent. Nothing here prompts, and nothing that fails here costs a record.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any, ClassVar

from suite.judge.known import Known, counters_of, timed_pair
from suite.judge.metrics import METRICS, values
from suite.record.job import Spelling
from suite.record.schema import Counted, Learned, Line, Renewal, Side, Timed, Witness
from suite.record.seal import sealed

PROJECT = "leantrain"
PATIENCE_S = 30.0  # for a server that does not answer
TAG_LENGTH = 64


class Tracker(ABC):
    """Sends evidence to one program that follows runs.

    ``sent`` counts the runs that arrived; ``gone``: no more is sent. A subclass raises ValueError,
    with what to do, when it is made where its library is missing or its server does not answer: before anything is
    measured.
    """

    name: ClassVar[str]

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        self._warn = warn
        self.sent, self.gone = 0, False

    def __call__(self, line: Line) -> None:
        """Sends one piece of evidence. What goes wrong is a warning."""
        if self.gone or isinstance(line, Witness | Renewal):
            return
        try:
            self.send(line)
            self.sent += len(sides_of(line))
        except Exception as error:  # whatever a server, a proxy or a full disk does: the line is stored already
            self._warn(f"{self.name}: {type(error).__name__}: {error}; the record itself is kept")
            self.failed(line)
        finally:
            self.rest()

    @abstractmethod
    def send(self, line: Piece) -> None:
        """Sends the runs of one piece of evidence."""

    def failed(self, line: Piece) -> None:  # noqa: B027  most have nothing more to do
        """Does what is to be done after a piece could not be sent."""

    def rest(self) -> None:  # noqa: B027  as that
        """Ends what would be alive while the next contenders are timed."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Says where what was sent is, behind the number of runs."""

    @property
    def where(self) -> str:
        """Says what was sent and where it is, in words."""
        if not self.sent:
            return f"{self.name}: nothing was sent; only what is newly measured is"
        return f"{self.name}: {self.sent} runs {self.place}"


# what is sent -------------------------------------------------------------------------------------------------------

Piece = Counted | Learned | Timed
Run = Counted | Learned | Side


def as_stored(line: Piece) -> str:
    """Returns the record as it stands in its file, with its checksum."""
    return sealed(line.model_dump_json().encode()).decode()


def failed(side: Run) -> bool:
    """Whether the run went wrong; what cannot run here did not."""
    return side.status not in ("ok", "unavailable")


def sides_of(line: Piece) -> list[Run]:
    """Returns the runs that the evidence is of, the reference first where it has one."""
    return [*line.contenders] if isinstance(line, Timed) else [line]


def group(line: Piece) -> str:
    """Names a group that is the same for all evidence under equal conditions on one machine, and for no other."""
    at = line.conditions
    return f"{at.baseline} {at.size} {at.recipe} {at.task} on {line.home.name} [{at.key[:6]}]"


def name(line: Piece, side: Run) -> str:
    """Writes a run's name, such as ``lion learned, seed 0``."""
    which = {"learned": f", seed {getattr(line, 'seed', '')}", "timed": f", set {getattr(line, 'replicate', '')}"}
    return f"{side.stack} {line.kind}{which.get(line.kind, '')}"


def tags(line: Piece, side: Run) -> list[str]:
    at = line.conditions
    named = [at.baseline, at.size, at.recipe, at.task, at.device, line.kind, side.status]
    named += Spelling(side.stack).members or [side.stack]
    named += [line.pairing] if isinstance(line, Timed) else []
    return [tag[:TAG_LENGTH] for tag in dict.fromkeys(named)]


def config(line: Piece, side: Run) -> dict[str, Any]:
    """Returns conditions, recipe and provenance, flat."""
    known: dict[str, Any] = {
        **line.conditions.model_dump(),
        **{f"recipe_{name}": value for name, value in side.recipe.items()},
        "stack": side.stack,
        "evidence": line.kind,
        "record": line.id,
        "started": line.started,
        "machine": line.machine.name,
        "machine_key": line.machine.key,
        "source": line.source,
        "trajectory_code": side.code.trajectory,
        "counts_code": side.code.counts,
        "leantrain": line.leantrain,
    }
    if isinstance(line, Learned):
        known["seed"] = line.seed
    if isinstance(line, Timed):
        known |= {"reference": line.reference.stack, "replicate": line.replicate, "pairing": line.pairing}
    return known


def history(side: Run) -> list[dict[str, float]]:
    """Returns what is known over the steps of the run: training loss and validation scores, or pace; of a count its
    points."""
    points: dict[int, dict[str, float]] = defaultdict(dict)
    steps = side.steps or 0
    if isinstance(side, Counted):
        for counted in side.points:
            counts = counted.counters.model_dump(include={"flops", "peak_tensor_bytes"})
            points[round(counted.progress * steps)] |= {f"counted/{what}": count for what, count in counts.items()}
    elif isinstance(side, Learned):
        for part, loss in enumerate(side.train_loss, 1):
            points[round(part / len(side.train_loss) * steps)]["train/loss"] = loss
        for evaluation in side.curve:
            scores = {"loss": evaluation.loss, **evaluation.metrics}
            points[evaluation.step] |= {f"validation/{what}": value for what, value in scores.items()}
    else:
        for window in side.windows:
            for number, block_s in enumerate(window.block_s):
                at = round(window.progress * steps) + 2 * window.block_steps * (number + 1)
                points[at]["time/step_s"] = sum(block_s) / (2 * window.block_steps)
    return [{"step": step, **points[step]} for step in sorted(points)]


def summary(line: Piece, index: int) -> dict[str, Any]:
    """Returns what is known of the whole run: its own quantities, and of a timing its ratios to the reference."""
    side = sides_of(line)[index]
    known: dict[str, Any] = {"status": side.status, "steps": side.steps, "duration_s": line.duration_s}
    if side.reason:
        known["reason"] = side.reason
    if isinstance(side, Counted):
        known |= {f"probe/{what}": value for what, value in side.probes.items()}
        if counters := counters_of(side):
            counts = counters.model_dump(exclude={"peak_by_kind", "uncounted_operators"})
            known |= {f"counted/{what}": value for what, value in counts.items()}
            known |= {f"counted/peak_{kind}_bytes": value for kind, value in counters.peak_by_kind.items()}
    elif isinstance(side, Learned):
        scores = {"loss": side.final.loss, **side.final.metrics} if side.final else {}
        known |= {f"test/{what}": value for what, value in scores.items()}
        known |= {f"probe/{what}": value for what, value in side.probes.items()}
        known |= {"cpu_s": side.cpu_s, "trajectory_sha256": side.trajectory_sha256 or None}
    else:
        known |= {"setup_s": side.setup_s, "cpu_s": side.cpu_s}
        known |= {f"memory/{what}": value for what, value in side.memory.model_dump().items()}
        known |= {f"energy/{what}": value for what, value in side.energy.model_dump().items() if value != ""}
        known |= _ratios(line, index) if isinstance(line, Timed) and index else {}
    return {what: value for what, value in known.items() if value is not None and value == value}  # no NaN


def _ratios(timed: Timed, index: int) -> dict[str, Any]:
    """Returns the contender's ratios to the reference in this set of processes, or why there is none."""
    try:
        pair = timed_pair(timed, index)
    except (ValueError, ArithmeticError, IndexError) as error:
        return {"ratio_unavailable": str(error)}
    known: dict[str, Any] = {"ratio/setup_reference_steps": pair.setup_cost}
    for what, value in values(Known(timed=(pair,)), {}).items():
        if what not in METRICS or METRICS[what].kind not in ("timed", "measured"):
            continue  # what one timing knows nothing of
        if value.known and math.isfinite(value.number):
            known[f"ratio/{what}"] = value.number
        else:
            known[f"ratio/{what}_{value.kind}"] = value.reason
    return known
