import errno
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.judge import rows as results
from suite.record import store as module
from suite.record.schema import SCHEMA_VERSION, Renewal, parse
from suite.record.seal import sealed
from suite.record.store import Records, Store, StoreError
from suite.topics.history import change_points as history
from tests.factories import CODE, MACHINE, counted, counters, evidence, learned, machine, timings


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "results")
    with made.writing(MACHINE.name):
        yield made


def seeds(count, **changes):
    return [learned("x", seed, **changes) for seed in range(count)]


def put(store, *lines):
    for each in lines:
        store.append(each, MACHINE.name)


def path_of(store, kind="learned", machine=MACHINE.name):
    return store.path(machine, kind)


def test_every_kind_is_read_back_in_order_of_time(store):
    lines = [
        *evidence("x"),
        Renewal(id="r", started="2026-01-01T00:00:00+00:00", family="k", stack="x", old="a", new="b"),
    ]
    put(store, *reversed(lines))
    records, problems = store.read()
    assert not problems
    assert {each.id for each in records.lines} == {each.id for each in lines}
    for each in (records.counted, records.learned, records.timed):
        assert [line.started for line in each] == sorted(line.started for line in each)
    assert sorted(each.name for each in path_of(store).parent.glob("*.jsonl")) == [
        "counted.jsonl",
        "learned.jsonl",
        "timed.jsonl",
    ]


def test_numbers_that_are_not_finite_come_back(store):
    put(store, learned("x", probes={"x.ratio": float("inf")}, train_loss=[1.0, float("nan")]))
    records, problems = store.read()
    assert not problems
    (back,) = records.learned
    assert back.probes == {"x.ratio": float("inf")}
    assert back.train_loss[1] != back.train_loss[1]


def test_folders_of_two_machines_merge_with_cat_and_no_record_counts_twice(store, tmp_path):
    here, there = seeds(2), [learned("y")]
    put(store, *here)
    elsewhere = tmp_path / "results" / "other" / "learned.jsonl"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(sealed(there[0].model_dump_json().encode()) + b"\n" + path_of(store).read_bytes())
    records, problems = store.read()
    assert not problems
    assert sorted(each.id for each in records.lines) == sorted(each.id for each in here + there)


def test_damaged_lines_are_named_left_out_and_left_in_place(store):
    made = seeds(2)
    put(store, made[0])
    path = path_of(store)
    good = path.read_bytes()
    path.write_bytes(good[:100] + b"\n" + b"\xff\xfe\x00\n" + b"[1, 2]\n" + b"null\n" + b"{}\n" + b"\n" + good)
    before = path.read_bytes()
    records, problems = store.read()
    assert records.learned == made[:1]
    damaged, nameless = problems
    assert damaged.startswith(f"{path}:1: ") and damaged.endswith("left in place, with lines 2, 3, 4")
    assert nameless.startswith(f"{path}:5: ")
    put(store, made[1])
    assert path.read_bytes().startswith(before)
    assert store.read()[0].learned == made


def test_a_line_that_a_crash_cut_off_does_not_damage_the_next(store):
    made = seeds(2)
    put(store, made[0])
    path = path_of(store)
    path.write_bytes(path.read_bytes() + made[1].model_dump_json().encode()[:50])
    put(store, made[1])
    records, problems = store.read()
    assert records.learned == made
    assert len(problems) == 1


def test_a_newer_schema_asks_for_an_update():
    newer = json.loads(learned("x").model_dump_json()) | {"schema_version": SCHEMA_VERSION + 1, "new": 1}
    with pytest.raises(ValueError, match=f"{SCHEMA_VERSION + 1} is newer than {SCHEMA_VERSION}; update leantrain"):
        parse(json.dumps(newer))


