"""Shows evidence in Weights & Biases: sent after it is stored, and while nothing is timed.

One wandb run for each run of ours: of a count and of a curve the one that it is, of a timing one a contender. Its group
is the board that it belongs to, its job type the kind of evidence and the stack: so wandb's own average over the runs
of a group and job type is the average over seeds, or over sets of processes. Curves are its history, everything else
its summary, and the line as stored an artifact of the first run. What is unknown is not sent, its reason is. A renewal
measures nothing, and is not sent.

wandb's service process is ended after every piece: nothing of it is alive while contenders are timed. Nothing here
prompts, and nothing that fails here costs a record.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from suite.judge.known import Known, counters_of, timed_pair
from suite.judge.metrics import METRICS, values
from suite.record.job import Spelling
from suite.record.schema import Counted, Learned, Line, Renewal, Side, Timed, Witness
from suite.record.seal import sealed

PROJECT = "leantrain"
PATIENCE_S = 30.0  # for a server that does not answer; then the rest goes to local files
UPLOAD_LIMIT_S = 120.0
TAG_LENGTH = 64


class Tracker:
    """Sends evidence to wandb, online or to local files as ``WANDB_MODE``, wandb's settings and its login say.

    Where none of them says anything and there is no login, offline. Raises ValueError, with what to do, where wandb is
    missing or is told to be online and has no login.
    """

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError("--wandb needs wandb: pip install 'leantrain[wandb]'") from None
        self._wandb, self._warn = wandb, warn
        self.sent = 0  # runs
        settings = wandb.setup(wandb.Settings(silent=True)).settings
        self.mode: str = settings.mode
        if self.mode == "online" and not wandb.login(prompt=False, verify=False):
            if "WANDB_MODE" in os.environ:
                raise ValueError("WANDB_MODE is online and wandb has no login; run: wandb login, or unset WANDB_MODE")
            self.mode = "offline"
        self._project = settings.project or PROJECT
        wandb.teardown()

    def __call__(self, line: Line) -> None:
        """Sends one piece of evidence. What goes wrong is a warning; if it was the server, this and the rest stay
        local."""
        if isinstance(line, Witness | Renewal):
            return
        try:
            self._send(line)
            self.sent += len(sides_of(line))
        except Exception as error:  # whatever a server, a proxy or a full disk does: the line is stored already
            self._warn(f"wandb: {type(error).__name__}: {error}; the record itself is kept")
            self._wandb.teardown()  # else the run's id would still be taken
            if self.mode == "online":
                self.mode = "offline"
                self(line)
        finally:
            self._wandb.teardown()

    def _send(self, line: Piece) -> None:
        wandb = self._wandb
        for index, side in enumerate(sides_of(line)):
            run = wandb.init(
                id=f"{line.id}-{index}",
                project=self._project,
                group=group(line),
                job_type=f"{line.kind} {side.stack}",
                name=name(line, side),
                tags=tags(line, side),
                config=config(line, side),
                mode=self.mode,
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    disable_code=True,
                    x_disable_stats=True,
                    init_timeout=PATIENCE_S,
                    finish_timeout=UPLOAD_LIMIT_S,
                    finish_timeout_raises=True,
                ),
            )
            try:
                run.define_metric("*", step_metric="step")
                for point in history(side):
                    run.log(point)
                for what, value in summary(line, index).items():
                    run.summary[what] = value
                if index == 0:
                    artifact = wandb.Artifact(f"{line.kind}-{line.id}", "record")
                    with artifact.new_file(f"{line.kind}.jsonl", encoding="utf-8") as file:
                        file.write(sealed(line.model_dump_json().encode()).decode() + "\n")
                    run.log_artifact(artifact)
            finally:
                run.finish(exit_code=0 if side.status in ("ok", "unavailable") else 1)

    @property
    def where(self) -> str:
        """Says what was sent and where it is, in words."""
        if not self.sent:
            return "wandb: nothing was sent; only what is newly measured is"
        places = {
            "offline": "in local files; send them with: wandb sync --sync-all",
            "disabled": "not sent: wandb is disabled",
        }
        return f"wandb: {self.sent} runs {places.get(self.mode, f'sent to project {self._project}')}"


# what is sent -------------------------------------------------------------------------------------------------------

Piece = Counted | Learned | Timed
Run = Counted | Learned | Side


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
