"""Logs of other programs: every format gives the same run; what a log cannot mean is a sentence with file and line."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from suite.topics.foreign_runs.guessed_columns import ColumnNames, decided
from suite.topics.foreign_runs.log_formats import files_of, read
from suite.topics.foreign_runs.log_table import LogTable
from suite.topics.foreign_runs.run_of_log import ForeignRun, runs_of
from suite.topics.foreign_runs.text_logs import PRESETS, SOURCES, preset_of

STEPS, LOSSES, SECONDS = (100, 200, 300), (3.5, 3.25, 3.125), (10.0, 20.0, 30.0)  # floats of 32 bits hold them
ROWS = [{"step": s, "val_loss": x, "seconds": t} for s, x, t in zip(STEPS, LOSSES, SECONDS)]


# messages of Protocol Buffers, as their writers write them ------------------------------------------------------------


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def message(*fields: tuple[int, int | float | bytes]) -> bytes:
    """Whole numbers as varints, floats as doubles, bytes with their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        elif isinstance(value, float):
            out += varint(number << 3 | 1) + struct.pack("<d", value)
        else:
            out += varint(number << 3) + varint(value)
    return out


def framed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4)


def event_file(path: Path, tensors: bool = False) -> None:
    out = framed(message((1, 1e9), (3, b"brain.Event:2")))
    for row in ROWS:
        value = struct.pack("<f", row["val_loss"])
        scalar = (8, message((1, 1), (4, value))) if tensors else None
        simple = varint(2 << 3 | 5) + value
        body = message((1, b"eval/loss"), *([scalar] if scalar else [])) + (b"" if tensors else simple)
        image = message((1, b"sample"), (4, b"not a scalar"))
        out += framed(message((1, 1e9 + row["seconds"]), (2, row["step"]), (5, message((1, body), (1, image)))))
    path.write_bytes(out + framed(b"cut")[:-3])


def offline_file(path: Path) -> None:
    """Its configuration is longer than a block of the log, so it stands in two pieces."""

    def item(key: str, value: Any) -> bytes:
        return message((1, key.encode()), (16, json.dumps(value).encode()))

    records = [message((1, 1), (17, message((4, message((1, item("seed", 7)), (1, item("notes", "x" * 40000)))))))]
    for row in ROWS:
        items = [(1, item("val_loss", row["val_loss"])), (1, item("_runtime", row["seconds"]))]
        records.append(message((2, message(*items, (2, message((1, row["step"])))))))
    out = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
    for record in records:
        kind = 1
        while record:
            if 32768 - len(out) % 32768 < 7:
                out += bytes(32768 - len(out) % 32768)
            room = 32768 - len(out) % 32768 - 7
            piece, record = record[:room], record[room:]
            kind = (1 if not record else 2) if kind == 1 else (4 if not record else 3)
            out += struct.pack("<IHB", 0, len(piece), kind) + piece
            kind = 0
    path.write_bytes(out)


def trackio_file(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, timestamp TEXT NOT NULL, project_name TEXT "
            "NOT NULL, run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL)"
        )
        for row in ROWS:
            others = json.dumps({"val_loss": row["val_loss"], "elapsed": row["seconds"]})
            values = ("2026-01-31T12:00:00", "p", "brave-run", row["step"], others)
            database.execute(
                "INSERT INTO metrics (timestamp, project_name, run_name, step, metrics) VALUES (?,?,?,?,?)", values
            )
    database.close()


# the formats ----------------------------------------------------------------------------------------------------------


def text(path: Path, lines: str) -> None:
    path.write_text(lines, "utf-8")


def separated(separator: str) -> Callable[[Path], None]:
    return lambda path: pd.DataFrame(ROWS).to_csv(path, sep=separator, index=False)


