"""Checkpoints that were cut off or changed are known as such, and made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from suite.measure.archives import intact, is_whole
from suite.measure.contenders.worker import Session
from suite.record.job import Job, Setting


def saved(path: Path) -> Path:
    torch.save({"weights": torch.arange(1000.0)}, path)
    return path


def test_a_file_is_whole_until_a_byte_of_it_is_another(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pt")
    assert is_whole(path) and not is_whole(tmp_path / "none.pt")
    content = path.read_bytes()
    at = content.index(torch.arange(1000.0).numpy().tobytes()) + 2000
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    assert not is_whole(path)
    for length in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert not is_whole(path)


def test_what_cannot_be_made_whole_is_said(tmp_path: Path) -> None:
    def cut() -> Path:
        path = saved(tmp_path / "a.pt")
        os.truncate(path, 100)
        return path

    with pytest.raises(OSError, match="damaged as soon as it is written"):
        intact(cut)


def test_a_checkpoint_that_was_cut_off_is_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANTRAIN_CACHE", str(tmp_path))
    setting = Setting(baseline="gpt", size="pico", task="adapt", steps=2)
    losses = []
    for _ in range(2):
        session = Session(Job(setting=setting), 0, 1, "")
        session.prepare(True)
        session.set_up(recorded=False, nudge=0, tallied=False, counted=False)
        losses.append(session.block(2)["losses"])
        assert session.weights
        os.truncate(session.weights, session.weights.stat().st_size // 2)
    assert losses[0] == losses[1]
