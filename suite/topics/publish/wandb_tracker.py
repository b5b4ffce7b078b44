"""Sends evidence to Weights & Biases.

wandb's own average over the runs of a group and job type is the average over seeds, or over sets of processes. The line
as stored is an artifact. wandb's service process is ended after every piece: nothing of it is alive while contenders
are timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from suite.topics.publish.tracking import (
    PATIENCE_S,
    PROJECT,
    Piece,
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

UPLOAD_LIMIT_S = 120.0


class WandbTracker(Tracker):
    """Sends evidence to wandb, online or to local files as ``WANDB_MODE``, wandb's settings and its login say.

    Where none of them says anything and there is no login, offline; after a server has failed, too. Raises ValueError,
    with what to do, where wandb is missing or is told to be online and has no login.
    """

    name = "wandb"

    def __init__(self, warn: Callable[[str], None] = lambda text: None) -> None:
        super().__init__(warn)
        try:
            import wandb
        except ImportError:
            raise ValueError("--wandb needs wandb: pip install 'leantrain[wandb]'") from None
        self._wandb = wandb
        settings = wandb.setup(wandb.Settings(silent=True)).settings
        self.mode: str = settings.mode
        if self.mode == "online" and not wandb.login(prompt=False, verify=False):
            if "WANDB_MODE" in os.environ:
                raise ValueError("WANDB_MODE is online and wandb has no login; run: wandb login, or unset WANDB_MODE")
            self.mode = "offline"
        self._project = settings.project or PROJECT
        wandb.teardown()

    def failed(self, line: Piece) -> None:
        """Sends the piece, and all later ones, to local files where it was the server that failed."""
        self._wandb.teardown()  # else the run's id would still be taken
        if self.mode == "online":
            self.mode = "offline"
            self(line)

    def rest(self) -> None:
        self._wandb.teardown()

    def send(self, line: Piece) -> None:
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
                        file.write(as_stored(line) + "\n")
                    run.log_artifact(artifact)
            finally:
                run.finish(exit_code=int(failed(side)))

    @property
    def place(self) -> str:
        places = {
            "offline": "in local files; send them with: wandb sync --sync-all",
            "disabled": "not sent: wandb is disabled",
        }
        return places.get(self.mode, f"sent to project {self._project}")