def test_a_file_of_tomorrow_s_schema_gets_one_sentence(store):
    path = path_of(store).with_name("records.jsonl")
    newer = json.loads(learned("x").model_dump_json()) | {"schema_version": SCHEMA_VERSION + 1}
    path.write_bytes((sealed(json.dumps(newer).encode()) + b"\n") * 9)
    records, (problem,) = store.read()
    assert not records.lines and problem.startswith(f"{path}:1: ")
    assert "update leantrain to read it" in problem and problem.endswith("with 8 more of its lines")


def test_a_file_of_an_older_schema_is_refused_once_and_says_what_to_do(store):
    put(store, *seeds(2))
    path = path_of(store).with_name("records.jsonl")
    path.write_text('{"schema_version": 1, "id": "a"}\n' * 3)
    records, problems = store.read()
    assert len(records.learned) == 2
    assert problems == [
        f"{path}:1: schema version 1 is older than 2 and cannot be read any more, nor can 2 "
        "more of its lines; delete them and measure again with: leantrain run"
    ]


def test_an_unreadable_field_is_named():
    wrong = json.loads(learned("x").model_dump_json())
    wrong["curve"][1]["loss"] = "soon"
    with pytest.raises(ValueError, match=r"curve\.1\.loss"):
        parse(json.dumps(wrong))


@given(st.one_of(st.binary(), st.text(), st.recursive(st.none() | st.integers(), st.lists).map(json.dumps)))
def test_no_line_raises_anything_but_one_sentence(line):
    with pytest.raises(ValueError) as error:
        parse(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("written_before", [0, 10, 1000])
def test_a_full_disk_costs_this_piece_and_nothing_else(store, monkeypatch, written_before):
    made = seeds(2)
    put(store, made[0])
    before = path_of(store).read_bytes()
    write, left = os.write, written_before

    def full(handle, data):
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(handle, data[:left])  # a short write first, as the kernel does when little room is left
        left -= count
        return count

    monkeypatch.setattr(module.os, "write", full)
    with pytest.raises(StoreError, match="the disk is full; what was measured before is kept"):
        put(store, made[1])
    monkeypatch.undo()
    assert path_of(store).read_bytes() == before
    put(store, made[1])
    assert store.read() == (Records.of(made), [])


def test_a_real_limit_of_the_kernel_leaves_whole_lines(store):
    """With RLIMIT_FSIZE the kernel itself writes half of the line and then refuses."""
    made = seeds(2)
    put(store, made[0])
    before = path_of(store).read_bytes()
    room = len(before) + 500
    code = (
        "import sys; from pathlib import Path; from suite.record.schema import parse\n"
        "from suite.record.store import Store, StoreError\n"
        "try: Store(Path(sys.argv[1])).append(parse(sys.stdin.buffer.read()), sys.argv[2])\n"
        "except StoreError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(store.folder), MACHINE.name],
        input=made[1].model_dump_json().encode(),
        capture_output=True,
        check=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert b"cannot write" in done.stdout
    assert path_of(store).read_bytes() == before


def second_writer(folder: Path) -> str:
    code = (
        "import sys; from pathlib import Path; from suite.record.store import Store, StoreError\n"
        "try:\n"
        "    with Store(Path(sys.argv[1])).writing(sys.argv[2]): print('writing')\n"
        "except StoreError as error: print(error)"
    )
    arguments = [sys.executable, "-c", code, str(folder), MACHINE.name]
    return subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_second_process_cannot_write_to_the_same_folder(tmp_path):
    store = Store(tmp_path)
    with store.writing(MACHINE.name):
        said = second_writer(tmp_path)
        assert "another run is writing" in said
        assert "--results" in said
        put(store, learned("x"))
    assert second_writer(tmp_path) == "writing\n"


def test_the_lock_of_a_process_that_died_holds_nobody(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from suite.record.store import Store\n"
        "with Store(Path(sys.argv[1])).writing(sys.argv[2]): os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path), MACHINE.name], check=False, timeout=60)
    with Store(tmp_path).writing(MACHINE.name):
        pass


def test_a_folder_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="choose another folder with --results"), Store(tmp_path / "file").writing("m"):
        pass


# whatever stands in a folder


GOOD = seeds(2)
BENT = [learned("x", 7), timings("x", 1)[0], evidence("x")[1]]
CONTENTS = [each.model_dump_json().encode() for each in GOOD]
LINES = [sealed(each) for each in CONTENTS]
NASTY = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        10**400,
        -(10**30),
        2**63 - 1,
        1e308,
        -1e308,
        5e-324,
        "NaN",
        "Infinity",
        "-Infinity",
        "",
        "x",
        "\n\x1b[31m",
        "</script>",
        "\u2028",
        "9" * 5000,
        [],
        [[]],
        {},
        {"": None},
        [[0.0, 0.0]] * 40,
        [[1e308, 1e308]] * 40,
        [[5e-324, 5e-324]] * 40,
    ]
)


