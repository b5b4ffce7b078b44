"""What was published and merged is what was measured; what is damaged is named and refused; nothing is overwritten."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from suite.cli import Exit
from suite.judge.claims import best
from suite.judge.evidence import Currency
from suite.judge.rows import Row, pairs
from suite.measure.missing import CampaignPlan, Pair, Wanted
from suite.record.job import Setting
from suite.record.schema import Code, Line, Renewal
from suite.record.seal import sealed
from suite.record.store import Records, Store, StoreError
from suite.topics.history.change_points import series
from suite.topics.publish import publishing
from suite.topics.publish.merging import merge
from tests.factories import (
    CODE,
    MACHINE,
    claim,
    conditions,
    counted,
    counters,
    every_kind,
    evidence,
    learned,
    put,
    renewal,
    side,
    timed,
    timings,
)
from tests.plugin import called, kept


def without_source(lines: Iterable[Line]) -> list[str]:
    return sorted(line.model_dump_json(exclude={"source"}) for line in lines)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
stacks = st.sampled_from(["baseline", "x", "lion+ckpt", "lora:rank=4,alpha=8+x", "a 'b'", "ünï"])
numbers = st.floats()  # NaN and infinities too
lines = st.one_of(
    st.builds(
        lambda id, stack, name, loss, reason, probe: learned(
            stack, final=1.0, id=id, reason=reason, probes={"p": probe, name: loss}
        ),
        names,
        stacks,
        names,
        numbers,
        names,
        numbers,
    ),
    st.builds(
        lambda id, flops, machine: counted("x", id=id, machine=MACHINE.model_copy(update={"name": machine})),
        names,
        st.integers(0, 2**62),
        names,
    ),
    st.builds(
        lambda id, pace, source: timed([side(), side("y", pace_s=pace)], id=id, source=source),
        names,
        st.floats(1e-6, 1e6),
        names,
    ),
    st.builds(lambda id, stack: renewal(id=id, stack=stack), names, stacks),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(lines, min_size=1, max_size=6, unique_by=lambda line: line.id))
def test_publishing_and_merging_is_the_identity(tmp_path_factory: pytest.TempPathFactory, measured: list[Line]) -> None:
    root = tmp_path_factory.mktemp("identity")
    sent = publishing.write(Records.of(measured), root / "sent")
    merged = merge([root / "sent"], root / "ours")
    assert (merged.known, merged.refused) == (0, [])
    assert {line.id: line.model_dump_json() for line in kept(root / "ours").values()} == {
        line.id: line.model_dump_json() for line in sent
    }
    own = {line.id: line for line in measured}
    for line in sent:
        old = own[line.id].model_copy(update={"source": own[line.id].source or "sent"})
        old = old.model_copy(update={"machine": line.machine}) if isinstance(old, Renewal) else old
        assert line.model_dump_json() == old.model_dump_json()


def test_machine_and_source_stay_on_every_row_through_other_hands(tmp_path: Path) -> None:
    publishing.write(Store(put(tmp_path / "alice", every_kind())).read()[0], tmp_path / "alice-records")
    merge([tmp_path / "alice-records"], tmp_path / "bob")
    own = learned("z", machine=MACHINE.model_copy(update={"name": "bobs-machine"}))
    publishing.write(Store(put(tmp_path / "bob", [own], "bobs-machine")).read()[0], tmp_path / "bob-records")
    merge([tmp_path / "bob-records"], tmp_path / "carol")
    origins = {(line.source, publishing.machine_of(line)): line.kind for line in kept(tmp_path / "carol").values()}
    assert origins.keys() == {("alice-records", MACHINE.name), ("bob-records", "bobs-machine")}
    for file in (tmp_path / "bob-records" / "data").glob("*.parquet"):
        rows = pq.read_table(file, columns=["source", "machine"]).to_pylist()
        assert all(row["source"] and row["machine"] for row in rows)


def test_the_key_of_this_machine_is_no_proof_that_something_ran_here(tmp_path: Path) -> None:
    """Records that name this machine, with its key and facts, stand beside ours and change none of them."""
    ours, forged = evidence("x"), evidence("x", final=1.0, pace_s=0.0025, points=[counters(flops=1)])
    theirs = [each.model_copy(update={"id": f"f{each.id}", "started": "2027-01-01T00:00:00+00:00"}) for each in forged]
    put(tmp_path / "ours", ours)
    before, of_before = rows_of(tmp_path / "ours"), series(Store(tmp_path / "ours").read()[0])
    merged = merge([put(tmp_path / "theirs", theirs)], tmp_path / "ours")
    assert len(merged.added) == len(theirs)
    after = rows_of(tmp_path / "ours")
    assert {name: row.metrics for name, row in before.items()} == {name: after[name].metrics for name in before}
    assert {name: row.records for name, row in before.items()} == {name: after[name].records for name in before}
    (other,) = after.keys() - before.keys()
    assert other == f"{MACHINE.name} of theirs" and after[other].board not in {row.board for row in before.values()}
    assert after[other].value("step_time").number < 0.2 < before[MACHINE.name].value("step_time").number
    assert len(best(claim(), after.values())) == 2, "a claim is judged for both, each in its own place"
    records = Store(tmp_path / "ours").read()[0]
    assert [each for each in series(records) if not each.source] == of_before, "and in no history of ours"


def rows_of(folder: Path) -> dict[str, Row]:
    return {row.machine.name: row for row in pairs(Store(folder).read()[0], lambda _: "baseline", lambda *_: CODE)}


def test_timings_that_were_merged_do_not_count_as_timed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.measure.missing.fingerprint", lambda *_: MACHINE)
    monkeypatch.setattr("suite.measure.missing.installed_code", lambda *_: CODE)
    monkeypatch.setattr("suite.measure.missing.conditions_of", lambda setting: conditions())
    pair = Pair(Setting(baseline="gpt"), "x", "baseline")
    put(tmp_path / "theirs", timings("x"))
    merge([tmp_path / "theirs"], tmp_path / "ours")
    assert CampaignPlan([pair], Store(tmp_path / "ours").read()[0], Wanted()).timed(pair) == []
    assert len(CampaignPlan([pair], Store(tmp_path / "theirs").read()[0], Wanted()).timed(pair)) == 3


def test_what_somebody_put_beside_merged_records_is_not_ours(tmp_path: Path) -> None:
    put(tmp_path / "ours", timings("x"), "merged")
    assert {each.source for each in Store(tmp_path / "ours").read()[0].timed} == {"merged"}


@pytest.mark.parametrize(("source", "current"), [("", ("", "theirs", "others")), ("theirs", ("theirs",))])
def test_a_renewal_holds_for_what_its_source_measured(source: str, current: tuple[str, ...]) -> None:
    renewed = renewal("x", source=source)
    now = Code(trajectory=renewed.new, counts="")
    currency = Currency.of([renewed, renewal("y", source="others")], lambda *_: now)
    assert {each for each in ("", "theirs", "others") if currency.has(learned("x", source=each))} == {*current}


def test_what_is_known_is_dropped_and_nothing_is_touched(tmp_path: Path) -> None:
    ours = put(tmp_path / "ours", every_kind())
    publishing.write(Store(ours).read()[0], tmp_path / "sent")
    before = contents(ours)
    merged = merge([tmp_path / "sent", tmp_path / "sent" / "data" / "learned.parquet"], ours)
    assert (merged.added, merged.refused) == ([], [])
    assert contents(ours) == before
    more = [learned("z", 5)]
    put(tmp_path / "copy", [*every_kind(), *more])
    assert without_source(merge([tmp_path / "copy"], ours).added) == without_source(more)
    assert {path: content for path, content in contents(ours).items() if path in before} == before
    assert kept(ours)[more[0].id].source == "copy"
    again = merge([tmp_path / "copy"], ours)
    assert (len(again.added), again.known) == (0, len(every_kind()) + 1)


def text(line: Line) -> str:
    return sealed(line.model_dump_json().encode()).decode()


def parquet(path: Path, texts: list[str | None], column: str = "record") -> Path:
    pq.write_table(pa.table({column: pa.array(texts, pa.string())}), path)
    return path


def test_damaged_lines_are_named_and_refused_and_the_others_taken(tmp_path: Path) -> None:
    good, here = learned("x", 1), learned("x", 2)
    ours = put(tmp_path / "ours", [here])
    other = here.model_copy(update={"cpu_s": 1.0})
    older = sealed(good.model_dump_json().replace('"schema_version":2', '"schema_version":1').encode()).decode()
    newer = sealed(good.model_dump_json().replace('"schema_version":2', '"schema_version":3').encode()).decode()
    idle = learned("x", 3, status="not_attached", reason="idle")
    texts = [
        text(good),
        text(good)[:200],
        None,
        "",
        older,
        newer,
        text(other),
        text(idle),
        '{"kind": "learned"}',
        text(good).replace('"seed":1', '"seed":7'),
        good.model_dump_json(),
    ]
    file = parquet(tmp_path / "x.parquet", texts)
    merged = merge([file], ours)
    assert [line.id for line in merged.added] == [good.id]
    reasons = {
        2: "damaged; it is left out, with lines 3, 4",
        5: "version 1 is older",
        6: "version 3 is newer",
        7: f"it has the id of another one here, {here.id}",
        8: "did not attach",
        9: "no schema version",
        10: "it was changed",
        11: "no checksum",
    }
    assert len(merged.refused) == len(reasons)
    for sentence, (row, reason) in zip(merged.refused, reasons.items()):
        assert sentence.startswith(f"{file}:{row}: ") and reason in sentence
    assert kept(ours)[here.id] == here


def test_a_file_of_another_schema_is_refused_in_one_sentence(tmp_path: Path) -> None:
    newer = [
        learned("x", seed).model_dump_json().replace('"schema_version":2', '"schema_version":3') for seed in range(3)
    ]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(sealed(line.encode()) for line in newer))
    merged = merge([tmp_path / "x.jsonl"], tmp_path / "ours")
    (sentence,) = merged.refused
    assert merged.left_out == 3
    assert sentence.startswith(f"{tmp_path / 'x.jsonl'}:1: ") and "version 3 is newer" in sentence
    assert sentence.endswith("it is left out, with lines 2, 3")


def test_a_file_that_is_none_stops_all(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    publishing.write(Records.of(every_kind()), sent)
    whole = (sent / "data" / "timed.parquet").read_bytes()
    (sent / "data" / "timed.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"timed\.parquet: it is damaged .* fetch it again"):
        merge([sent], tmp_path / "ours")
    with pytest.raises(ValueError, match="no text column 'record'"):
        merge([parquet(tmp_path / "y.parquet", ["a"], "other")], tmp_path / "ours")
    for path, sentence in {
        tmp_path / "nowhere": "there is no such file or folder",
        tmp_path / "ours": "is the results folder itself",
        tmp_path: "holds no records",
        sent / "README.md": r"records come as \.parquet",
    }.items():
        (tmp_path / "y.parquet").unlink(missing_ok=True)
        with pytest.raises(ValueError, match=sentence):
            merge([path], tmp_path / "ours")
    assert not kept(tmp_path / "ours")


def test_a_merge_that_is_cut_off_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = put(tmp_path / "ours", [learned("x", 1)])
    merge([put(tmp_path / "first", [learned("x", 2)])], ours)
    before = contents(ours)
    put(tmp_path / "second", [learned("x", 3), learned("x", 4)])
    monkeypatch.setattr(
        "suite.topics.publish.merging.os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full"))
    )
    with pytest.raises(OSError, match="full"):
        merge([tmp_path / "second"], ours)
    assert contents(ours) == before


def test_two_merges_at_once_do_not_lose_each_other_s_records(tmp_path: Path) -> None:
    put(tmp_path / "sent", [learned("x", 1)])
    with Store(tmp_path / "ours").writing("merged"), pytest.raises(StoreError, match="another run is writing"):
        merge([tmp_path / "sent"], tmp_path / "ours")


def test_the_commands_say_what_they_did(tmp_path: Path) -> None:
    ours, sent, theirs = put(tmp_path / "ours", every_kind()), tmp_path / "sent", tmp_path / "theirs"
    code, said, error = called("publish", "--to", sent, "--results", ours)
    count = len(every_kind())
    assert (code, said, error) == (Exit.FINE, f"{count} records of 1 machine, unsigned: {sent}\n", "")
    code, said, error = called("merge", sent, "--results", theirs)
    assert (code, said, error) == (Exit.FINE, f"{count} records added to {theirs}, 0 known already, unsigned\n", "")
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("{\n" + text(learned("z")) + "\n")
    code, said, error = called("merge", damaged, "--results", theirs, "--json")
    assert (code, json.loads(said)["added"]) == (Exit.USAGE, {"learned": 1})
    assert f"{damaged}:1: " in error and "it is left out" in error
    (tmp_path / "empty").mkdir()
    assert called("publish", "--to", tmp_path / "none", "--results", tmp_path / "empty")[0] == Exit.NOTHING
    assert called("publish", "--to", "s3://bucket", "--results", ours)[0] == Exit.USAGE
