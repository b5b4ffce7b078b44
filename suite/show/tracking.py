"""Shows records in Weights & Biases: sent after they are stored, and while nothing is timed.

One wandb run a contender and seed. Its group is the board that the contender is ranked on, its job type the stack: so
wandb's own average over the runs of a group and job type is the average over seeds. Curves are its history, everything
else its summary, and the record itself an artifact of the reference's run. What is unknown is not sent, its reason is.

wandb's service process is ended after every record: nothing of it is alive while contenders are timed. Nothing here
prompts, and nothing that fails here costs a record.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from suite.judge.rows import Row, pairs
from suite.record.schema import Outcome, Record

PROJECT = "leantrain"
PATIENCE_S = 30.0  # for a server that does not answer; then the rest goes to local files
UPLOAD_LIMIT_S = 120.0
TAG_LENGTH = 64


class Tracker:
    """Sends records to wandb, online or to local files as ``WANDB_MODE``, wandb's settings and its login say.

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

    def __call__(self, record: Record) -> None:
        """Sends one record. What goes wrong is a warning; if it was the server, this and the rest stay local."""
        try:
            self._send(record)
            self.sent += len(record.contenders)
        except Exception as error:  # whatever a server, a proxy or a full disk does: the record is stored already
            self._warn(f"wandb: {type(error).__name__}: {error}; the record itself is kept")
            self._wandb.teardown()  # else the run's id would still be taken
            if self.mode == "online":
                self.mode = "offline"
                self(record)
        finally:
            self._wandb.teardown()

    def _send(self, record: Record) -> None:
        wandb = self._wandb
        rows: list[Row | None] = [None, *pairs([record])]
        for index, (contender, row) in enumerate(zip(record.contenders, rows, strict=True)):
            run = wandb.init(
                id=f"{record.id}-{index}",
                project=self._project,
                group=group(record),
                job_type=contender.stack,
                name=f"{contender.stack} seed {record.seed}",
                tags=tags(record, contender),
                config=config(record, contender),
                mode=self.mode,
                settings=wandb.Settings(
                    silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True,
                    init_timeout=PATIENCE_S, finish_timeout=UPLOAD_LIMIT_S, finish_timeout_raises=True,
                ),
            )  # fmt: skip
            try:
                run.define_metric("*", step_metric="step")
                for point in history(contender):
                    run.log(point)
                for name, value in summary(contender, row).items():
                    run.summary[name] = value
                if index == 0:
                    artifact = wandb.Artifact(f"record-{record.id}", "record")
                    with artifact.new_file("record.jsonl", encoding="utf-8") as file:
                        file.write(record.model_dump_json() + "\n")
                    run.log_artifact(artifact)
            finally:
                run.finish(exit_code=0 if contender.status in ("ok", "unavailable") else 1)

    @property
    def where(self) -> str:
        """What was sent and where it is, in words."""
        if not self.sent:
            return "wandb: nothing was sent; only what is newly measured is"
        places = {
            "offline": "in local files; send them with: wandb sync --sync-all",
            "disabled": "not sent: wandb is disabled",
        }
        return f"wandb: {self.sent} runs {places.get(self.mode, f'sent to project {self._project}')}"


# what is sent -------------------------------------------------------------------------------------------------------


def group(record: Record) -> str:
    """The same for all contenders and seeds that may be ranked together, and for no others."""
    at = record.conditions
    where = f"{at.baseline} {at.size} {at.recipe} {at.task} against {record.reference.stack}"
    return f"{where} on {record.machine.name} [{at.key[:6]}]"


def tags(record: Record, contender: Outcome) -> list[str]:
    at = record.conditions
    named = [at.baseline, at.size, at.recipe, at.task, at.device, record.pairing, contender.status, *contender.sources]
    return [each[:TAG_LENGTH] for each in dict.fromkeys(named)]


def config(record: Record, contender: Outcome) -> dict[str, Any]:
    """Conditions, recipe and provenance, flat."""
    return {
        **record.conditions.model_dump(),
        **{f"recipe_{name}": value for name, value in contender.recipe.items()},
        "stack": contender.stack,
        "reference": record.reference.stack,
        "seed": record.seed,
        "record": record.id,
        "started": record.started,
        "pairing": record.pairing,
        "machine": record.machine.name,
        "machine_key": record.machine.key,
        "harness_sha256": record.harness_sha256,
        "baseline_sha256": record.baseline_sha256,
        "leantrain": record.leantrain,
    }


def history(contender: Outcome) -> list[dict[str, float]]:
    """The curves, a point a step in order: training loss, test scores, pace, and the seconds trained so far."""
    points: dict[int, dict[str, float]] = defaultdict(dict)
    for step, loss in enumerate(contender.train_loss, 1):
        points[step]["train/loss"] = loss
    steps, seconds = 0, 0.0
    for block_s, block_steps in zip(contender.block_s, contender.block_steps):
        steps, seconds = steps + sum(block_steps), seconds + sum(block_s)
        points[steps] |= {"time/step_s": sum(block_s) / sum(block_steps), "time/trained_s": seconds}
    for each in contender.curve:
        scores = {"loss": each.loss, **each.metrics}
        points[each.step] |= {f"test/{name}": value for name, value in scores.items()}
    return [{"step": step, **points[step]} for step in sorted(points)]


def summary(contender: Outcome, row: Row | None) -> dict[str, Any]:
    """What is known of the whole run: its own quantities, and its ratios to the reference in this seed."""
    known: dict[str, Any] = {"status": contender.status, "setup_s": contender.setup_s, "cpu_s": contender.cpu_s}
    if contender.reason:
        known["reason"] = contender.reason
    if contender.counters:
        counted = contender.counters.model_dump(exclude={"peak_by_kind", "uncounted_operators"})
        known |= {f"counted/{name}": value for name, value in counted.items()}
        known |= {f"counted/peak_{kind}_bytes": value for kind, value in contender.counters.peak_by_kind.items()}
    known |= {f"memory/{name}": value for name, value in contender.memory.model_dump().items()}
    known |= {f"energy/{name}": value for name, value in contender.energy.model_dump().items() if value != ""}
    known |= {f"probe/{name}": value for name, value in contender.probes.items()}
    if contender.equal_time:
        known |= {"equal_time/loss": contender.equal_time.loss, "equal_time/steps": contender.equal_time.steps}
    for name, value in row.metrics.items() if row else ():
        if value.known:
            known[f"ratio/{name}"] = value.number
            if value.interval and math.isfinite(value.interval.high):  # one seed may not bound it
                known |= {f"ratio/{name}_low": value.interval.low, f"ratio/{name}_high": value.interval.high}
        else:
            known[f"ratio/{name}_{value.kind}"] = value.reason
    return {name: value for name, value in known.items() if value is not None and value == value}  # no NaN
