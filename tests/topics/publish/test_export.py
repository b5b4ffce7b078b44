"""What other tools read back is what the rows say: pandas and huggingface_hub are the readers."""

from __future__ import annotations

import io
import json
import math
import sys

import pandas
import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from suite.cli import Exit, app
from suite.judge.metrics import METRICS
from suite.judge.rows import as_dict
from suite.record.schema import Energy
from suite.record.store import Store
from suite.record.text import FORMULA_STARTS
from suite.topics.publish.export import TidyTable, as_csv, as_parquet, model_card, replicates, row_values
from tests.factories import MACHINE, conditions, evidence, learned, records
from tests.show.samples import shown

EVIL = "=HYPERLINK(\"http://example.org\";'x')"
JOULES = Energy(joules_per_step=2.0, kind="measured_counter", method="rapl", scope="cpu_package")


def several():
    """Rows with everything that a table must carry: failures, unverified evidence, probes, energy, a bound, an unknown,
    a formula."""
    x = [
        each.model_copy(
            update={"contenders": [one.model_copy(update={"energy": JOULES}) for one in each.contenders]}
            if each.kind == "timed"
            else {}
        )
        for each in evidence("x", pace_s=0.01, probes={"x.size": 2.5})
    ]
    bad = [learned(seed=3), learned("x", 3, status="crashed", reason=EVIL)]
    return shown(x, bad, evidence("y", seeds=2, final=1.3), changed=["x"])


def frame(content: str | bytes) -> pandas.DataFrame:
    """As somebody reads it who knows nothing of leantrain."""
    if isinstance(content, bytes):
        return pandas.read_parquet(io.BytesIO(content))
    return pandas.read_csv(io.StringIO(content), float_precision="round_trip")


@pytest.fixture(scope="module", params=["csv", "parquet"])
def read(request):
    return lambda table: frame(as_csv(table) if request.param == "csv" else as_parquet(table))


def same(cell, expected):
    if expected is None or expected == "":
        return cell in (None, "") or pandas.isna(cell)
    return cell == expected


def test_every_number_of_every_row_comes_back_exactly(read):
    rows = several()
    values = read(row_values(rows)).set_index(["stack", "metric"])
    for row in rows:
        for name, value in as_dict(row)["metrics"].items():
            line = values.loc[(row.stack, name)]
            interval = value["interval"] or dict.fromkeys(("low", "high", "level", "n", "method"))
            expected = {
                "kind": value["kind"],
                "value": value["ratio"],
                "reason": value["reason"],
                "note": value["note"],
            }
            expected |= {each: interval[each] for each in ("low", "high", "level", "n", "method")}
            expected |= {"reference_value": value["reference"], "contender_value": value["contender"]}
            expected |= {"evidence": METRICS[name].kind} if name in METRICS else {}
            expected |= {"at_most": value["at_most"] if value["kind"] == "bound" else None}
            for column, number in expected.items():
                assert same(line[column], number), (row.stack, name, column)
    assert values.loc[("y", "time_to_quality")]["kind"] == "bound" and values.loc[("y", "time_to_quality")]["at_most"]
    assert len(values) == sum(len(row.metrics) + len(row.probes) + (row.setup is not None) for row in rows)


def test_a_line_says_where_it_comes_from(read):
    x, y = sorted(several(), key=lambda row: row.stack)
    values = read(row_values([x, y]))
    line = values[(values["stack"] == "x") & (values.metric == "step_time")].iloc[0]
    assert (line.machine, line.data_sha256, line.steps) == (MACHINE.name, conditions().data_sha256, 200)
    assert line.learned_on == MACHINE.name and line.timings == 3
    assert line.records.split() == list(x.records)
    assert (line.seeds, str(line.failed_seeds)) in (("0 1 2", "3"), ("0 1 2", "3.0"))
    assert line.unverified == "learned timed" and EVIL in line.notes and same(line.newer_version, None)
    assert same(values[values["stack"] == "y"].iloc[0].unverified, None)
    probe = values[values.metric == "probe.x.size"].iloc[0]
    assert (probe.scale, probe.evidence, probe.value, probe.n) == ("value", "learned", 2.5, 3)
    assert not (values[values.kind == "unavailable"].value == 0).any()
    assert values[values.kind == "unavailable"].value.isna().all()


