"""Sends evidence to MLflow: an experiment with a run for each of ours.

Conditions and provenance are a run's parameters, its curves and numbers metrics, texts tags, the line as stored an
artifact. Every call is answered before the next: no thread and no process is left when contenders are timed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from suite.topics.publish.tracking import (
    PATIENCE_S,
    PROJECT,
    Piece,
    Run,
    Tracker,
    as_stored,
    config,
    failed,
    group,
    history,
    name,
    sides_of,
    summary,
    tags,
)

MOST_METRICS = 1000  # of one call, as MLflow has it; of parameters 100
MOST_PARAMETERS = 100
LONGEST = 6000  # characters of a parameter; of a tag more
NOT_IN_NAMES = re.compile(r"[^\w.\- :/]")
UNLESS_SAID = {
    "MLFLOW_DISABLE_TELEMETRY": "true",  # what is sent goes where the user says, and nowhere else
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(round(PATIENCE_S)),
}


class MlflowTracker(Tracker):
    """Sends evidence to the server or database that ``MLFLOW_TRACKING_URI`` names; by default to ``mlflow.db`` here.

    The experiment is that of ``MLFLOW_EXPERIMENT_NAME``, or leantrain. After a call has failed nothing more is sent: it
    may have taken minutes. Raises ValueError, with what to do, where MLflow is missing or cannot be reached.
    """

    name = "mlflow"

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(warn)
        for variable, value in UNLESS_SAID.items():
            os.environ.setdefault(variable, value)
        try:
            import mlflow
        except ImportError:
            raise ValueError("--mlflow needs MLflow: pip install 'leantrain[mlflow]'") from None
        self.uri = mlflow.get_tracking_uri()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        try:
            self._client = mlflow.MlflowClient()
            known = self._client.get_experiment_by_name(experiment)
            self._experiment = known.experiment_id if known else self._client.create_experiment(experiment)
        except Exception as error:  # whatever a server, a proxy or a database does
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            another = "start it, or set MLFLOW_TRACKING_URI to another"
            raise ValueError(f"--mlflow: {self.uri} cannot be used, {why}; {another}") from None

    def send(self, line: Piece) -> None:
        for index, side in enumerate(sides_of(line)):
            self._send_run(line, index, side)

    def _send_run(self, line: Piece, index: int, side: Run) -> None:
        from mlflow.entities import Param

        known = summary(line, index)
        texts = {key: value for key, value in known.items() if isinstance(value, str)}
        texts |= {"group": group(line), "job_type": f"{line.kind} {side.stack}", "tags": ", ".join(tags(line, side))}
        started_ms = round(datetime.fromisoformat(line.started).timestamp() * 1000)
        run = self._client.create_run(self._experiment, started_ms, texts, name(line, side)).info.run_id
        parameters = [Param(key, str(value)[:LONGEST]) for key, value in config(line, side).items()]
        for part in _parts(parameters, MOST_PARAMETERS):
            self._client.log_batch(run, params=part)
        for part in _parts(_metrics(side, known, started_ms), MOST_METRICS):
            self._client.log_batch(run, metrics=part)
        if index == 0:
            self._client.log_text(run, as_stored(line) + "\n", f"{line.kind}.jsonl")
        ended_ms = started_ms + round(1000 * line.duration_s)
        self._client.set_terminated(run, "FAILED" if failed(side) else "FINISHED", ended_ms)

    def failed(self, line: Piece) -> None:
        self.gone = True
        self._warn("mlflow: nothing more is sent in this run")

    @property
    def place(self) -> str:
        return f"in {self.uri}; look at them with: mlflow ui --backend-store-uri {self.uri}"


def _metrics(side: Run, known: dict[str, Any], at_ms: int) -> list[Any]:
    """Returns the curves and, at the last step, the numbers of the whole run."""
    from mlflow.entities import Metric

    curves = [(key, value, point["step"]) for point in history(side) for key, value in point.items() if key != "step"]
    curves += [(key, value, side.steps or 0) for key, value in known.items() if isinstance(value, int | float)]
    return [Metric(NOT_IN_NAMES.sub("_", key), float(value), at_ms, int(step)) for key, value, step in curves]


def _parts(items: list[Any], most: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