@st.composite
def bent(draw) -> bytes:
    """A record's line with one field, however deep, made another value, left out, or joined by an unknown one."""
    record = json.loads(draw(st.sampled_from(BENT)).model_dump_json()) | {"id": "bent"}
    place = record
    while True:
        key = draw(st.sampled_from(sorted(place))) if isinstance(place, dict) else draw(st.integers(0, len(place) - 1))
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner and draw(st.booleans())):
            break
        place = inner
    how = draw(st.sampled_from(["value", "value", "value", "missing", "unknown"]))
    if how == "missing":
        del place[key]
    elif how == "unknown" and isinstance(place, dict):
        place["\n" + str(key)] = inner
    else:
        place[key] = draw(NASTY)
    return sealed(json.dumps(record).encode())


def folder_with(folder: Path, line: bytes) -> tuple[Store, bytes]:
    """A store whose file has the line between two good ones."""
    path = Store(folder).path(MACHINE.name, "learned")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join([LINES[0], line, LINES[1], b""]))
    return Store(folder), path.read_bytes()


def read_all(line: bytes) -> tuple[Records, list[str]]:
    """What a folder with this line gives; checks that nothing else in it suffers."""
    with tempfile.TemporaryDirectory() as folder:
        store, before = folder_with(Path(folder), line)
        records, problems = store.read()
        assert path_of(store).read_bytes() == before
    assert [each for each in records.learned if each in GOOD] == GOOD
    assert all(problem.isprintable() and ":2: " in problem and len(problem) < 1000 for problem in problems)
    assert len(records.lines) + len(problems) <= 3
    return records, problems


@settings(max_examples=100, deadline=None)
@given(bent())
def test_a_bent_record_is_named_or_shown_and_costs_the_others_nothing(line):
    from suite.topics.board import html, markdown
    from suite.topics.board.report import Report

    records, problems = read_all(line)
    assert len(records.lines) + len(problems) == 3
    rows = results.pairs(records, lambda stack: "baseline")
    report = Report(rows, problems)
    for page in (html.render(report), markdown.render(report)):
        assert page.encode()
    history.series(records)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(LINES[0]) - 1), st.binary(max_size=3))
