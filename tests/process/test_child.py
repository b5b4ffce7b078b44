"""Processes of our own: how they start, what they may say, and what is left of them and of a killed fork server."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from suite.measure import timing
from suite.measure.contenders import fork_servers
from suite.measure.contenders.contender import distributing, ranks_of
from suite.measure.contenders.deputies import deputy, failure, in_child
from suite.process import servers
from suite.process.child import ContenderFailed
from suite.process.output import SHOWN_BYTES
from suite.process.processes import living
from suite.process.replies import LONGEST_TEXT, plain
from suite.process.servers import Server, ThisProcess
from suite.record.job import Job, Setting, StackError
from suite.record.numerics import PORTABLE, PORTABLE_ENVIRONMENT, environment
from suite.record.schema import ENVIRONMENT, Counters
from tests import factories
from tests.lent_server import ITS_OWN, of_its_own
from tests.process.light_server import three_of

FORK = multiprocessing.get_context("fork")


def forked(target: Callable[..., Any], *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = FORK.Process(target=target, args=arguments)
    process.start()
    return process


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "waited too long"
        time.sleep(0.02)


# what is asked in a child ---------------------------------------------------------------------------------------------


def test_what_hangs_dies_or_leaves_in_a_child_ends_there() -> None:
    with pytest.raises(ContenderFailed, match=r"no answer within 0\.2 s") as caught:
        in_child(time.sleep, 3600, limit_s=0.2)
    assert caught.value.status == "hung"
    with pytest.raises(ContenderFailed, match="died of SIGSEGV") as caught:
        in_child(signal.raise_signal, signal.SIGSEGV, limit_s=60)
    assert caught.value.status == "crashed"
    with pytest.raises(ContenderFailed, match=r"^SystemExit: 3$"):
        in_child(sys.exit, 3, limit_s=60)
    with pytest.raises(ContenderFailed, match="ZeroDivisionError"):
        in_child(divmod, 1, 0, limit_s=60)
    with pytest.raises(ValueError, match="invalid literal"):
        in_child(int, "x", limit_s=60, mendable=(ValueError,))
    assert in_child(divmod, 7, 2, limit_s=60) == [3, 1]


def test_ranks_are_asked_of_a_child_and_a_stack_that_cannot_be_built_says_why() -> None:
    setting = Setting(baseline="gpt", size="pico")
    assert ranks_of(Job(setting=setting, stack="dp_ddp")) == 2
    with pytest.raises(StackError, match="cannot be stacked"):
        ranks_of(Job(setting=setting, stack="lion+adamw"))


def test_of_techniques_that_distribute_a_model_one_whose_code_fails_is_left_out_with_the_reason() -> None:
    those, broken = distributing(["lion", "no_such", "dp_ddp"])
    assert those == ["dp_ddp"] and list(broken) == ["no_such"]
    assert broken["no_such"].startswith("no_such: failed: UnknownId: no technique is called 'no_such'")


# what it says ---------------------------------------------------------------------------------------------------------


def test_what_a_technique_says_becomes_plain_and_bounded() -> None:
    endless: list[Any] = []
    endless.append(endless)
    said = {
        "scalar": np.float32(0.5),
        "whole": np.int64(3),
        "truth": np.bool_(True),
        "tensor": torch.tensor(2.0),
        "long": 10**5000,
        "text": "x" * 10**6,
        "surrogate": "\udce9",
        3: math.inf,
        "object": object(),
        "pair": (1, 2),
    }
    known = plain(said)
    assert [known[name] for name in ("scalar", "whole", "truth", "tensor")] == [0.5, 3, True, 2.0]
    assert (known["long"], known["surrogate"]) == ("a whole number of 16610 bits", "\\udce9")
    assert len(known["text"]) < LONGEST_TEXT + 50 and known["text"].endswith("(1000000 characters)")
    assert (known["3"], known["object"], known["pair"]) == (math.inf, "<object>", [1, 2])
    assert "list" in str(plain(endless))
    counters = factories.counters()
    assert Counters.model_validate(plain(counters)) == counters


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [RuntimeError("x" * 10**7), RuntimeError("a\udce9\nb"), Unspeakable(), SystemExit(3)])
def test_every_failure_can_be_stored(error: BaseException) -> None:
    status, reason, details = failure(error)
    line = factories.learned("x", status=status, reason=reason, details=details).model_dump_json()
    assert len(line.encode()) < 20_000


def test_a_full_disk_is_no_technique_s_failure() -> None:
    assert failure(OSError(28, "No space left on device"))[1].startswith(ENVIRONMENT)


# what is left ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are adopted on Linux only")
def test_what_a_child_left_behind_ends_with_it(tmp_path: Path) -> None:
    with pytest.raises(ContenderFailed, match="exit code 7"):
        in_child(_leaves_two_and_dies, tmp_path, limit_s=60)
    left = [int(path.name) for path in tmp_path.iterdir()]
    assert len(left) == 2 and not living().keys() & set(left)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory is seen in /dev/shm")
@pytest.mark.parametrize(("leave", "how"), [(os._exit, "exit code 7"), (time.sleep, "no answer within")])
def test_what_a_child_left_of_shared_memory_goes_with_it(leave: Callable[[int], Any], how: str) -> None:
    name = f"leantrain-test-{os.getpid()}"
    with pytest.raises(ContenderFailed, match=how):
        in_child(_leaves_shared_memory, name, leave, limit_s=2)
    assert not Path("/dev/shm", name).exists()


def _leaves_shared_memory(name: str, leave: Callable[[int], Any]) -> None:
    shared = SharedMemory(name, create=True, size=1)
    assert Path("/dev/shm", shared.name).exists()
    leave(7)


def test_a_copy_that_is_forked_has_no_say() -> None:
    for _ in range(5):
        assert in_child(_goes_on_twice, limit_s=60) == "the first"


def _goes_on_twice() -> str:
    if os.fork():
        time.sleep(0.1)  # so that the copy would be heard before
        return "the first"
    return "the copy"


def _leaves_two_and_dies(marks: Path) -> None:
    for leave in (lambda: None, os.setsid):
        if not os.fork():
            leave()
            (marks / str(os.getpid())).touch()
            time.sleep(3600)
    until(lambda: len(list(marks.iterdir())) == 2)
    os._exit(7)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are adopted on Linux only")
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    """The parent is a fork with a server of its own, which is killed while a child of its is busy."""
    parent = forked(_waits_for_a_child_that_forks, tmp_path)
    until(lambda: len(list(tmp_path.iterdir())) == 4)
    parent.kill()
    parent.join()
    marked = {int(path.name) for path in tmp_path.iterdir()}
    until(lambda: not living().keys() & marked)


def _waits_for_a_child_that_forks(marks: Path) -> None:
    (marks / str(os.getpid())).touch()
    three_of(Server({}), marks)
    time.sleep(3600)


def test_a_fork_server_that_is_killed_while_it_loads_is_told(tmp_path: Path) -> None:
    (tmp_path / "dies_as_it_loads.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    ours, theirs = FORK.Pipe()
    process = forked(_asks_a_server_that_dies, tmp_path, theirs)
    assert ours.poll(60)
    status, reason = ours.recv()
    process.join()
    assert status == "crashed"
    assert re.search("the fork server died: .*; was it killed while it loaded the libraries", reason)


def test_a_child_whose_parent_died_while_the_server_loaded_ends_without_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The kernel keeps what was asked for until the server listens."""
    (tmp_path / "loads_long.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('loading').write_text(str(os.getpid()))\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.02)\n"
    )
    asking = forked(_asks_a_server_that_loads_long, tmp_path)
    until((tmp_path / "asked").exists)
    until((tmp_path / "loading").exists)
    asking.kill()
    asking.join()
    (tmp_path / "go").touch()
    server = int((tmp_path / "loading").read_text())
    until(lambda: server not in living())
    assert capfd.readouterr().err == ""