NANOCHAT = """\
Total batch size 524,288 => gradient accumulation steps: 1
step 00099/00300 (33.00%) | loss: 3.600000 | lrm: 1.00 | dt: 100.00ms | tok/sec: 5,242,880 | total time: {:.4f}m
Step 00100 | Validation bpb: 3.5000
step 00199/00300 (66.33%) | loss: 3.300000 | lrm: 1.00 | dt: 100.00ms | tok/sec: 5,242,880 | total time: {:.4f}m
Step 00200 | Validation bpb: 3.2500
step 00299/00300 (99.67%) | loss: 3.200000 | lrm: 0.01 | dt: 100.00ms | tok/sec: 5,242,880 | total time: {:.4f}m
Step 00300 | Validation bpb: 3.1250
""".format(*(seconds / 60 for seconds in SECONDS))
MODDED = """\
print0(f"step:{step}/{train_steps} val_loss:{val_loss:.4f} train_time:{training_time_ms:.0f}ms")
Running PyTorch 2.7.0.dev20250208+cu126 compiled for CUDA 12.6
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |
step:0/300 val_loss:10.8258 train_time:0ms step_avg:0.00ms
step:1/300 train_time:200ms step_avg:200.00ms
step:100/300 val_loss:3.5000 train_time:10000ms step_avg:100.00ms
step:200/300 val_loss:3.2500 train_time:20000ms step_avg:100.00ms
step:300/300 val_loss:3.1250 train_time:30000ms step_avg:100.00ms
peak memory allocated: 30000 MiB reserved: 40000 MiB
"""
GOLF = """\
seed:1337
step:100/300 train_loss:3.6000 train_time:9990ms step_avg:99.90ms
step:100/300 val_loss:3.5000 val_bpb:2.0700 train_time:10000ms step_avg:100.00ms
step:200/300 val_loss:3.2500 val_bpb:1.9200 train_time:20000ms step_avg:100.00ms
step:300/300 val_loss:3.1250 val_bpb:1.8500 train_time:30000ms step_avg:100.00ms
"""
TITAN = """\
[rank0]:[titan] 2026-01-31 12:00:00,100 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.15000  \x1b[38;5;208mgrad_norm:  1.5000  \x1b[36mmemory:  1.00GiB(1.00%)  \x1b[34mtps: 1,000\x1b[39m
[rank0]:[titan] 2026-01-31 12:00:10,100 - root - INFO - \x1b[33mvalidate step: 100  \x1b[32mloss:  3.5000  \x1b[36mmemory:  1.00GiB(1.00%)  \x1b[34mtps: 1,000\x1b[39m
[rank0]:[titan] 2026-01-31 12:00:20,100 - root - INFO - \x1b[33mvalidate step: 200  \x1b[32mloss:  3.2500  \x1b[36mmemory:  1.00GiB(1.00%)  \x1b[34mtps: 1,000\x1b[39m
[rank0]:[titan] 2026-01-31 12:00:30,100 - root - INFO - \x1b[33mvalidate step: 300  \x1b[32mloss:  3.1250  \x1b[36mmemory:  1.00GiB(1.00%)  \x1b[34mtps: 1,000\x1b[39m
"""  # noqa: E501
COMPOSER = "".join(
    f"[batch={step}/300]:\n\t Train time/batch: {step - 1}\n\t Train loss/train/total: {loss + 0.1:.4f}\n"
    f"\t Train time_hours/train: {seconds / 3600:.8f}\n[Eval batch=8/8] Eval on eval data:\n"
    f"\t Eval metrics/eval/LanguageCrossEntropy: {loss:.4f}\n"
    for step, loss, seconds in zip(STEPS, LOSSES, SECONDS)
)
CHART = "Step,brave-run - val_loss,brave-run - val_loss__MIN,brave-run - val_loss__MAX,brave-run - elapsed\n" + "".join(
    f"{row['step']},{row['val_loss']},{row['val_loss']},{row['val_loss']},{row['seconds']}\n" for row in ROWS
)
STATE = {
    "best_metric": 3.125,
    "max_steps": 300,
    "train_batch_size": 16,
    "log_history": [
        {"step": row["step"], "eval_loss": row["val_loss"], "eval_runtime": 1.0, "elapsed": row["seconds"]}
        for row in ROWS
    ],
}
FORMATS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "CSV": ("a.csv", separated(",")),
    "TSV": ("a.tsv", separated("\t")),
    "JSON Lines": ("a.jsonl", lambda path: text(path, "".join(json.dumps(row) + "\n" for row in ROWS))),
    "JSON of rows": ("a.json", lambda path: text(path, json.dumps(ROWS))),
    "JSON of columns": ("a.json", lambda path: pd.DataFrame(ROWS).to_json(path)),
    "Parquet": ("a.parquet", lambda path: pd.DataFrame(ROWS).to_parquet(path)),
    "trainer_state.json": ("trainer_state.json", lambda path: text(path, json.dumps(STATE, indent=2))),
    "TensorBoard": ("events.out.tfevents.1.host.2.0", event_file),
    "TensorBoard, tensors": ("events.out.tfevents.1.host.2.0", lambda path: event_file(path, tensors=True)),
    "W&B's chart": ("a.csv", lambda path: text(path, CHART)),
    "W&B's offline run": ("run-abc.wandb", offline_file),
    "trackio": ("project.db", trackio_file),
    "nanochat": ("a.log", lambda path: text(path, NANOCHAT)),
    "modded-nanogpt": ("a.txt", lambda path: text(path, MODDED)),
    "parameter-golf": ("a.log", lambda path: text(path, GOLF)),
    "torchtitan": ("a.log", lambda path: text(path, TITAN)),
    "composer": ("a.log", lambda path: text(path, COMPOSER)),
}