def test_a_line_cut_off_or_hit_anywhere_costs_the_others_nothing(place, hit):
    records, problems = read_all(LINES[0][:place])
    assert len(problems) == bool(place) and records.lines == GOOD
    read_all(LINES[0][:place] + hit.replace(b"\n", b"") + LINES[0][place + 1 :])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"schema_version": 999999999999999999999, "id": 1}', "a whole number beyond 64 bits"),
        (b'{"schema_version": 3}', "schema version 3 is newer than 2; update leantrain"),
        (b'{"schema_version": "2"}', "names no schema version"),
        (b"{}", "names no schema version"),
        (b"[" * 100_000, "it is damaged"),
        (b'{"schema_version": NaN}', "names no schema version"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "a whole number beyond 64 bits"),
        (sealed(CONTENTS[0].replace(b'"seed":0', b'"seed":0,"s\\u001b[2J\\need":0')), r"s\x1b[2J\need"),
        (sealed(CONTENTS[0].replace(b'"seed":0', b'"seed":0,"seed":1')), "seed stands twice"),
        (sealed(CONTENTS[0].replace(b'"schema_version":2', b'"schema_version":"2"')), "names no schema version"),
        (sealed(CONTENTS[0].replace(b'"schema_version":2', b'"schema_version":true')), "names no schema version"),
        (sealed(CONTENTS[0].replace(b"2026-01-01T00:00:00+00:00", b"2026-01-01T00:00:00")), "its offset from UTC"),
        (sealed(CONTENTS[0].replace(b"2026-01-01T00:00:00+00:00", b"yesterday")), "a time of ISO 8601"),
        (sealed(CONTENTS[0].replace(b"2026-01-01T00:00:00+00:00", b"9999-12-31T23:59:59-14:00")), "a time of ISO 8601"),
        (LINES[0].replace(b'"seed":0', b'"seed":1'), "its checksum is of other content"),
    ],
)
def test_what_is_wrong_with_a_line_is_one_plain_sentence(line, words):
    _, (problem,) = read_all(line)
    assert words in problem
    assert problem.endswith("the line is left out and left in place")


def test_of_two_records_with_one_id_the_first_counts_and_the_other_is_named():
    other = json.loads(CONTENTS[0]) | {"seed": 5}
    records, (problem,) = read_all(sealed(json.dumps(other).encode()))
    assert records.lines == GOOD
    assert f"has the id of another one, {GOOD[0].id}" in problem
    assert read_all(LINES[0]) == (Records.of(GOOD), [])  # the same line twice is the same record


