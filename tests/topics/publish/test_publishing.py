"""A published data set is what its card says, in a folder and on the Hub; nothing that was published is lost."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

from suite.record.store import Records, Store
from suite.topics.publish import publishing
from suite.topics.publish.merging import merge
from suite.topics.publish.signing import STATEMENT
from tests.factories import MACHINE, every_kind, evidence, learned, put
from tests.plugin import called, kept


def test_the_card_names_every_table_column_machine_and_source(tmp_path: Path) -> None:
    publishing.write(Records.of(every_kind()), tmp_path / "sent")
    card = DatasetCard.load(tmp_path / "sent" / "README.md")
    assert (card.data.license, publishing.MARK in card.data.tags) == ("apache-2.0", True)
    configs = {each["config_name"]: each["data_files"] for each in card.data.to_dict()["configs"]}
    files = {path.stem for path in (tmp_path / "sent" / "data").iterdir()}
    assert configs.keys() == files == publishing.KINDS.keys()
    for kind, file in configs.items():
        section = re.search(rf"## `{kind}`\n(.*?)(?=\n## |\Z)", card.text, re.DOTALL)
        assert section
        described = re.findall(r"^\| `(\w+)` \| (text|integer|real) \|", section.group(1), re.MULTILINE)
        table = pq.read_table(tmp_path / "sent" / file)
        assert [name for name, _ in described] == table.column_names
        assert f"| `{kind}` | {len(table)} |" in card.text
    assert f"| sent | {MACHINE.name} | {len(every_kind())}" in card.text


def test_columns_say_what_the_record_says(tmp_path: Path) -> None:
    publishing.write(Records.of(evidence("x", seeds=1, replicates=1)), tmp_path)
    for kind in ("counted", "learned", "timed"):
        for row in pq.read_table(tmp_path / "data" / f"{kind}.parquet").to_pylist():
            record = json.loads(row["record"])
            assert {row[name] for name in ("id", "started")} == {record["id"], record["started"]}
            assert row["baseline"] == record["conditions"]["baseline"] and row["machine"] == record["machine"]["name"]
            if kind == "learned":
                assert (row["test_loss"], row["seed"]) == (record["final"]["loss"], record["seed"])
            if kind == "counted":
                assert row["flops"] == record["points"][0]["counters"]["flops"]
            if kind == "timed":
                assert (row["reference"], row["stacks"]) == ("baseline", "x")


def test_mlcommons_own_reader_reads_every_record_by_the_croissant(tmp_path: Path) -> None:
    mlcroissant = pytest.importorskip(
        "mlcroissant", reason="mlcroissant is not installed: pip install 'leantrain[validators]'"
    )
    publishing.write(Records.of(every_kind()), tmp_path / "sent")
    described = mlcroissant.Dataset(jsonld=str(tmp_path / "sent" / "croissant.json"))
    assert (list(described.metadata.ctx.issues.errors), list(described.metadata.ctx.issues.warnings)) == ([], [])
    assert {each.id for each in described.metadata.record_sets} == publishing.KINDS.keys()
    for kind in publishing.KINDS:
        table = pq.read_table(tmp_path / "sent" / "data" / f"{kind}.parquet").to_pylist()
        rows = list(described.records(kind))  # the files' hashes are checked before
        assert [row[f"{kind}/record"].decode() for row in rows] == [row["record"] for row in table]
        assert [row[f"{kind}/id"].decode() for row in rows] == [row["id"] for row in table]
    (tmp_path / "sent" / "data" / "learned.parquet").write_bytes(b"other")
    with pytest.raises(Exception, match=r"data/learned\.parquet"):
        next(iter(mlcroissant.Dataset(jsonld=str(tmp_path / "sent" / "croissant.json")).records("learned")))


def test_codemeta_says_which_software_measured(tmp_path: Path) -> None:
    models = pytest.importorskip("pydantic_codemeta", reason="not installed: pip install pydantic-codemeta")
    publishing.write(Records.of(every_kind()), tmp_path)
    known = models.CodeMetaV3.model_validate_json((tmp_path / "codemeta.json").read_bytes())
    assert (known.name, known.version) == ("leantrain", version("leantrain"))
    assert str(known.license) == "https://spdx.org/licenses/Apache-2.0"
    names = {each.name for each in known.software_requirements}
    assert {"torch", "transformers"} <= names and not {"pytest", "wandb"} & names


def test_the_ro_crate_names_every_file_by_its_hash_and_describes_all_that_it_refers_to(tmp_path: Path) -> None:
    """As its library and validator have it, of which neither is needed: pip install rocrate roc-validator."""
    publishing.write(Records.of([*every_kind(), learned("z", source="bob")]), tmp_path / "sent")
    crate = json.loads((tmp_path / "sent" / "ro-crate-metadata.json").read_bytes())
    known = {each["@id"]: each for each in crate["@graph"]}
    named = re.findall(r'\{"@id": "([^"]+)"\}', json.dumps(crate["@graph"]))
    assert crate["@context"] == f"{known['ro-crate-metadata.json']['conformsTo']['@id']}/context"
    assert {*named} - {"https://w3id.org/ro/crate/1.1"} <= known.keys() and len(known) == len(crate["@graph"])
    present = {path.relative_to(tmp_path / "sent").as_posix() for path in (tmp_path / "sent").rglob("*.*")}
    assert {part["@id"] for part in known["./"]["hasPart"]} == present - {"ro-crate-metadata.json"}
    for part in known["./"]["hasPart"]:
        content = (tmp_path / "sent" / part["@id"]).read_bytes()
        described = known[part["@id"]]
        assert (described["@type"], described["contentSize"]) == ("File", str(len(content)))
        assert described["sha256"] == hashlib.sha256(content).hexdigest()
    assert {known[each["@id"]]["name"] for each in known["./"]["author"]} == {"sent", "bob"}


def test_text_of_a_record_is_no_markup_in_the_card(tmp_path: Path) -> None:
    evil = learned().machine.model_copy(update={"name": "a|b](http://x)<script>\n# c"})
    publishing.write(Records.of([learned(machine=evil, source="![x](y)")]), tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert r"a\|b\](http&#58;//x)&lt;script&gt; \# c" in card and r"!\[x\](y)" in card


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# mine\n")
    with pytest.raises(ValueError, match="holds something else than published records"):
        publishing.write(Records.of(every_kind()), tmp_path)
    assert (tmp_path / "README.md").read_text() == "# mine\n" and not (tmp_path / "data").exists()


def test_a_publication_only_grows(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    publishing.write(Records.of([learned("x", 1), learned("x", 2)]), sent)
    before = {path: path.read_bytes() for path in sent.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"holds 1 records that the results do not have.*leantrain merge {sent}"):
        publishing.write(Records.of([learned("x", 2), learned("x", 3)]), sent)
    assert {path: path.read_bytes() for path in sent.rglob("*") if path.is_file()} == before
    publishing.write(Records.of([learned("x", seed) for seed in (1, 2, 3)]), sent)
    assert len(pq.read_table(sent / "data" / "learned.parquet")) == 3


# the Hub ------------------------------------------------------------------------------------------------------------


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as a first upload asks for; ``server.files`` are those of its commits."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.path == "/api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != "Bearer hf_test":
            return self._answer({"error": "Invalid username or password."}, 401)
        if self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))  # type: ignore[attr-defined]
            return self._answer({"url": f"http://{self.headers['Host']}/datasets/alice/records"})
        if "/preupload/" in self.path:
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return self._answer({"files": files})
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.server.files[line["value"]["path"]] = content  # type: ignore[attr-defined]
                if line["key"] == "deletedFile":
                    del self.server.files[line["value"]["path"]]  # type: ignore[attr-defined]
            url = f"http://{self.headers['Host']}/datasets/alice/records/commit/{'0' * 40}"
            return self._answer({"success": True, "commitOid": "0" * 40, "commitUrl": url})
        return self._answer({"error": f"not here: {self.path}"}, 404)

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            files = self.server.files.items()  # type: ignore[attr-defined]
            tree = [{"type": "file", "path": path, "size": len(data), "oid": "0" * 40} for path, data in files]
            return self._answer(tree)
        self._answer({"sha": "0" * 40, "id": "alice/records", "siblings": []})

    def _answer(self, values: object, status: int = 200) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.created = {}, []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()


def test_the_hub_gets_what_a_folder_would_and_merges_to_the_same(
    hub: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    ours = put(tmp_path / "ours", every_kind())
    code, said, error = called("publish", "--to", "hf://datasets/alice/records", "--results", ours)
    assert (code, error) == (0, "")
    assert said.startswith(f"{len(every_kind())} records of 1 machine, unsigned: ") and "alice/records" in said
    assert [each["type"] for each in hub.created] == ["dataset"]  # type: ignore[attr-defined]
    fetched = tmp_path / "fetched"
    for name, content in hub.files.items():  # type: ignore[attr-defined]
        (fetched / name).parent.mkdir(parents=True, exist_ok=True)
        (fetched / name).write_bytes(content)
    assert 'load_dataset("alice/records", "counted"' in (fetched / "README.md").read_text()
    merged = merge([fetched], tmp_path / "theirs")
    assert {line.source for line in merged.added} == {"alice/records"}
    assert kept(tmp_path / "theirs").keys() == {line.id for line in Store(ours).read()[0].lines}


def test_the_hub_keeps_no_signature_of_what_was_there_before(
    hub: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    hub.files |= {STATEMENT: b"{}"}  # type: ignore[attr-defined]
    publishing.upload(Records.of([learned()]), "alice/records")
    assert hub.files.keys() == publishing.files([learned()], "alice/records").keys()  # type: ignore[attr-defined]


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_hub_that_refuses_is_quoted_with_the_way_out(
    hub: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    ours = put(tmp_path / "ours", [learned()])
    code, _, error = called("publish", "--to", "hf://datasets/alice/records", "--results", ours)
    assert code == 2 and error.count("\n") == 1
    assert "the Hub did not take it: " in error and "hf auth login" in error
    code, _, error = called("publish", "--to", "hf://datasets/a/b/c", "--results", ours)
    assert code == 2 and "names no data set" in error


def test_a_hub_out_of_reach_is_no_matter_of_logging_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    ours = put(tmp_path / "ours", [learned()])
    code, _, error = called("publish", "--to", "hf://datasets/alice/records", "--results", ours)
    assert (code, error.count("\n")) == (2, 1) and "the Hub cannot be reached: " in error and "log in" not in error