def _asks_a_server_that_loads_long(folder: Path) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(folder))  # from where the server imports
    says = Server.says_something

    def asked(server: Server, *arguments: Any) -> bool:
        (folder / "asked").touch()
        return says(server, *arguments)

    Server.says_something = asked  # type: ignore[method-assign]
    in_child(divmod, 7, 2, limit_s=60, server=Server({}, ["loads_long"]))


def _asks_a_server_that_dies(folder: Path, channel: Any) -> None:
    sys.path.insert(0, str(folder))  # from where the server imports
    try:
        in_child(divmod, 7, 2, limit_s=60, server=Server({}, ["dies_as_it_loads"]))
    except ContenderFailed as failed:
        channel.send((failed.status, failed.reason))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a stopped process is seen in /proc")
def test_a_fork_server_that_is_stopped_is_ended_and_another_one_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where it was stopped while a child of it worked: the end of that one is waited for, and never told."""
    monkeypatch.setattr(servers, "LOOK_S", 0.2)
    server = Server({})
    try:
        assert in_child(divmod, 7, 2, limit_s=60, server=server) == [3, 1]
        first = server.pid
        os.kill(first or 0, signal.SIGSTOP)
        assert in_child(divmod, 7, 2, limit_s=60, server=server) == [3, 1]
        assert server.pid != first and first not in living()
        busy = three_of(server, tmp_path)
        os.kill(server.pid or 0, signal.SIGSTOP)
        busy.end()
        assert busy.pid not in living()
        assert in_child(divmod, 9, 2, limit_s=60, server=server) == [4, 1]
    finally:
        server.close()


def test_a_fork_of_this_process_is_as_this_process_is_then() -> None:
    server = ThisProcess()
    for name in ("first", "second"):
        STATE["name"] = name
        with deputy(60, server) as one:
            assert (one(_state), one(os.getppid)) == (name, os.getpid())
            (pid,) = one.pids
        assert pid not in living()
    with pytest.raises(ContenderFailed, match="exit code 7"):
        in_child(os._exit, 7, limit_s=60, server=server)


STATE = {"name": ""}


def _state() -> str:
    return STATE["name"]


def test_a_fork_of_a_process_that_has_a_server_starts_one_of_its_own() -> None:
    server = Server({})
    assert in_child(divmod, 7, 2, limit_s=60, server=server) == [3, 1]
    ours, theirs = FORK.Pipe()
    process = forked(_asks, server, theirs)
    assert ours.poll(60)
    another = ours.recv()
    process.join()
    assert another != server.pid and in_child(os.getppid, limit_s=60, server=server) == server.pid
    server.close()
    until(lambda: another not in living())


def _asks(server: Server, channel: Any) -> None:
    channel.send(in_child(os.getppid, limit_s=60, server=server))


# what it prints -------------------------------------------------------------------------------------------------------


def _prints(times: int) -> None:
    for _ in range(times):
        os.write(1, b"\x1b[2J\x07evil " * 1000)
    os.write(2, b"the last line\x1b[31m")
    os._exit(3)


def test_what_a_child_prints_is_capped_and_filtered_and_its_end_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ContenderFailed, match="exit code 3") as caught:
        in_child(_prints, 2000, limit_s=60)
    assert caught.value.details.endswith("the last line\\x1b[31m") and len(caught.value.details) < 3000
    printed, shown = capfd.readouterr()
    assert not printed and "\x1b" not in shown and len(shown) < 8 * SHOWN_BYTES
    assert "bytes more that it printed are left out" in shown


# fork servers ---------------------------------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    return dict(os.environ)


def test_what_is_off_the_clock_has_the_portable_arithmetic_whatever_the_user_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    before = dict(os.environ)
    server = fork_servers.loaded(environment(PORTABLE))
    inside = in_child(_environment, limit_s=60, server=server)
    server.close()
    assert {name: inside[name] for name in PORTABLE_ENVIRONMENT} == PORTABLE_ENVIRONMENT
    assert dict(os.environ) == before


def test_every_timing_has_an_order_of_hashes_and_a_layout_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_servers, "PRELOADED", [])
    each_own = [of_its_own(seed) for seed in range(20)]
    assert len({each.environment["PYTHONHASHSEED"] for each in each_own}) == 20
    assert len({len(each.environment["LEANTRAIN_LAYOUT"]) for each in each_own}) > 15
    first = each_own[0]
    inside = in_child(_environment, limit_s=60, server=first)
    process = first.pid
    first.close()
    assert inside["PYTHONHASHSEED"] == first.environment["PYTHONHASHSEED"]
    assert process not in living()


def test_servers_of_sets_have_their_libraries_before_anything_is_on_a_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fork_servers, "PRELOADED", [])
    monkeypatch.setattr(timing, "of_one_timing", ITS_OWN)
    both = timing.loaded_servers(2)
    processes = [server.pid for server in both]
    assert [server.answered for server in both] == processes and None not in processes
    inside = [in_child(_environment, limit_s=60, server=server) for server in both]
    for server in both:
        server.close()
    assert len({each["PYTHONHASHSEED"] for each in inside}) == 2
    assert not {*processes} & living().keys()