@pytest.fixture
def as_nobody():
    """Whoever runs the tests, a user whom permissions bind, and a folder that this user can reach."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        store, _ = folder_with(folder / "results", b"")
        yield store
        if os.geteuid() != os.getuid():
            os.seteuid(os.getuid())
        for each in (folder / "results", path_of(store).parent):
            each.chmod(0o755)


def become_nobody() -> None:
    if os.getuid() == 0:
        os.seteuid(65534)


def test_a_read_only_folder_is_read_and_refuses_to_be_written(as_nobody):
    path = path_of(as_nobody)
    path.chmod(0o444)
    path.parent.chmod(0o555)
    as_nobody.folder.chmod(0o555)
    become_nobody()
    assert as_nobody.read() == (Records.of(GOOD), [])
    with pytest.raises(StoreError, match=r"cannot write to .*choose another folder"), as_nobody.writing(MACHINE.name):
        pass
    for name in (MACHINE.name, "another"):
        with pytest.raises(StoreError, match="this one is not kept"):
            as_nobody.append(GOOD[0], name)
    assert as_nobody.read() == (Records.of(GOOD), [])


def test_a_file_that_must_not_be_read_is_named_and_the_others_are_read(as_nobody):
    other = path_of(as_nobody, machine="zzz")
    other.parent.mkdir()
    other.write_bytes(LINES[0])
    other.chmod(0)
    become_nobody()
    records, problems = as_nobody.read()
    assert records.lines == GOOD
    assert problems == [f"{other}: cannot be read: Permission denied; its records are left out"]


def test_no_byte_of_a_record_changes_unseen(tmp_path):
    """Every seventh byte of a line, and the end of the one before it, becomes another one."""
    coin = random.Random(0)
    store, before = folder_with(tmp_path, sealed(learned("y").model_dump_json().encode()))
    path = path_of(store)
    for place in range(len(LINES[0]), len(before) - len(LINES[1]) - 1, 7):
        path.write_bytes(before[:place] + bytes([(before[place] + coin.randrange(1, 256)) % 256]) + before[place + 1 :])
        assert store.read()[1], f"byte {place} changed unseen"


def test_lines_without_a_checksum_are_left_out_until_somebody_vouches_for_them(store):
    path = path_of(store)
    path.write_bytes(b"\n".join([*CONTENTS, b""]))
    records, (problem,) = store.read()
    assert not records.lines
    assert problem == (
        f"{path}: 2 of its lines have no checksum and are left out; if you trust them, add it with: "
        f"python -m suite.record.seal {path}"
    )
    command = [sys.executable, "-m", "suite.record.seal", str(path)]
    for added in (2, 0):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == f"{path}: {added} lines got a checksum, which shows damage, not who measured\n"
        assert store.read() == (Records.of(GOOD), [])
    path.write_bytes(damaged := path.read_bytes() + CONTENTS[0][:40] + b"\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"{path}:3: not a evidence: it is damaged" in done.stderr
    assert path.read_bytes() == damaged


def test_the_newer_record_is_the_one_that_was_started_later_wherever_that_was(store):
    started = ["2026-01-01T11:30:00+02:00", "2026-01-01T10:00:00+00:00", "2026-01-01T05:30:00.5-05:00"]
    made = [learned("x", seed, started=each) for seed, each in enumerate(started)]
    put(store, *reversed(made))
    assert [each.seed for each in store.read()[0].learned] == [0, 1, 2]


def test_what_is_no_regular_file_is_named_and_not_waited_for(store, tmp_path):
    put(store, *GOOD)
    odd = {name: path_of(store, machine=name) for name in ("pipe", "device", "folder")}
    for path in odd.values():
        path.parent.mkdir()
    os.mkfifo(odd["pipe"])
    odd["device"].symlink_to("/dev/zero")
    odd["folder"].mkdir()
    records, problems = store.read()
    assert records.lines == GOOD
    assert problems == [
        f"{odd['device']}: cannot be read: it is no regular file; its records are left out",
        f"{odd['folder']}: cannot be read: Is a directory; its records are left out",
        f"{odd['pipe']}: cannot be read: it is no regular file; its records are left out",
    ]
    for name in ("pipe", "device"):
        with pytest.raises(StoreError, match="it is no regular file; this one is not kept"):
            store.append(GOOD[0], name)


def test_a_reason_is_kept_up_to_a_length(store):
    put(store, learned("x", status="failed", reason="a" * 10**6, details="b" * 10**6))
    assert path_of(store).stat().st_size < 30_000
    assert store.read()[0].learned[0].reason.endswith("aaa…")


def test_reading_a_record_loads_neither_torch_nor_the_fork_server():
    code = (
        "import sys, suite.record.store, suite.record.machine\nprint({'torch', 'multiprocessing'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_what_many_records_say_is_held_once_and_a_copy_has_its_own(store):
    """A hundred thousand records have to fit into the memory of a laptop."""
    put(store, *GOOD)
    one, two = store.read()[0].learned
    assert one.conditions is two.conditions and one.machine.facts is two.machine.facts and one.code is two.code
    slower = one.conditions.model_copy(update={"rate": 0.3})
    assert slower.key != one.conditions.key and slower.family == one.conditions.family
    assert one.model_copy(update={"seed": 9}).model_fields_set == two.model_fields_set == set(type(one).model_fields)


def test_a_machine_s_key_that_is_not_of_its_facts_is_named_and_left_in_place(tmp_path):
    store, sound = Store(tmp_path), learned("x")
    facts = MACHINE.facts | {"cpu_family": 25}
    contradictory = learned("y", machine=MACHINE.model_copy(update={"facts": facts}))  # another CPU under MACHINE's key
    for each in (sound, contradictory):
        store.append(each, MACHINE.name)
    before = path_of(store).read_bytes()
    records, problems = store.read()
    assert [each.id for each in records.learned] == [sound.id]
    (problem,) = problems
    assert "learned.jsonl:2: its machine's key, " in problem and MACHINE.key in problem
    assert problem.endswith("is not that of the facts beside it; the line is left out and left in place")
    assert path_of(store).read_bytes() == before


def test_a_key_of_fewer_facts_is_as_good_as_it_was(tmp_path):
    """What an older version recorded: it had no CPU's family."""
    old = learned("x", machine=machine(cpu="AMD EPYC", cores=2, memory_gib=24, threads=1, gpu=None))
    new = learned("x", 1, machine=machine(**old.machine.facts, cpu_family=25, cpu_model=17))
    store = Store(tmp_path)
    for each in (old, new):
        store.append(each, each.machine.name)
    records, problems = store.read()
    assert not problems and {each.machine.key for each in records.learned} == {old.machine.key, new.machine.key}
    assert old.machine.key != new.machine.key


