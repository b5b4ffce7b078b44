"""Some sixty techniques that misbehave, installed as a plug-in and run together: each has a row with the right end.

The reference beside them is the same to the bit as one that ran alone, and of what they started nothing is left.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from suite.record.schema import Ended
from tests import plugin
from tests.torture import Row, Scale, row
from tests.torture.command import LIMIT_S, Place, place

ON_TINY = ("-b", "tiny", "--size", "pico", "--steps", 6, "--seeds", 1, "--no-time", "--hang-limit", 60)
ANY = "any end"  # of what breaks Python itself


def step(body: str) -> str:
    """A technique that does this after its third step."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"def after_step(self, run):\n    if run.step == 3:\n{lines}"


def recipe(change: str) -> str:
    """A technique that changes its recipe so."""
    return f"def recipe(self, recipe): return replace(recipe, {change})"


HOSTILE: dict[str, tuple[str, str]] = {
    # how it ends
    "exits": (step("os._exit(7)"), "crashed"),
    "exits_well": (step("os._exit(0)"), "crashed"),
    "leaves": (step("sys.exit(3)"), "failed"),
    "leaves_with_words": (step("sys.exit('\\udce9' * 100)"), "failed"),
    "interrupts": (step("raise KeyboardInterrupt"), "failed"),
    "ends_generators": (step("raise GeneratorExit"), "failed"),
    "segfaults": (step("signal.raise_signal(signal.SIGSEGV)"), "crashed"),
    "reads_at_zero": (step("import ctypes; ctypes.string_at(0)"), "crashed"),
    "aborts": (step("os.abort()"), "crashed"),
    "kills_itself": (step("os.kill(os.getpid(), signal.SIGKILL)"), "crashed"),
    "kills_its_group": (step("os.killpg(0, signal.SIGKILL)"), "crashed"),
    "terminates_itself": (step("os.kill(os.getpid(), signal.SIGTERM)"), "crashed"),
    "stops_itself": (step("os.kill(os.getpid(), signal.SIGSTOP)"), "hung"),
    "sleeps": (step("time.sleep(3600)"), "hung"),
    "sleeps_in_c": (step("import ctypes; ctypes.PyDLL(None).sleep(3600)"), "hung"),  # and lets nobody else run
    "recurses": (step("self.after_step_again()") + "\ndef after_step_again(self): self.after_step_again()", "failed"),
    "hoards": (
        step("resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))\ntorch.empty(64 << 30, dtype=torch.uint8)"),
        "out_of_memory",
    ),
    "turns_nan": ("def loss(self, loss, outputs, batch, run): return loss * math.nan", "diverged"),
    "cannot": ("def data(self, data, run): raise Unavailable('\\udce9' * 10000)", "unavailable"),
    "fills_no_disk": (step("raise OSError(28, 'No space left on device')"), "failed"),
    # what it says
    "says_surrogates": (step("raise RuntimeError('\\udce9')"), "failed"),
    "says_too_much": (step("raise RuntimeError('x' * 10**7)"), "failed"),
    "says_control_characters": (step("raise RuntimeError('\\x1b[2J\\x00\\u202e')"), "failed"),
    "says_nothing": (
        step("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()"),
        "failed",
    ),
    "prints": (step("print('x' * 10**6)"), "ok"),
    "prints_below": (step("os.write(1, b'{}' * 1000)"), "ok"),
    "has_scalars": (recipe("weight_decay=numpy.float32(0.01), beta1=numpy.float64(0.9)"), "ok"),
    "has_text": (recipe("schedule='x' * 10**7"), "ok"),
    "has_objects": (recipe("schedule=object()"), "ok"),
    "has_tensors": (recipe("weight_decay=torch.tensor(0.01)"), ANY),
    "has_nan": (recipe("learning_rate=math.nan"), "failed"),
    "has_half_a_step": (recipe("steps=5.5"), "failed"),
    "has_endless_steps": (recipe("steps=10**30"), "failed"),
    "has_steps_in_words": (recipe("steps='six'"), "failed"),
    "has_many_ranks": (recipe("world_size=10**6"), "failed"),
    "has_no_recipe": ("def recipe(self, recipe): return None", "failed"),
    "leaves_its_recipe": ("def recipe(self, recipe): sys.exit(3)", "failed"),
    "dies_in_its_recipe": ("def recipe(self, recipe): signal.raise_signal(signal.SIGSEGV)", "crashed"),
    "probes_nan": ("def probes(self, run): return {'x': math.nan, 'y': math.inf}", "ok"),
    "probes_surrogates": ("def probes(self, run): return {'\\udce9': 1.0}", "ok"),
    "probes_words": ("def probes(self, run): return {'x': 'words'}", "failed"),
    "probes_too_much": ("def probes(self, run): return {str(each): 1.0 for each in range(10**5)}", "failed"),
    "probes_long_names": ("def probes(self, run): return {'x' * 10**6: 1.0}", "ok"),
    # what it starts
    "forks_and_dies": (step("if not os.fork(): time.sleep(3600)\nos._exit(7)"), "crashed"),
    "forks_away_and_dies": (step("if not os.fork(): os.setsid(); time.sleep(3600)\nos._exit(7)"), "crashed"),
    "goes_on_in_a_fork": (step("os.fork()"), "ok"),
    "leaves_a_daemon": (
        step("if not os.fork():\n    os.setsid()\n    if not os.fork(): time.sleep(3600)\n    os._exit(0)"),
        "ok",
    ),
    "leaves_a_program": (step("import subprocess; subprocess.Popen(['sleep', '3600'], start_new_session=True)"), "ok"),
    "leaves_shared_memory": (
        step(
            "from multiprocessing.shared_memory import SharedMemory\n"
            "self.shared = SharedMemory('leantrain-' + Path(os.environ['LEANTRAIN_PLACE']).name, True, 1)\n"
            "os._exit(7)"
        ),
        "crashed",
    ),
    "leaves_a_thread": (step("import threading; threading.Thread(target=time.sleep, args=(3600,)).start()"), "ok"),
    # what it changes
    "closes_files": (step("os.closerange(3, 4096)"), "crashed"),
    "writes_everywhere": (
        step("for each in range(3, 64):\n    try: os.write(each, b'xxxx\\n')\n    except OSError: pass"),
        "failed",
    ),
    "goes_elsewhere": (step("os.chdir('/')"), "ok"),
    "clears_the_environment": (step("os.environ.clear()"), "ok"),
    "ignores_signals": (
        step("for each in range(1, 32):\n    try: signal.signal(each, signal.SIG_IGN)\n    except OSError: pass"),
        "ok",
    ),
    "breaks_json": (step("import json; json.dumps = json.loads = None"), "ok"),
    "breaks_os": (step("os.write = os.getpid = os._exit = None"), "ok"),
    "breaks_torch": (step("torch.tensor = torch.no_grad = None"), ANY),
    "breaks_builtins": (step("import builtins; builtins.len = None"), ANY),
    "breaks_threads": (step("torch.set_num_threads(64)"), "failed"),
    "breaks_types": (step("torch.set_default_dtype(torch.float64)"), ANY),
    # what it is
    "leaves_at_once": ("sys.exit(3)", "failed"),
    "dies_at_once": ("signal.raise_signal(signal.SIGSEGV)", "crashed"),
    "imports_nothing": ("import no_such_library", "failed"),
    "sleeps_at_once": ("time.sleep(3600)", "hung"),
    "prints_at_once": ("print('beside the JSON')", "ok"),
}


