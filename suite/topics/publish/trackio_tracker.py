"""Sends evidence to trackio: a project with a run for each of ours, in local files unless a server or Space is named.

Curves are logged by step, and the numbers of the whole run with the last one; conditions, provenance and texts are the
run's configuration, the line as stored an artifact. Its threads end with each run: none is left when contenders are
timed.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from suite.topics.publish.tracking import (
    PROJECT,
    Piece,
    Run,
    Tracker,
    as_stored,
    config,
    group,
    history,
    name,
    sides_of,
    summary,
    tags,
)


class TrackioTracker(Tracker):
    """Sends evidence to trackio's database in ``TRACKIO_DIR``, or to what ``TRACKIO_SERVER_URL`` or
    ``TRACKIO_SPACE_ID`` name.

    Raises ValueError, with what to do, where trackio is missing.
    """

    name = "trackio"

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(warn)
        try:
            import trackio
        except ImportError:
            raise ValueError("--trackio needs trackio: pip install 'leantrain[trackio]'") from None
        self._trackio = trackio

    def send(self, line: Piece) -> None:
        for index, side in enumerate(sides_of(line)):
            with redirect_stdout(io.StringIO()):  # it prints how to look at it, and the command may print JSON
                self._send_run(line, index, side)

    def _send_run(self, line: Piece, index: int, side: Run) -> None:
        known = summary(line, index)
        texts = {key: value for key, value in known.items() if isinstance(value, str)}
        texts |= {"job_type": f"{line.kind} {side.stack}", "tags": ", ".join(tags(line, side))}
        run = self._trackio.init(
            project=PROJECT,
            name=f"{name(line, side)} [{line.id[:8]}-{index}]",  # a name is of one run
            group=group(line),
            config=config(line, side) | texts,
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        try:
            points = history(side)
            for point in points:
                run.log({key: value for key, value in point.items() if key != "step"}, step=int(point["step"]))
            numbers = {key: value for key, value in known.items() if isinstance(value, int | float)}
            run.log(numbers, step=side.steps or 0)
            if index == 0:
                with tempfile.TemporaryDirectory() as folder:
                    record = Path(folder, f"{line.kind}.jsonl")
                    record.write_text(as_stored(line) + "\n", "utf-8")
                    run.log_artifact(record, name=f"{line.kind}-{line.id}", type="record")
        finally:
            self._trackio.finish()

    @property
    def place(self) -> str:
        return f"in project {PROJECT}; look at them with: trackio show --project {PROJECT}"