# what no run has ----------------------------------------------------------------------------------------------------


def with_member(line, path, value):
    """The line's JSON with another value at a path of names and numbers, sealed as whoever forges one does it."""
    content = json.loads(line.model_dump_json())
    *above, last = path
    inner = content
    for each in above:
        inner = inner[each]
    inner[last] = value
    return sealed(json.dumps(content, separators=(",", ":")).encode())


TIMED = timings("x", 1)[0]


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        (learned("x", 7), ["stack"], "http:evil"),
        (learned("x", 7), ["stack"], "x+"),
        (learned("x", 7), ["conditions", "rate"], "NaN"),
        (learned("x", 7), ["conditions", "rate"], -1.0),
        (learned("x", 7), ["conditions", "steps"], -1),
        (learned("x", 7), ["conditions", "threads"], 0),
        (learned("x", 7), ["conditions", "baseline"], "b" * 3000),
        (learned("x", 7), ["steps"], -5),
        (learned("x", 7), ["seed"], "7"),
        (learned("x", 7), ["seed"], True),
        (learned("x", 7), ["cpu_s"], "Infinity"),
        (learned("x", 7), ["cpu_s"], "20.0"),
        (learned("x", 7), ["curve", 0, "step"], -1),
        (counted("x"), ["points", 0, "counters", "flops"], -1),
        (counted("x"), ["points", 0, "counters", "peak_by_kind", "parameters"], -1),
        (counted("x"), ["points", 0, "progress"], 1.5),
        (TIMED, ["contenders", 1, "stack"], "http:evil"),
        (TIMED, ["contenders", 1, "setup_s"], "NaN"),
        (TIMED, ["contenders", 1, "windows", 0, "block_steps"], 0),
        (TIMED, ["contenders", 1, "windows", 0, "block_s", 0], [-1.0, 1.0]),
        (TIMED, ["replicate"], -1),
    ],
    ids=str,
)
def test_what_no_run_has_is_named_and_left_out_and_blocks_no_board(store, line, path, value):
    put(store, *evidence("x"))
    sound = store.read()[0]
    odd = store.path("other", "odd")
    odd.parent.mkdir()
    odd.write_bytes(b"\n" + with_member(line, path, value) + b"\n")
    records, (problem,) = store.read()
    assert problem.startswith(f"{odd}:2: not a ") and problem.endswith("the line is left out and left in place")
    assert records == sound
    assert [each.stack for each in rows_of(records)] == ["x"]


def test_a_line_without_members_that_records_got_since_is_read_whole_and_its_damage_is_named(store):
    """Where it is quick to see that it is as it was written, as much is seen as where it is not."""
    older = json.loads(counted("x").model_dump_json())
    del older["numerics"], older["points"][0]["counters"]["host_bytes"]

    def line() -> bytes:
        return json.dumps(older, separators=(",", ":")).encode()

    assert parse(line()) == counted("x").model_copy(update={"numerics": parse(line()).numerics})
    flops = older["points"][0]["counters"]["flops"]
    older["points"][0]["counters"]["flops"] = float(flops)
    assert parse(line())  # another spelling of the same number
    older["points"][0]["counters"]["flops"] = str(flops)
    with pytest.raises(ValueError, match="flops is of another type"):
        parse(line())
    older["points"][0]["counters"]["flops"] = flops
    with pytest.raises(ValueError, match="stands twice"):
        parse(line().replace(b'"steps":', b'"steps":7,"steps":', 1))