def runs(tables: list[LogTable], **named: str) -> list[ForeignRun]:
    roles = decided(tables, ColumnNames(**{role: (name,) for role, name in named.items()}), "steps")
    return [run for table in tables for run in runs_of(table, roles)]


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_gives_the_same_run(tmp_path: Path, form: str) -> None:
    name, write = FORMATS[form]
    write(tmp_path / name)
    (run,) = runs(read(tmp_path / name))
    assert run.budgets.tolist() == list(STEPS)
    assert run.losses.tolist() == list(LOSSES)
    np.testing.assert_allclose(run.seconds, SECONDS, atol=2e-3)
    assert str(tmp_path / name) in run.source


def test_logs_say_seed_batch_and_hardware_where_they_have_them(tmp_path: Path) -> None:
    for form in ("modded-nanogpt", "parameter-golf", "W&B's offline run", "trainer_state.json", "nanochat"):
        name, write = FORMATS[form]
        (tmp_path / form).mkdir()
        write(tmp_path / form / name)
    known = {path.parent.name: run for path in tmp_path.glob("*/*") for run in runs(read(path))}
    assert known["modded-nanogpt"].facts["hardware"] == "H100 80GB HBM3"
    assert known["parameter-golf"].seed == "1337"
    assert known["W&B's offline run"].seed == "7"
    assert known["trainer_state.json"].facts["batch"] == "16" and known["trainer_state.json"].planned == 1.0
    assert known["nanochat"].facts["batch"] == "524288"


def test_a_preset_is_known_by_its_lines_and_says_whose_they_are() -> None:
    lines = {
        "nanochat": NANOCHAT,
        "modded-nanogpt": MODDED,
        "parameter-golf": GOLF,
        "torchtitan": TITAN,
        "composer": COMPOSER,
    }
    assert {name: preset_of(text) for name, text in lines.items()} == {name: name for name in PRESETS}
    assert SOURCES.keys() == PRESETS.keys()