def attack(scale: Scale) -> Iterator[Row]:
    chosen = dict(list(HOSTILE.items())[:: max(1, round(1 / scale.share))])
    bodies = {name: body for name, (body, _) in chosen.items()}
    with place({"twin": "pass"}) as calm:
        plugin.write_baseline(calm.folder)
        alone, _ = ran(calm)
    with place({**bodies, "twin": "pass"}) as at:
        plugin.write_baseline(at.folder)
        ends, told = ran(at)
        outcomes = Counter(_outcome(ends.get(name, []), status, name) for name, (_, status) in chosen.items())
        yield row("hostile techniques, each with a row that says how it ended", outcomes)
        same = all(ends[name] == alone[name] for name in ("baseline", "twin"))
        others = Counter({"held" if same else "the reference or a sibling changed": 1})
        yield row("the reference and a sibling beside them, equal to the bit", others)
        yield row("what hostile techniques leave", Counter({at.left() or told or "held": 1}))


def ran(at: Place) -> tuple[dict[str, list[str]], str]:
    """How each stack's runs ended, with the hash of what was learned; and what is wrong with the command's own end."""
    command = at.start("run", *ON_TINY, "--minutes", 60, "--json")
    output, errors = command.communicate(timeout=LIMIT_S)
    told = "a traceback" if _of_the_command(errors) or b"Aborted" in errors else ""
    if command.returncode not in (0, 5):  # 5: a run failed, as they should
        raise RuntimeError(f"exit code {command.returncode}: {errors.decode()[-500:]}")
    try:
        json.loads(output)
    except ValueError:
        told = "no JSON on standard output"
    ends: dict[str, list[str]] = {}
    for each in plugin.records(at.results).lines:
        if isinstance(each, Ended):
            sha256 = getattr(each, "trajectory_sha256", "")
            ends.setdefault(each.stack, []).append((each.status == "ok" and sha256) or each.status)
    told = told or ("a temporary folder left" if at.folders() else "")
    return ends, told


def _of_the_command(errors: bytes) -> bool:
    """Whether there is a traceback of the command's own: what breaks Python in a contender has last words there."""
    return any(b"suite/cli" in part for part in errors.split(b"Traceback (most recent call last)")[1:])


def _outcome(ends: list[str], status: str, name: str) -> str:
    """Of a run that ended well the hash of its trajectory stands for that."""
    if len(ends) < 2:
        return f"no row ({name})"
    last = ends[-1] if ends[-1] in STATUSES else "ok"
    return "held" if status in (ANY, last) else f"{last} and not {status} ({name})"


STATUSES = ("diverged", "out_of_memory", "timeout", "hung", "crashed", "failed", "unavailable", "not_attached")
