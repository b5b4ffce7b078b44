"""Data and models that would read or run what their user did not name are refused before a library opens them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from suite.entries.locations import Outside, check_configuration, check_data
from suite.entries.setting import setting_of

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A private file beside the data's folder."""
    path = tmp_path / "private" / "secret.png"
    path.parent.mkdir()
    Image.new("RGB", (8, 8), "red").save(path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def picture() -> bytes:
    written = BytesIO()
    Image.new("RGB", (8, 8)).save(written, "png")
    return written.getvalue()


def as_struct(path: str | None, content: bytes | None) -> Any:
    return pa.table(
        {"image": [{"bytes": picture(), "path": "a.png"}, {"bytes": content, "path": path}], "label": [0, 1]}
    )


def as_declared_text(path: str | None, content: bytes | None) -> Any:
    """A column of texts that datasets is told to take for images."""
    features = {"image": {"_type": "Image"}, "label": {"_type": "Value", "dtype": "int64"}}
    table = pa.table({"image": [path, path], "label": [0, 1]})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def parquet(table: Any, folder: Path) -> None:
    pq.write_table(table, folder / "data.parquet")


def arrow(table: Any, folder: Path) -> None:
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def json_lines(table: Any, folder: Path) -> None:
    rows = [{"image": {"path": row["image"]["path"]}, "label": row["label"]} for row in table.to_pylist()]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("written", "how"),
    [(parquet, as_struct), (parquet, as_declared_text), (arrow, as_struct), (json_lines, as_struct)],
)
@pytest.mark.parametrize("named", ["absolute", "relative", "/dev/zero", "pipe"])
def test_an_image_that_is_a_path_to_somewhere_else_is_refused(
    written: Callable[[Any, Path], None], how: Callable[..., Any], named: str, data: Path, secret: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(data)
    os.mkfifo(data.parent / "pipe")
    path = {"absolute": str(secret), "relative": "../private/secret.png", "pipe": str(data.parent / "pipe")}.get(
        named, named
    )
    written(how(path, None), data)
    with pytest.raises(Outside, match=r"an image in it has no bytes, but the path .*store the images themselves"):
        setting_of(baseline="vit", data=str(data))
    check_data(str(data), of_images=False)  # a text baseline opens no image


def test_an_empty_image_is_one_without_bytes(data: Path, secret: Path) -> None:
    parquet(as_struct(str(secret), b""), data)
    with pytest.raises(Outside, match="has no bytes"):
        check_data(str(data), of_images=True)


def test_images_with_their_bytes_and_those_in_the_folder_are_fine(data: Path, secret: Path) -> None:
    parquet(as_struct(str(secret), picture()), data)  # where its bytes were once read from is nobody's business
    check_data(str(data), of_images=True)
    (data / "b.png").write_bytes(picture())
    parquet(as_struct(str(data / "b.png"), None), data)
    check_data.cache_clear()
    check_data(str(data), of_images=True)


@pytest.mark.parametrize("of_images", [True, False])
def test_a_file_that_is_not_there_is_said_before_the_hub_is_asked(
    of_images: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("suite.entries.locations._of_hub", lambda match: pytest.fail(f"the hub was asked for {match}"))
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "train.parquet").touch()
    for location in (str(tmp_path / "words" / "train.parqet"), "words/train.parqet"):
        with pytest.raises(FileNotFoundError, match=r"no such file or folder; did you mean .*words/train\.parquet\?"):
            check_data(location, of_images)
    with pytest.raises(FileNotFoundError, match="no such file or folder; a data set of the hub is OWNER/NAME"):
        check_data("train.parqet", of_images)


def test_what_may_be_a_data_set_of_the_hub_is_for_the_reader_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("suite.entries.locations._of_hub", lambda match: asked.append(match["id"]) or [])
    for location in ("imdb", "glue:sst2@v1.0", "me/my.images"):
        check_data(location, of_images=True)
    assert asked == ["imdb", "glue", "me/my.images"]


def test_data_of_the_hub_is_looked_through_as_well(
    secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = datasets.DatasetDict({"train": datasets.Dataset(as_struct(str(secret), None))})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: loaded)
    with pytest.raises(Outside, match=r"secret\.png"):
        check_data("owner/evil", of_images=True)


def test_links_that_lead_out_and_what_is_no_regular_file_are_refused(data: Path, secret: Path) -> None:
    (data / "a.png").write_bytes(picture())
    (data / "b.png").symlink_to(data / "a.png")
    check_data(str(data), of_images=True)
    for name, add in {
        "out.png": lambda path: path.symlink_to(secret),
        "pipe.txt": os.mkfifo,
        "zero.txt": lambda path: path.symlink_to("/dev/zero"),
    }.items():
        add(data / name)
        check_data.cache_clear()
        with pytest.raises(Outside, match=f"{name} is (a link to a file elsewhere|no regular file)"):
            check_data(str(data), of_images=False)
        (data / name).unlink()
    os.mkfifo(data / "pipe")
    for odd in (data / "pipe", Path("/dev/zero")):
        with pytest.raises(Outside, match="it is a pipe or a device; give a file or a folder"):
            check_data(str(odd), of_images=False)


@pytest.mark.parametrize(
    "content",
    [
        {"attn_implementation": "kernels-community/flash-attn2"},
        {"_attn_implementation": "evil/kernel@main:attention"},
        {"_attn_implementation_internal": "evil/kernel"},
        {"attn_implementation": "flash_attention_2"},  # transformers takes the hub's where the package is missing
        {"attn_implementation": {"": "sdpa", "text_config": "paged|evil/kernel"}},
        {"text_config": {"attn_implementation": "evil/kernel"}},
        {"per_layer_config": [{"experts_implementation": "deepgemm"}]},
    ],
)
def test_a_configuration_that_names_a_kernel_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **content}))
    with pytest.raises(Outside, match=r"implementation.* may be code from the hub; take that line out of config\.json"):
        setting_of(baseline="gpt", model=str(tmp_path))


def test_other_configurations_are_for_their_reader(tmp_path: Path) -> None:
    for content in ("{", "[]", json.dumps({"attn_implementation": "sdpa", "x": {"_attn_implementation": None}})):
        (tmp_path / "config.json").write_text(content)
        check_configuration(str(tmp_path))
    check_configuration(str(tmp_path / "no such"))


def test_a_configuration_that_is_no_file_keeps_no_command_waiting(tmp_path: Path) -> None:
    """A pipe that nobody writes to, a device that never ends."""
    for name, make in (("pipe", os.mkfifo), ("device", lambda path: os.symlink("/dev/zero", path))):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "config.json")
        with pytest.raises(Outside, match=r"its config\.json is no regular file; write one there"):
            setting_of(baseline="gpt", model=str(tmp_path / name))