def test_a_pattern_reads_any_log_and_a_folder_is_its_run(tmp_path: Path) -> None:
    text(tmp_path / "own.log", "it 1 L=2.5 t=1,000ms\nit 2 L=2.25 t=2,000ms\nbye\n")
    (run,) = runs(read(tmp_path / "own.log", [r"it (?P<step>\d+) L=(?P<loss>\S+) t=(?P<ms>[\d,]+)ms"]))
    assert (run.budgets.tolist(), run.losses.tolist(), run.seconds.tolist()) == ([1, 2], [2.5, 2.25], [1, 2])
    (tmp_path / "checkpoint").mkdir()
    text(tmp_path / "checkpoint" / "trainer_state.json", json.dumps(STATE))
    assert runs([LogTable("gpt-seed=3-s3375.csv", pd.DataFrame(ROWS).to_dict(orient="list"), range(3))])[0].seed == "3"
    (tmp_path / "resumed").mkdir()
    for name in "ab":
        event_file(tmp_path / "resumed" / f"events.out.tfevents.{name}")
    with pytest.raises(ValueError, match=r"resumed: the folder holds 2 files \*tfevents\*, of a run that was resumed"):
        files_of([str(tmp_path / "resumed")], "--reference")
    assert files_of([str(tmp_path / "check*")], "--reference") == [tmp_path / "checkpoint" / "trainer_state.json"]


def test_several_runs_in_a_file_are_told_apart() -> None:
    frame = pd.DataFrame([row | {"seed": seed, "val_loss": row["val_loss"] + seed} for seed in (1, 2) for row in ROWS])
    table = LogTable("a.csv", frame.to_dict(orient="list"), range(2, 8))
    assert [(run.seed, run.losses[-1]) for run in runs([table])] == [("1", 4.125), ("2", 5.125)]


# bad input ------------------------------------------------------------------------------------------------------------

