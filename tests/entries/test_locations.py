"""Data and models that would read or run what their user did not name are refused before a library opens them."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import shutil
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from baselines import source
from suite.entries.locations import KINDS, Outside, check_configuration, check_data, check_reached
from suite.entries.setting import setting_of

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Extractor = pytest.importorskip("datasets.utils.extract").Extractor


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
    written: Callable[[Any, Path], None],
    how: Callable[..., Any],
    named: str,
    data: Path,
    secret: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(data)
    os.mkfifo(data.parent / "pipe")
    path = {"absolute": str(secret), "relative": "../private/secret.png", "pipe": str(data.parent / "pipe")}.get(
        named, named
    )
    written(how(path, None), data)
    with pytest.raises(Outside, match=r"an image in it has no bytes, but the path .*store the images themselves"):
        setting_of(baseline="vit", data=str(data))
    check_data(str(data), of_images=False)  # a text baseline opens no image


def saved(table: Any, folder: Path) -> Path:
    """What ``save_to_disk`` writes of a table, so that its files can be changed."""
    datasets.DatasetDict({"train": datasets.Dataset(table)}).save_to_disk(str(folder))
    return folder / "train"


def changed(path: Path, **members: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


def test_a_file_that_is_an_archive_under_another_name_is_refused(data: Path, secret: Path) -> None:
    """A reader unpacks it and reads what is inside, which nobody looked through."""
    json_lines(as_struct(str(secret), None), data)
    plain = (data / "data.jsonl").read_bytes()
    parquet(as_struct(None, picture()), data)
    sound = (data / "data.parquet").read_bytes()
    (data / "data.parquet").unlink()
    with BytesIO() as written, zipfile.ZipFile(written, "w") as inner:
        inner.writestr("data.parquet", sound)
        inner.comment = b"PAR1"  # a file of two kinds: it ends as Parquet does
        inner.close()
        both = b"PAR1" + written.getvalue()
    for name, content in {
        "data.jsonl": gzip.compress(plain),
        "bz2.json": bz2.compress(plain),
        "xz.csv": lzma.compress(plain),
        "gz.parquet": gzip.compress(sound),
        "both.parquet": both,
        "no.parquet": plain,
        "no.arrow": plain,
        "no.png": plain,
    }.items():
        (data / name).write_bytes(content)
        check_data.cache_clear()
        for of_images in (True, False):
            with pytest.raises(Outside, match=f"{name} is (an archive|something else), and not the"):
                check_data(str(data / name), of_images)
        if Extractor.infer_extractor_format(data / name):  # what the library would unpack
            with pytest.raises(Outside, match="an archive"):
                check_data(str(data / name), of_images=False)
        (data / name).unlink()


@pytest.mark.parametrize(
    "text",
    [
        '{"label": 1}\n{"a": "\u2028", "image": {"path": "SECRET"}, "label": 0}\n',
        '{"label": 1}\n{"a": "\x85", "image": {"path": "SECRET"}, "label": 0}\n',
        '\ufeff{"image": {"path": "SECRET"}, "label": 0}\n{"label": 1}',
        '{"image": {"p\\u0061th": "SECRET", "path": ""}, "label": 0}',
        '{"label": 0}\r{"image": {"path": "SECRET"}}',
        '[\n{"image": {"path": "SECRET", "bytes": null}, "label": 0}\n]',
    ],
)
def test_lines_are_json_s_own(text: str, data: Path, secret: Path) -> None:
    """Other ends of lines are letters of a text in JSON, and the object around them is one."""
    (data / "data.jsonl").write_text(text.replace("SECRET", str(secret)), "utf-8", newline="")
    with pytest.raises(Outside, match=r"secret\.png"):
        check_data(str(data), of_images=True)


@pytest.mark.parametrize(
    "content", [b'{"image": {"path": "x"}}}', b'{"a": 1} x', b'{"image"', '{"a": "ä"}'.encode("latin-1")]
)
def test_of_images_what_is_no_json_is_refused(content: bytes, data: Path) -> None:
    (data / "data.json").write_bytes(content)
    with pytest.raises(Outside, match=r"data\.json is no JSON, or no JSON Lines, in UTF-8"):
        check_data(str(data), of_images=True)


def test_a_saved_data_set_names_its_own_files_alone(data: Path, secret: Path) -> None:
    train = saved(as_struct(None, picture()), data)
    for of_images in (True, False):
        check_data(str(data), of_images)
    (name,) = (each.name for each in train.glob("*.arrow"))
    shutil.copy(train / name, data.parent / "elsewhere.arrow")
    shutil.copy(train / name, train / "data.bin")
    state = json.loads((train / "state.json").read_text())
    for foreign in ("../../elsewhere.arrow", str(data.parent / "elsewhere.arrow"), "data.bin", 7, None):
        changed(train / "state.json", _data_files=[{"filename": foreign}])
        check_data.cache_clear()
        with pytest.raises(Outside, match="which is no Arrow file beside it"):
            check_data(str(data), of_images=False)
    changed(train / "state.json", **state)
    for split in ("../private", str(data.parent), "a/b", 1):
        changed(data / "dataset_dict.json", splits=[split])
        check_data.cache_clear()
        with pytest.raises(Outside, match="which is no folder beside it"):
            check_data(str(data), of_images=False)


def test_of_a_saved_data_set_the_table_that_is_loaded_is_looked_through(data: Path, secret: Path) -> None:
    train = saved(as_struct(str(secret), None), data)
    (train / "data.parquet").write_bytes(b"is not what is loaded")
    with pytest.raises(Outside, match=r"secret\.png"):
        check_data(str(data), of_images=True)
    check_data(str(data), of_images=False)


def test_a_linked_folder_of_a_saved_data_set_is_refused(data: Path, tmp_path: Path) -> None:
    saved(as_struct(None, picture()), tmp_path / "other")
    shutil.copytree(tmp_path / "other", data, dirs_exist_ok=True)
    shutil.rmtree(data / "train")
    (data / "train").symlink_to(tmp_path / "other" / "train")
    with pytest.raises(Outside, match="train is a link to a file elsewhere"):
        check_data(str(data), of_images=False)


@pytest.mark.parametrize("name", ["*.jsonl", "[a-z].jsonl", "a::b.jsonl", "?.jsonl"])
def test_a_name_that_readers_take_for_a_pattern_is_refused(name: str, data: Path) -> None:
    (data / name).write_text('{"text": "a"}')
    with pytest.raises(Outside, match="which readers take for a pattern"):
        check_data(str(data), of_images=False)


def test_an_image_without_a_member_for_its_path_is_one(data: Path) -> None:
    features = {"image": {"_type": "Image"}, "label": {"_type": "Value", "dtype": "int64"}}
    table = pa.table({"image": [{"bytes": picture()}] * 2, "label": [0, 1]})
    parquet(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), data)
    check_data(str(data), of_images=True)


def test_what_lies_beside_the_data_is_not_read(data: Path) -> None:
    parquet(as_struct(None, picture()), data)
    (data / "README.txt").write_bytes(gzip.compress(b"x"))
    (data / "metadata.json").write_text("no JSON")
    check_data(str(data), of_images=True)


def test_the_kinds_are_those_of_the_reader() -> None:
    assert list(KINDS.items()) == list(source._KINDS.items())


def test_odd_files_beside_a_configuration_are_refused(tmp_path: Path) -> None:
    for name, add in {"config.json": os.mkfifo, "x.safetensors": lambda path: path.symlink_to("/dev/zero")}.items():
        add(tmp_path / name)
        with pytest.raises(Outside, match=f"{name} is no regular file; take it away"):
            check_configuration(str(tmp_path))
        (tmp_path / name).unlink()


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


def test_a_hub_that_is_out_of_reach_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the cache of data sets is for the reader, and so is what a proxy may reach."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr("socket.create_connection", unreachable)
    with pytest.raises(
        FileNotFoundError, match="--data nofile: no such file or folder, and the hub, which may have it"
    ):
        check_reached("nofile")
    (tmp_path / "datasets" / "owner___name").mkdir(parents=True)
    check_reached("owner/name:configuration")
    check_reached(str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    check_reached("nofile")