def test_every_piece_of_evidence_comes_back_failures_too(read):
    rows = several()
    x = next(row for row in rows if row.stack == "x")
    table = read(replicates(rows))
    ours = table[table["stack"] == "x"]
    assert dict(ours.evidence.value_counts()) == {"counted": 1, "learned": 4, "timed": 3}
    assert set(" ".join(ours[ours.status == "ok"].records).split()) | set(x.records[6:8]) == set(x.records)
    seeds = ours[(ours.evidence == "learned") & (ours.status == "ok")].set_index("replicate")
    for pair in x.known.learned:
        line = seeds.loc[pair.seed]
        assert (
            line["contender_probe.x.size"] == 2.5 and line["contender_final.accuracy"] == 1 / pair.contender.final.loss
        )
        assert (line.reference_loss, line.contender_loss) == (pair.reference.final.loss, pair.contender.final.loss)
        assert line.loss_ratio == pytest.approx(line.contender_loss / line.reference_loss)
        assert math.isfinite(line.equivalent_budget_ratio) and pandas.isna(line.step_time_ratio)
    timings = ours[ours.evidence == "timed"].set_index("replicate")
    for pair in x.known.timed:
        line = timings.loc[pair.replicate]
        assert line.records == pair.record
        assert line.contender_setup_s == pair.contender.setup_s
        assert line.training_time_ratio == math.exp(pair.training_log_ratio)
        assert line.contender_step_s / line.reference_step_s == pytest.approx(line.step_time_ratio)
        assert line.contender_energy_joules_per_step == 2.0 and pandas.isna(line.contender_loss)
    counted = ours[ours.evidence == "counted"].iloc[0]
    assert counted.reference_flops == 10**9 and counted["contender_peak.parameters_bytes"] == 2**20
    crashed = ours[ours.status == "crashed"].iloc[0]
    assert (crashed.evidence, crashed.replicate, crashed.failed_side) == ("learned", 3, "x")
    assert pandas.isna(crashed.loss_ratio) and pandas.isna(crashed.reference_steps)


def test_parquet_columns_have_one_type_whatever_the_lines_hold():
    whole, empty = (pandas.read_parquet(io.BytesIO(as_parquet(row_values(rows)))) for rows in (several(), []))
    assert list(whole) == list(empty)
    assert len(empty) == 0
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(io.BytesIO(as_parquet(row_values(rows)))) for rows in (several(), several()[:1], [])]
    assert schemas[0].equals(schemas[1]) and schemas[0].equals(schemas[2])