HEAD = "step,val_loss,seconds\n"
BAD: Mapping[str, tuple[str, str]] = {
    "no steps": (
        "epoch,val_loss\n1,2\n",
        "no column is known to hold steps: {file} has epoch, val_loss; name it with --step",
    ),
    "no loss": ("step,speed\n1,2\n", "no column is known to be a loss: {file} has step, speed; name it with --loss"),
    "diverged": (HEAD + "1,3,1\n2,nan,2\n", "{file}, line 3: val_loss is nan: the run diverged"),
    "falling": (HEAD + "1,3,1\n3,2.5,2\n2,2.4,3\n", "{file}, line 4: steps fall from 3 to 2"),
    "twice": (HEAD + "1,3,1\n2,2.5,2\n2,2.4,3\n", "{file}, line 4: 2 steps have two losses, 2.5 and 2.4"),
    "two clocks": (HEAD + "1,3,9000\n2,2.5,12\n", "{file}, line 3: seconds falls from 9000 to 12 s: two units"),
    "a unit": (HEAD + "1,3,9ms\n2,2.5,12ms\n", "{file}, line 2: seconds is '9ms', with a unit"),
    "a comma": ("step;val_loss\n1;3,5\n2;3,25\n", "{file}, line 2: val_loss is '3,5', with a comma in the number"),
    "commas between fields": (HEAD + "1,3,5,1\n", "{file}, line 2: 4 fields where the header has 3"),
    "a word": (HEAD + "1,3,1\n2,oops,2\n", "{file}, line 3: val_loss is 'oops', which is no number"),
    "empty": ("", "{file} is empty"),
    "a header": (HEAD, "{file} has a header and no rows"),
    "no step in a row": (HEAD + ",3,1\n1,2,2\n", "{file}, line 2: a loss without steps"),
    "below 0": (HEAD + "1,-3,1\n", "{file}, line 2: val_loss is -3: ratios need losses above 0"),
    "not begun": (HEAD + "0,10.8,0\n", "{file}, line 2: its only evaluation is after 0 steps"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_a_log_cannot_mean_is_a_sentence_with_file_and_line(tmp_path: Path, case: str) -> None:
    content, sentence = BAD[case]
    text(tmp_path / "a.csv", content)
    with pytest.raises(ValueError) as raised:
        runs(read(tmp_path / "a.csv"))
    assert str(raised.value).startswith(sentence.format(file=tmp_path / "a.csv"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", b'{"step": 1, "loss": 2}\n{"step": 2, "lo', "a.jsonl, line 2: it is no JSON, perhaps cut"),
        ("a.json", b"[1, 2]", "holds no rows of names and values"),
        ("a.log", b"epoch one went well\n", "its lines are of no program that is known"),
        ("a.csv", b"step,loss\n1,\xff\n", "is no text in UTF-8"),
        ("a.parquet", b"PAR1 and no more", "is no Parquet that can be read"),
        ("a.db", b"SQLite format 3\0 and no more", "is no database of trackio"),
        ("events.out.tfevents.1", framed(message((1, 1.0))), "holds no scalars"),
        ("a.wandb", b"something else", "is no file of a W&B run"),
        ("a.wandb", b":W&B\xe1\xbe\0" + struct.pack("<IHB", 0, 1, 1) + b"\xff", "damaged"),
    ],
)
def test_a_damaged_file_is_a_sentence_with_its_name(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as raised:
        read(tmp_path / name)
    assert why in str(raised.value) and name in str(raised.value) and "\n" not in str(raised.value)


def test_what_a_user_names_wrongly_is_said(tmp_path: Path) -> None:
    text(tmp_path / "a.csv", HEAD + "1,2,3\n")
    cases: Iterator[tuple[Callable[[], object], str]] = iter(
        [
            (lambda: files_of([str(tmp_path / "b*")], "--reference"), "--reference .*: there is no such file"),
            (lambda: files_of([str(tmp_path)], "--reference"), "holds no run's file"),
            (lambda: read(tmp_path / "a.csv", ["("]), r"--pattern \(: "),
            (lambda: read(tmp_path / "a.csv", ["loss"]), "it names no groups"),
            (lambda: read(tmp_path / "a.csv", ["(?P<loss>x)"]), "no line is like"),
            (lambda: runs(read(tmp_path / "a.csv"), loss="bpb"), "--loss bpb: .*a.csv has step, val_loss, seconds"),
        ]
    )  # fmt: skip - a case a line
    for call, why in cases:
        with pytest.raises(ValueError, match=why):
            call()


def test_missing_numbers_are_skipped_and_what_a_line_does_not_repeat_is_that_of_the_line_before() -> None:
    """As W&B exports it: lines of training have tokens, those of an evaluation have none. Equal lines count once."""
    columns = {"step": [1, 1, 2, 2, 2], "tokens": [10, None, 20, None, None], "val_loss": [None, 3.0, None, 2.5, 2.5]}
    roles = decided([table := LogTable("a", columns, range(1, 6))], ColumnNames())
    (run,) = runs_of(table, roles)
    assert roles.unit == "tokens" and run.budgets.tolist() == [10, 20] and run.losses.tolist() == [3.0, 2.5]
    assert run.facts["batch"] == "10 tokens a step"


def test_composer_s_lines_of_an_epoch_are_counted_from_the_beginning(tmp_path: Path) -> None:
    lines = COMPOSER.replace("[batch=", "[epoch=1][batch=").replace("/300]", "/10]")
    text(tmp_path / "a.log", lines)
    (run,) = runs(read(tmp_path / "a.log"))
    assert run.budgets.tolist() == [step - 1 for step in STEPS]  # as it logs it, before the batch


def test_a_column_s_name_says_its_unit_of_time() -> None:
    for name, size in (
        ("train_time_ms", 1e-3),
        ("elapsed_s", 1),
        ("time_minutes/train", 60),
        ("time_hours/train", 3600),
    ):
        columns = {"step": STEPS, "val_loss": LOSSES, name: [seconds / size for seconds in SECONDS]}
        (run,) = runs([LogTable("a.csv", columns, range(2, 5))])
        np.testing.assert_allclose(run.seconds, SECONDS)