def test_a_record_at_which_a_view_fails_is_found_named_and_left_out(store, monkeypatch):
    """Whatever is wrong with it; rows are as if it had never been there."""
    put(store, *evidence("x"), *evidence("y", ruler=False), learned(seed=7))
    before = rows_of(store.read()[0])
    late = {"started": "2026-06-01T00:00:00+00:00"}
    put(store, learned("x", 7, final=13.0, **late), counted("y", id="c", points=[counters(flops=13)], **late))
    _fails_at_thirteen(monkeypatch)
    left_out = []
    after = rows_of(store.read()[0], left_out)
    assert [(each.stack, each.records) for each in after] == [(each.stack, each.records) for each in before]
    of_learned = len(path_of(store).read_bytes().splitlines())
    of_counted = len(path_of(store, "counted").read_bytes().splitlines())
    assert sorted(each.partition(": ")[0] for each in left_out) == [
        f"{path_of(store, 'counted')}:{of_counted}",
        f"{path_of(store)}:{of_learned}",
    ]
    assert all("cannot be judged (ZeroDivisionError: thirteen)" in each for each in left_out)


def test_what_fails_with_whatever_is_known_leaves_the_other_rows(store, monkeypatch):
    put(store, *evidence("x"), *evidence("y", ruler=False))

    def fails(known, moderation):
        if any(each.contender.stack == "y" for each in known.learned):
            raise RuntimeError("y")
        return values(known, moderation)

    values = results.values
    monkeypatch.setattr(results, "values", fails)
    left_out = []
    assert "x" in [each.stack for each in rows_of(store.read()[0], left_out)] and left_out


def _fails_at_thirteen(monkeypatch):
    values = results.values

    def fails(known, moderation):
        losses = [pair.contender.final.loss for pair in known.learned]
        counts = [point.counters.flops for each in known.counted if each for point in each.points]
        if 13 in [*losses, *counts]:
            raise ZeroDivisionError("thirteen")
        return values(known, moderation)

    monkeypatch.setattr(results, "values", fails)


def rows_of(records, left_out=None):
    return results.pairs(records, lambda _: "baseline", lambda *_: CODE, left_out=left_out)


def test_a_history_goes_on_beside_a_record_at_which_it_fails(store, monkeypatch):
    put(store, *evidence("x"))
    whole = history.series(store.read()[0])
    bad = store.read()[0].timed[-1]
    samples = history.samples

    def fails(known, metrics):
        if any(each.record == bad.id for each in known.timed):
            raise OverflowError("odd")
        return samples(known, metrics)

    monkeypatch.setattr(history, "samples", fails)
    left_out = []
    after = history.series(store.read()[0], left_out=left_out)
    assert sum(len(each.points) for each in after) < sum(len(each.points) for each in whole)
    assert len(left_out) == 1 and left_out[0].startswith(f"{path_of(store, 'timed')}:")


def test_a_line_that_is_longer_than_any_record_is_named_and_not_held_in_memory(store, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 1 << 14)
    put(store, learned("x", 1))
    with path_of(store).open("ab") as file:
        file.write(b'{"reason": "' + b"a" * (1 << 18) + b'"}\n')
    put(store, learned("x", 2))
    records, (problem,) = store.read()
    assert [each.seed for each in records.learned] == [1, 2]
    assert problem.startswith(f"{path_of(store)}:2: not a record: it is longer than ")


@pytest.mark.parametrize(
    ("resaved", "why"),
    [
        (lambda content: content.replace(b"\n", b"\r\n"), "2 of its lines end as Windows has them (CRLF)"),
        (lambda content: b"\xef\xbb\xbf" + content, "1 of its lines begin with a byte order mark (BOM)"),
    ],
)
def test_what_an_editor_did_to_a_file_is_told_as_the_cause(
    resaved: Callable[[bytes], bytes], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "m" / "learned.jsonl"
    path.parent.mkdir()
    path.write_bytes(resaved(b"".join(sealed(line) + b"\n" for line in (b'{"a":1}', b'{"a":2}'))))
    problems = Store(tmp_path).read()[1]
    assert sum(why in problem for problem in problems) == 1