def test_a_formula_is_disarmed_in_csv_and_intact_in_parquet():
    table = replicates(several())
    assert EVIL in list(frame(as_parquet(table)).reason)
    assert f"'{EVIL}" in list(frame(as_csv(table)).reason)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.lists(
        st.tuples(
            TEXT | st.sampled_from(FORMULA_STARTS).flatmap(lambda start: TEXT.map(lambda t: start + t)),
            st.none() | st.floats(allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
    )
)
def test_any_text_and_number_survive_csv_and_no_text_starts_a_formula(cells):
    table = TidyTable({"text": "text", "real": "real"}, [{"text": text, "real": real} for text, real in cells])
    read = pandas.read_csv(
        io.StringIO(as_csv(table), newline=""),
        keep_default_na=False,
        na_values={"real": [""]},
        dtype={"text": str, "real": float},
        float_precision="round_trip",
        skip_blank_lines=False,
    )
    assert len(read) == len(cells)
    for (text, real), back, number in zip(cells, read.text, read.real, strict=True):
        assert not back.startswith(FORMULA_STARTS)
        assert back == (f"'{text}" if text.startswith(FORMULA_STARTS) else text)
        assert math.isnan(number) if real is None else number == real


def test_negative_numbers_stay_numbers():
    assert as_csv(TidyTable({"a": "real", "b": "integer"}, [{"a": -1.5, "b": -2}])) == "a,b\r\n-1.5,-2\r\n"


# model cards --------------------------------------------------------------------------------------------------------


def results(card: str):
    return {each.metric_type: each for each in ModelCard(card).data.eval_results}


def test_hugging_face_s_own_parser_reads_the_card_back():
    (row,) = shown(evidence("x"), changed=["x"])
    card = model_card([row])
    found = results(card)
    assert ModelCard(card).data.model_name == "x on gpt"
    known = {name: value for name, value in row.metrics.items() if value.known}
    assert found.keys() == {f"{name.removeprefix('final.')}_ratio" for name in known} | {"loss", "accuracy"}
    for name, value in known.items():
        each = found[f"{name.removeprefix('final.')}_ratio"]
        assert each.metric_value == value.number
        assert each.metric_args["kind"] == value.kind
        if value.interval:
            assert (each.metric_args["low"], each.metric_args["high"]) == (value.interval.low, value.interval.high)
        assert each.metric_args["records"] == list(row.records) and each.metric_args["seeds"] == [0, 1, 2]
        assert each.metric_args["unverified"] == ["learned", "timed"] and each.metric_args["timings"] == 3
        assert each.metric_args["machine"] == each.metric_args["learned_on"] == MACHINE.name
        assert each.dataset_args == {"sha256": row.conditions.data_sha256}
        assert each.task_type == "text-generation"
    assert found["loss"].metric_value == row.metrics["loss"].contender
    assert "energy_ratio" not in found  # unknown, hence absent
    (bound,) = shown(evidence("x", final=1.3))
    assert "time_to_quality_ratio" not in results(model_card([bound]))
    assert "verified:" not in card.replace("unverified:", "")


def test_a_card_keeps_what_is_not_ours_and_takes_our_results_once():
    (row,) = shown(evidence("x", seeds=2))
    mine = "---\nlicense: mit\nmodel-index:\n- name: my-model\n  results:\n  - task: {type: text-generation}\n"
    mine += "    dataset: {name: Beans, type: beans}\n    metrics:\n    - {type: accuracy, value: 0.9}\n---\n# Mine\n"
    once = model_card([row], mine)
    twice = model_card([row], once)
    assert twice == once
    read = ModelCard(once)
    assert read.data.license == "mit" and read.data.model_name == "my-model"
    assert read.text.strip() == "# Mine"
    assert 0.9 in [each.metric_value for each in read.data.eval_results] and "loss" in results(once)


def test_a_card_of_several_models_is_refused():
    with pytest.raises(ValueError, match="choose with -t and -b among x on gpt, y on gpt"):
        model_card(several())


# the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path):
    folder = tmp_path / "results"
    for each in records(evidence("lion", seeds=2), evidence("sam", seeds=2)).lines:
        Store(folder).append(each, MACHINE.name)
    return folder


def export(stored, *arguments):
    return CliRunner().invoke(app, ["leaderboard", "--results", str(stored), *map(str, arguments)])


def test_the_command_writes_what_is_chosen(stored, tmp_path):
    printed = export(stored, "--format", "csv", "-t", "lion")
    assert set(frame(printed.stdout)["stack"]) == {"lion"}
    path = tmp_path / "evidence.parquet"
    assert export(stored, "--table", "replicates", "--write", path).exit_code == Exit.FINE
    written = frame(path.read_bytes())
    assert dict(written[["stack", "evidence"]].value_counts()) == {
        (stack, kind): count
        for stack in ("lion", "sam")
        for kind, count in (("timed", 3), ("learned", 2), ("counted", 1))
    }
    readme = tmp_path / "README.md"
    readme.write_text("---\nlicense: mit\n---\n# Mine\n")
    assert export(stored, "--format", "model-index", "-t", "lion", "--write", readme).exit_code == Exit.FINE
    assert ModelCard.load(readme).data.license == "mit" and "loss" in results(readme.read_text())


def test_markdown_of_all_records_is_a_front_page_with_its_boards_beside_the_records(stored, tmp_path):
    page = tmp_path / "pages" / "board.md"
    assert export(stored, "--write", page).exit_code == Exit.FINE
    links = [line for line in page.read_text().splitlines() if line.startswith("- [gpt]")]
    assert "(../results/boards/gpt.md)" in links[0]
    boards = stored / "boards" / "gpt.md"
    assert "| `lion`" in boards.read_text() and (stored / "boards" / "claims.md").exists()
    before = boards.read_text()
    assert export(stored, "--write", page, "-t", "lion").exit_code == Exit.USAGE  # other rows take no place unasked
    assert export(stored, "--write", page, "-t", "lion", "--replace").exit_code == Exit.FINE  # one page of its own
    assert "## gpt · modern" in page.read_text() and boards.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--format", "parket"), Exit.USAGE, "no format is called 'parket'; did you mean parquet"),
        (("--table", "row"), Exit.USAGE, "did you mean rows"),
        (("-t", "lionn"), Exit.USAGE, "did you mean lion"),
        (("--format", "parquet"), Exit.USAGE, "name one with --write"),
        (("--format", "model-index"), Exit.USAGE, "choose with -t and -b"),
        (("-t", "adamw"), Exit.NOTHING, "measure some with"),
    ],
)
def test_what_cannot_be_exported_gets_one_sentence(stored, arguments, code, message):
    done = export(stored, *arguments, "--json")
    assert done.exit_code == code
    assert message in done.stderr
    assert json.loads(done.stdout)["exit_code"] == code


def test_missing_pyarrow_is_said_with_its_extra_and_leaves_no_file(stored, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = export(stored, "--write", tmp_path / "x.parquet")
    assert done.exit_code == Exit.USAGE
    assert "pip install 'leantrain[parquet]'" in done.stderr
    assert not list(tmp_path.glob("*parquet*"))
