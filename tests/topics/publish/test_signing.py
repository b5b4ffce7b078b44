"""Who ran records is signed by a CI job and verified with Sigstore's own client; what is not so is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.cli import Exit
from suite.record.store import Records, Store
from suite.topics.publish import publishing
from suite.topics.publish.signing import STATEMENT, Signer
from tests.factories import every_kind, learned, put
from tests.plugin import called, kept

MISSING = "sigstore is not installed: pip install 'leantrain[sign]'"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """The trust configuration of a Sigstore of this machine, and records that a job of its CI published and signed."""
    pytest.importorskip("sigstore", reason=MISSING)
    from tests.local_sigstore import LocalSigstore, serving

    root, sigstore = tmp_path_factory.mktemp("signed"), LocalSigstore()
    with serving(sigstore) as job, pytest.MonkeyPatch.context() as patch:
        for variable, value in job.items():
            patch.setenv(variable, value)
        trust = root / "trust.json"
        trust.write_text(sigstore.trust())
        ours = put(root / "ours", every_kind())
        code, said, error = called("publish", "--to", root / "sent", "--sign", "--trust", trust, "--results", ours)
        assert (code, error) == (Exit.FINE, "") and ", signed: " in said
        yield trust, root / "sent"


@pytest.fixture
def sent(local: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(local[1], tmp_path / "sent"))


def merged(local: tuple[Path, Path], sent: Path, identity: str, *more: object) -> tuple[int, str, str]:
    results = sent.parent / "theirs"
    return called("merge", sent, "--require-signed", identity, "--trust", local[0], "--results", results, *more)


def refusal(local: tuple[Path, Path], sent: Path, identity: str) -> str:
    """Returns the one sentence with which a merge is refused that adds nothing."""
    code, said, error = merged(local, sent, identity)
    assert (code, said, error.count("\n")) == (Exit.USAGE, "", 1), error
    assert not kept(sent.parent / "theirs")
    return error


def test_what_a_job_signed_is_merged_in_its_name(local: tuple[Path, Path], sent: Path) -> None:
    from tests.local_sigstore import WORKFLOW

    code, said, error = merged(local, sent, WORKFLOW)
    assert (code, error) == (Exit.FINE, "") and said.endswith(f"0 known already, signed by {WORKFLOW}\n")
    assert len(kept(sent.parent / "theirs")) == len(every_kind())
    assert json.loads(merged(local, sent, WORKFLOW, "--json")[1])["signed"] == WORKFLOW
    assert f"leantrain merge FOLDER --require-signed {WORKFLOW}" in (sent / "README.md").read_text()
    statement = json.loads((sent / STATEMENT).read_text())
    assert statement["mediaType"] == "application/vnd.dev.sigstore.bundle.v0.3+json"


def test_signed_by_another_is_refused(local: tuple[Path, Path], sent: Path) -> None:
    from tests.local_sigstore import WORKFLOW

    assert f"it is signed by {WORKFLOW}, not by mallory@example.com" in refusal(local, sent, "mallory@example.com")


def test_another_authority_that_names_the_same_identity_is_refused(local: tuple[Path, Path], sent: Path) -> None:
    from tests.local_sigstore import WORKFLOW, LocalSigstore

    other = sent.parent / "other.json"
    other.write_text(LocalSigstore().trust())
    error = refusal((other, sent), sent, WORKFLOW)
    assert "it cannot be verified, failed to build timestamp certificate chain" in error


def test_other_bytes_than_the_signed_ones_are_refused(local: tuple[Path, Path], sent: Path) -> None:
    from tests.local_sigstore import WORKFLOW

    publishing.write(Records.of([learned("z")]), sent.parent / "forged" / "sent")
    shutil.copy(sent.parent / "forged" / "sent" / "data" / "learned.parquet", sent / "data" / "learned.parquet")
    assert f"learned.parquet: {WORKFLOW} signed other bytes; fetch it again" in refusal(local, sent, WORKFLOW)


def test_a_file_that_the_statement_does_not_name_is_refused(local: tuple[Path, Path], sent: Path) -> None:
    from tests.local_sigstore import WORKFLOW

    shutil.copy(put(sent.parent / "more", [learned("z")], "m") / "m" / "learned.jsonl", sent / "more.jsonl")
    assert f"more.jsonl: it is unsigned, {STATEMENT} beside it does not name it" in refusal(local, sent, WORKFLOW)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\0", b"[1]", b'{"mediaType": "x"}'])
def test_a_damaged_statement_is_refused(local: tuple[Path, Path], sent: Path, content: bytes) -> None:
    (sent / STATEMENT).write_bytes(content)
    assert f"{STATEMENT}: it is damaged, or no Sigstore bundle" in refusal(local, sent, "anybody")


def test_a_statement_with_another_payload_is_refused(local: tuple[Path, Path], sent: Path) -> None:
    from tests.local_sigstore import WORKFLOW, b64

    statement = json.loads((sent / STATEMENT).read_text())
    statement["dsseEnvelope"]["payload"] = b64(b"{}")
    (sent / STATEMENT).write_text(json.dumps(statement))
    assert "it cannot be verified, DSSE: invalid signature" in refusal(local, sent, WORKFLOW)


def test_a_signer_vouches_for_what_it_ran_alone(local: tuple[Path, Path], tmp_path: Path) -> None:
    """Records of others that it publishes again are left out, and named."""
    from tests.local_sigstore import WORKFLOW

    ours = put(tmp_path / "ours", [learned("x"), *(learned("y", seed, source="bob") for seed in (1, 2))])
    publishing.write(Store(ours).read()[0], tmp_path / "sent", Signer(local[0]))
    code, said, error = merged(local, tmp_path / "sent", WORKFLOW)
    assert code == Exit.USAGE and said.startswith("1 record added") and error.count("\n") == 1
    assert f"{WORKFLOW} signs what it ran, not what bob did; it is left out, with line 3" in error


def test_publishing_without_a_signature_takes_the_old_one_away(local: tuple[Path, Path], sent: Path) -> None:
    from tests.local_sigstore import WORKFLOW

    publishing.write(Records.of([*every_kind(), learned("new")]), sent)
    assert "**Unsigned**" in (sent / "README.md").read_text()
    assert f"is unsigned: it has no {STATEMENT}" in refusal(local, sent, WORKFLOW)


def test_what_is_unsigned_says_so(tmp_path: Path) -> None:
    ours = put(tmp_path / "ours", every_kind())
    assert ", unsigned: " in called("publish", "--to", tmp_path / "sent", "--results", ours)[1]
    assert called("merge", tmp_path / "sent", "--results", tmp_path / "theirs")[1].endswith("already, unsigned\n")
    for path in (tmp_path / "sent", ours):
        code, _, error = called("merge", path, "--require-signed", "anybody", "--results", tmp_path / "none")
        assert (code, error.count("\n")) == (Exit.USAGE, 1) and f"{path} is unsigned: " in error
    one = tmp_path / "sent" / "data" / "learned.parquet"
    code, _, error = called("merge", one, "--require-signed", "anybody", "--results", tmp_path / "none")
    assert (code, error.count("\n")) == (Exit.USAGE, 1) and "name its folder" in error
    assert not kept(tmp_path / "none")


def test_a_statement_that_nobody_asked_about_is_not_called_verified(
    local: tuple[Path, Path], sent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert called("merge", sent, "--results", sent.parent / "theirs")[1].endswith("already, signature not verified\n")


def test_without_sigstore_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)
    ours = put(tmp_path / "ours", every_kind())
    code, _, error = called("publish", "--to", tmp_path / "sent", "--sign", "--results", ours)
    assert (code, error.count("\n")) == (Exit.USAGE, 1) and "pip install 'leantrain[sign]'" in error
    assert not (tmp_path / "sent").exists()
    publishing.write(Records.of(every_kind()), tmp_path / "sent")
    (tmp_path / "sent" / STATEMENT).write_text("{}")
    code, _, error = called("merge", tmp_path / "sent", "--require-signed", "a", "--results", tmp_path / "theirs")
    assert (code, error.count("\n")) == (Exit.USAGE, 1) and "pip install 'leantrain[sign]'" in error


def test_signing_needs_a_job_and_servers_that_answer(
    local: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = put(tmp_path / "ours", every_kind())
    place = ("publish", "--to", tmp_path / "sent", "--sign", "--results", ours, "--trust")
    gone = tmp_path / "gone.json"
    gone.write_text(local[0].read_text().replace("http://127.0.0.1:", "http://127.0.0.1:1/"))
    (tmp_path / "none.json").write_text("{}")
    for trust, why in ((gone, "Sigstore did not sign"), (tmp_path / "none.json", "is no trust configuration")):
        code, _, error = called(*place, trust)
        assert (code, error.count("\n")) == (Exit.USAGE, 1) and why in error
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN")
    code, _, error = called(*place, local[0])
    assert (code, error.count("\n")) == (Exit.USAGE, 1) and "give it the permission id-token: write" in error
    monkeypatch.delenv("GITHUB_ACTIONS")
    code, _, error = called(*place, local[0])
    assert (code, error.count("\n")) == (Exit.USAGE, 1) and "--sign needs the identity of a CI job" in error
    assert not (tmp_path / "sent").exists()
