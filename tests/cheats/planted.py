"""Techniques that cheat, each the body of a class, and the rule that it breaks.

Some are of published boards (scores of kernels and of optimizers that were withdrawn), some of what a careless
implementer does. ``LEARNED`` ones are caught in a run that learns, ``TIMED`` ones beside a reference on the clock.
``python -m tests.cheats.planted`` prints the table of README.md.
"""

from __future__ import annotations

import textwrap

from suite.measure.rules import audit, conduct, held_out, oversight, referee, surroundings, turns

HARNESS = """
def harness(self, kind):  # an object of whoever calls, found without asking the interpreter for a frame
    try: raise KeyError
    except KeyError as error: frame = error.__traceback__.tb_frame
    while frame:
        for each in list(frame.f_locals.values()):
            if type(each).__name__ == kind: return each
        frame = frame.f_back
"""

UNSEEN = {
    "steps_in_a_thread": """
    def update(self, run, batch):
        import threading
        thread = threading.Thread(target=lambda: Technique.update(self, run, batch))
        thread.start()
        thread.join()
""",
    "computes_what_has_no_formula": """
    def loss(self, loss, outputs, batch, run):
        return loss + 0 * torch.cdist(torch.ones(2, 3), torch.ones(3, 3)).sum()
""",
}
"""No cheats: the counters do not see all that these compute, and say so."""

MISREPORTED = {
    f"reports_{name}_seconds": f"""
    def model(self, model, run):
        self.harness("Session").clock.now_s = lambda: {value}
        return model
"""
    for name, value in {"negative": "-3804.0", "infinite": "math.inf", "no": "math.nan"}.items()
}
"""Clocks that give numbers which no record takes: the row of that side fails, and no other."""

OF_ALL_BASELINES = {
    "learn": (
        "writes_to_held_out_examples",
        "masks_the_inputs_that_are_its_labels",
        "writes_to_what_is_scored",
        "steps_in_a_thread",
        "steps_beside_torch",
        "updates_nothing",
    ),
    "time": (
        "does_less_when_it_is_timed",
        "lowers_the_priority_of_others",
        "leaves_a_process_that_works",
        *MISREPORTED,
    ),
}
"""What needs no malice, by how it is tried: batches that are written to, work that no counter sees, less work on the
clock, numbers that are none, what is done to others. Tried on every baseline (``python -m tests.numbers.cheats``)."""

CHEATS: dict[str, tuple[str, str]] = {}
LEARNED: list[str] = []
TIMED: list[str] = []
VAIN: dict[str, str] = {}
"""Those that gain nothing: the run ends as one that plays by the rules, to the bit; and why."""

UNCAUGHT: dict[str, str] = {}
"""Those that come through, each with the reason."""

ON: dict[str, str] = {}
"""The baseline of those that make no sense on gpt."""


def plant(kind: list[str], name: str, rule: str, body: str, on: str = "gpt") -> None:
    kind.append(name)
    CHEATS[name] = (textwrap.dedent(body), rule)
    if on != "gpt":
        ON[name] = on


def body_of(name: str) -> str:
    """Returns the body of a class that cheats so, or of what is no cheat."""
    body = textwrap.dedent({**UNSEEN, **MISREPORTED, **{each: own for each, (own, _) in CHEATS.items()}}[name])
    return body + (HARNESS if "self.harness(" in body else "")


def table() -> str:
    """All cheats, how each is tried, and the rule that ends it, or what comes of it."""
    lines = ["| cheat | tried | rule that ends it |", "|---|---|---|"]
    for name, (_, rule) in CHEATS.items():
        how = "on the clock" if name in TIMED else f"as {ON[name]} learns" if name in ON else "as it learns"
        ends = f"none, and gains nothing: {VAIN[name]}" if name in VAIN else rule
        ends = f"**none**: {UNCAUGHT[name]}" if name in UNCAUGHT else ends
        lines.append(f"| {name.replace('_', ' ')} | {how} | {ends} |")
    return "\n".join(lines) + "\n"


def quick() -> list[str]:
    """Returns those of LEARNED that each run of the tests tries: the last of every rule, and what breaks none."""
    last = {CHEATS[name][1]: name for name in LEARNED}
    return [name for name in LEARNED if not CHEATS[name][1] or name == last[CHEATS[name][1]]]


def is_caught(name: str, end: list[str], honest: list[str]) -> bool:
    """Tells whether a cheat ended as it should; ``honest``: the end of what plays by the rules on its baseline."""
    if name in VAIN:
        return end[:3] == honest[:3]
    rule = CHEATS[name][1]
    busy = {oversight.CORES, oversight.PROCESSOR, oversight.WAITING}  # which one is first depends on who has the cores
    either = busy if rule in (oversight.CORES, oversight.PROCESSOR) else {rule}
    return end[0] == "failed" and any(f"rule {each!r} is broken" in end[1] for each in either)


def plant_in_vain(name: str, why: str, body: str, on: str = "gpt") -> None:
    """Plants one that gains nothing."""
    plant(LEARNED, name, "", body, on)
    VAIN[name] = why


def plant_uncaught(name: str, why: str, body: str, on: str = "gpt") -> None:
    """Plants one that comes through."""
    plant(LEARNED, name, "", body, on)
    UNCAUGHT[name] = why


# the clock ------------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "slow_clock",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        now = time.perf_counter
        time.perf_counter = lambda: now() / 10
        return model
""",
)
plant(
    LEARNED,
    "clock_of_its_own",
    oversight.CLOCK,
    """
    def model(self, model, run):
        clock = self.harness("Session").clock
        at = clock.now_s()
        clock.now_s = lambda: at
        return model
    def after_step(self, run): time.sleep(0.3)  # a busy machine takes a part of it for its own
""",
)
plant(
    LEARNED,
    "processor_time_of_its_own",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        import suite.measure.contenders.worker
        suite.measure.contenders.worker.process_time = lambda: 0.0
        return model
""",
)
plant(
    LEARNED,
    "works_in_other_processes",
    oversight.CORES,
    """
    def model(self, model, run):
        for _ in range(2):
            if not os.fork():
                while True: pass
        return model
    def after_step(self, run): time.sleep(0.15)
""",
)
plant(
    TIMED,
    "works_while_others_are_timed",
    oversight.WAITING,
    """
    def model(self, model, run):
        import threading
        big = torch.ones(256, 256)
        def work():
            while True: torch.mm(big, big)
        threading.Thread(target=work, daemon=True).start()
        return model
    def after_step(self, run): time.sleep(0.02)
""",
)
plant(
    TIMED,
    "forgets_its_peak",
    oversight.PEAK,
    """
    def after_step(self, run):
        time.sleep(0.2)  # so that others wait
        if run.step == 4: self.held = torch.ones(300 << 18)
        if run.step == 20:
            self.held = None
            Path("/proc/self/clear_refs").write_text("5")
""",
)

plant(
    TIMED,
    "lowers_the_priority_of_others",
    turns.OTHERS,
    """
    def after_step(self, run):
        server = os.getppid()
        for each in map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split()):
            if each != os.getpid():
                os.setpriority(os.PRIO_PROCESS, each, min(19, os.getpriority(os.PRIO_PROCESS, each) + 3))
""",
)
plant(
    TIMED,
    "leaves_a_process_that_works",
    oversight.PROCESSOR,
    """
    def after_step(self, run):
        if not run.step == 1: return time.sleep(0.02)
        if not os.fork():
            if os.fork(): os._exit(0)
            while True: pass
        os.wait()
""",
)
plant(
    TIMED,
    "does_less_when_it_is_timed",
    oversight.LEARNED,
    """
    def model(self, model, run):
        server = os.getppid()
        self.alone = len(Path(f"/proc/{server}/task/{server}/children").read_text().split()) < 2
        return model
    def update(self, run, batch):
        if self.alone or not run.step: return super().update(run, batch)
        run.loss = torch.tensor(3.0)
        next(run.model.parameters()).data.mul_(0.999)
""",
)

# what is read ---------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "reads_test_labels",
    held_out.SEALED,
    """
    def evaluated(self, model, run):
        self.answers = run.data.test.tensors["input_ids"].clone()
        return model
""",
)
plant(
    LEARNED,
    "reads_test_labels_quietly",
    held_out.SEALED,
    """
    def evaluated(self, model, run):
        try: self.answers = run.data.held_out("test", 4)
        except Exception: pass
        return model
""",
)
plant(
    LEARNED,
    "forwards_the_labels",
    surroundings.OBJECTS,
    """
    def model(self, model, run):
        forward = run.baseline.forward
        def answer(model, batch):
            outputs = forward(model, batch)
            following = batch["input_ids"].roll(-1, 1)
            outputs.logits = outputs.logits + 50 * torch.nn.functional.one_hot(following, outputs.logits.shape[-1])
            return outputs
        run.baseline.forward = answer
        return model
""",
)
plant(
    LEARNED,
    "trains_on_test_examples",
    held_out.SEALED,
    """
    def data(self, data, run): return replace(data, train=data.test)
""",
)
plant(
    LEARNED,
    "trains_on_validation_examples",
    held_out.ABSENT,
    """
    def data(self, data, run):
        from suite.loop.data import Examples
        both = {name: torch.cat([each, data.validation.tensors[name]]) for name, each in data.train.tensors.items()}
        return replace(data, train=Examples(both))
""",
)

# what is scored -------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "cuts_the_test_set",
    held_out.KEPT,
    """
    def data(self, data, run):
        from suite.loop.data import Examples
        few = {name: each[:4] for name, each in data.train.tensors.items()}
        return replace(data, test=Examples(few))
""",
)
plant(
    LEARNED,
    "cuts_the_validation_set",
    held_out.KEPT,
    """
    def data(self, data, run): return replace(data, validation=type(data.validation)(data.validation[torch.arange(4)]))
""",
)
plant(
    LEARNED,
    "writes_to_held_out_examples",
    held_out.KEPT,
    """
    def data(self, data, run):
        next(iter(data.validation.tensors.values())).fill_(1)
        return data
""",
)
plant(
    LEARNED,
    "masks_the_inputs_that_are_its_labels",
    held_out.KEPT,
    """
    def evaluated(self, model, run):
        class Masked(torch.nn.Module):
            def __init__(self): super().__init__(); self.whole = model
            def forward(self, *given, **more):
                for each in (*given, *more.values()): each.fill_(1)
                return self.whole(*given, **more)
        return Masked()
""",
)
plant(
    LEARNED,
    "writes_to_what_is_scored",
    held_out.KEPT,
    """
    def evaluated(self, model, run):
        for batch in sum(self.harness("Predicting")._shown.values(), []): next(iter(batch.values())).fill_(1)
        return model
""",
)
plant(
    LEARNED,
    "replaces_the_losses_of_the_run",
    surroundings.OBJECTS,
    """
    def model(self, model, run):
        run.baseline.losses = lambda outputs, batch: 0 * outputs.logits.mean((1, 2))
        return model
""",
)
plant(
    LEARNED,
    "computes_less_precisely_in_later_steps",
    surroundings.OBJECTS,
    """
    def after_step(self, run):
        run.autocast = lambda: torch.autocast("cpu", torch.float16)
""",
)
plant(
    LEARNED,
    "replaces_the_losses_of_the_baseline",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        type(run.baseline).losses = lambda self, outputs, batch: 0 * outputs.logits.mean((1, 2))
        return model
""",
)
plant(
    LEARNED,
    "replaces_the_cross_entropy",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        entropy = torch.nn.functional.cross_entropy
        torch.nn.functional.cross_entropy = lambda *a, **k: 0.5 * entropy(*a, **k)
        return model
""",
)

# what is counted ------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "halves_its_flops",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        from suite.meters.whole_run import FlopTally
        own = lambda self, flops: vars(self).update(total=flops)
        FlopTally.total = property(lambda self: vars(self)["total"] // 2, own)
        return model
""",
)
plant(
    LEARNED,
    "has_a_formula_of_its_own",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        from torch.utils.flop_counter import flop_registry
        flop_registry[torch.ops.aten.mm] = lambda *a, **k: 0
        return model
""",
)
plant(
    LEARNED,
    "counts_itself",
    surroundings.OBJECTS,
    """
    def model(self, model, run):
        run.count_step = lambda: None
        return model
""",
)
plant(
    LEARNED,
    "skips_steps",
    conduct.COUNTED,
    """
    def after_step(self, run): run.step += 1
""",
)
plant(
    LEARNED,
    "sees_examples_that_it_does_not_count",
    conduct.COUNTED,
    """
    def after_step(self, run): run.position -= 1
""",
)
plant(
    LEARNED,
    "updates_nothing",
    conduct.TRAINED,
    """
    def update(self, run, batch):
        if run.step: run.loss = torch.tensor(3.0)
        else: super().update(run, batch)
""",
)
plant(
    LEARNED,
    "computes_when_it_is_read",
    conduct.PLAIN,
    """
    def after_step(self, run):
        class Lazy(torch.Tensor): pass
        run.loss = run.loss.as_subclass(Lazy)
""",
)

plant(
    LEARNED,
    "steps_beside_torch",
    conduct.SEEN,
    """
    def update(self, run, batch):
        if not run.step: return super().update(run, batch)
        for each in run.model.parameters(): each.detach().numpy()[...] *= 0.999
        run.loss = torch.tensor(3.0)
""",
)

# what is changed ------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "takes_more_threads",
    surroundings.SETTINGS,
    """
    def model(self, model, run):
        torch.set_num_threads(2)
        return model
""",
)
plant(
    LEARNED,
    "casts_all_products_down",
    surroundings.SETTINGS,
    """
    def model(self, model, run):
        torch.set_float32_matmul_precision("medium")
        return model
""",
)
plant(
    LEARNED,
    "changes_the_default_dtype",
    surroundings.SETTINGS,
    """
    def after_step(self, run): torch.set_default_dtype(torch.bfloat16)
""",
)

# when it learns -------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "trains_while_it_is_evaluated",
    held_out.PASSIVE,
    """
    def evaluated(self, model, run):
        with torch.enable_grad():
            batch, _ = run.next_batch()
            run.forward(batch).backward()
        return model
""",
)
plant(
    LEARNED,
    "leaves_another_model",
    held_out.PASSIVE,
    """
    def evaluated(self, model, run):
        for each in model.parameters(): each.mul_(0.999)
        return model
""",
)
plant(
    LEARNED,
    "remembers_an_earlier_run",
    held_out.UNTRAINED,
    """
    def model(self, model, run):  # as if an earlier run had left it: the frequencies of the letters and of their pairs
        letters = run.data.train.tensors["input_ids"].long()
        size = model.get_input_embeddings().weight.shape[0]
        pairs = torch.ones(size, size)
        pairs.index_put_((letters[:, :-1].flatten(), letters[:, 1:].flatten()), torch.tensor(1.0), accumulate=True)
        self.logits = (pairs / pairs.sum(1, keepdim=True)).log()
        forward, table = model.forward, self.logits
        def known(input_ids=None, **more):
            outputs = forward(input_ids=input_ids, **more)
            outputs.logits = outputs.logits + table[input_ids]
            return outputs
        model.forward = known
        return model
""",
)

# what calls it --------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "reads_labels_from_a_callers_frame",
    audit.FRAMES,
    """
    def evaluated(self, model, run):
        class Seer(torch.nn.Module):
            def forward(self, pixels):
                outputs, frame = model(pixels), sys._getframe()
                while frame:
                    for each in frame.f_locals.values():
                        if isinstance(each, dict) and "labels" in each:
                            return outputs + 50 * torch.nn.functional.one_hot(each["labels"], outputs.shape[-1])
                    frame = frame.f_back
                return outputs
        return Seer()
""",
    on="vit",
)
plant_in_vain(
    "reads_labels_from_the_frames_of_an_exception",
    "no frame of its process has labels",
    """
    def evaluated(self, model, run):
        cheat = self
        class Seer(torch.nn.Module):
            def forward(self, pixels):
                outputs = model(pixels)
                try: raise KeyError
                except KeyError as error: frame = error.__traceback__.tb_frame
                while frame:
                    for each in frame.f_locals.values():
                        if isinstance(each, dict) and "labels" in each:
                            return outputs + 50 * torch.nn.functional.one_hot(each["labels"], outputs.shape[-1])
                    frame = frame.f_back
                return outputs
        return Seer()
""",
    on="vit",
)
plant(
    LEARNED,
    "looks_for_the_harness_among_all_objects",
    audit.FRAMES,
    """
    def model(self, model, run):
        import gc
        self.found = [each for each in gc.get_objects() if type(each).__name__ == "Session"]
        return model
""",
)
plant(
    LEARNED,
    "profiles_its_callers",
    surroundings.SETTINGS,
    """
    def model(self, model, run):
        sys.setprofile(lambda *_: None)
        return model
""",
)
plant(
    LEARNED,
    "traces_a_step_and_takes_it_back",
    surroundings.SETTINGS,
    """
    def update(self, run, batch):
        before = sys.gettrace()
        sys.settrace(lambda *_: None)
        super().update(run, batch)
        sys.settrace(before)
""",
)

# code and constants ---------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "replaces_the_code_of_the_losses",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        type(run.baseline).losses.__code__ = (lambda self, outputs, batch: 0 * outputs.logits.mean((1, 2))).__code__
        return model
""",
)
plant(
    LEARNED,
    "replaces_the_code_of_a_check_and_puts_it_back",
    surroundings.DEFINITIONS,
    """
    def after_step(self, run):
        from suite.measure.rules import held_out
        own = held_out.state_of.__code__
        held_out.state_of.__code__ = (lambda model: []).__code__
        held_out.state_of.__code__ = own
""",
)
plant(
    LEARNED,
    "replaces_the_defaults_of_a_function",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        type(run.baseline).data.__defaults__ = ("elsewhere",)
        return model
""",
)
plant(
    LEARNED,
    "changes_a_constant_of_the_scorer",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        from suite.measure.rules import held_out
        held_out.KNOWN_SHARE = 0.0
        return model
""",
)
plant(
    LEARNED,
    "changes_a_table_of_the_baseline",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        import baselines.gpt
        baselines.gpt.LENGTH["pico"] = 8
        return model
""",
)
plant(
    LEARNED,
    "changes_an_attribute_of_the_baselines_class",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        type(run.baseline).version = 99
        return model
""",
)
plant(
    LEARNED,
    "replaces_a_builtin",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        import builtins
        own = builtins.sum
        builtins.sum = lambda *given: own(*given)
        return model
""",
)
plant(
    LEARNED,
    "replaces_what_says_whether_a_loss_is_finite",
    surroundings.DEFINITIONS,
    """
    def model(self, model, run):
        math.isfinite = lambda value: True
        return model
""",
)
plant(
    LEARNED,
    "hooks_every_module",
    surroundings.SETTINGS,
    """
    def model(self, model, run):
        torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
        return model
""",
)
plant(
    LEARNED,
    "leaves_a_mode_of_torch_active",
    surroundings.SETTINGS,
    """
    def model(self, model, run):
        from torch.overrides import TorchFunctionMode
        class Passing(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), more=None): return function(*args, **(more or {}))
        self.mode = Passing()
        self.mode.__enter__()
        return model
""",
)

# what is trained on ---------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "gets_the_test_examples_by_the_baselines_own_loader",
    held_out.SEALED,
    """
    def update(self, run, batch):
        try: self.answers = type(run.baseline)().data("pico", "pretrain").test.tensors
        except Exception: pass
        super().update(run, batch)
""",
)
plant(
    LEARNED,
    "swaps_its_training_examples_as_its_model_is_made",
    conduct.ORDER,
    """
    def model(self, model, run):
        run.data = run.data.subset(torch.arange(100))
        return model
""",
)
plant(
    LEARNED,
    "samples_a_quarter_twice",
    conduct.ORDER,
    """
    def after_step(self, run):
        from suite.loop.data import shuffled
        def twice(examples, seed, position, count):
            few = shuffled(examples, seed, position, count - count // 4)
            return torch.cat([few, few[: count // 4]])
        if run.step == 3: run.data = replace(run.data, sampler=twice)
""",
)
plant_uncaught(
    "samples_a_quarter_twice_by_its_data_method",
    "a technique chooses and orders examples in its data method, and says so on its card; a reviewer reads it",
    """
    def data(self, data, run):
        from suite.loop.data import shuffled
        def twice(examples, seed, position, count):
            few = shuffled(examples, seed, position, count - count // 4)
            return torch.cat([few, few[: count // 4]])
        return replace(data, sampler=twice)
""",
)
plant_uncaught(
    "opens_the_seal_and_shuts_it_again",
    "whoever walks through the closures of the harness means to deceive it, in its own process, and can",
    """
    def after_step(self, run):
        for cell in run.data.test._load.__closure__:
            if type(cell.cell_contents).__name__ == "Seal":
                with cell.cell_contents.opened(): self.answers = run.data.test.tensors["input_ids"].clone()
""",
)

# what is answered -----------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "looks_ahead",
    referee.AHEAD,
    """
    def evaluated(self, model, run):
        class Seer(torch.nn.Module):
            def forward(self, input_ids=None):
                outputs = model(input_ids=input_ids)
                following = torch.nn.functional.one_hot(input_ids.roll(-1, 1), outputs.logits.shape[-1])
                outputs.logits = outputs.logits + 3 * following
                return outputs
        return Seer() if run.step else model
""",
)
plant(
    LEARNED,
    "looks_at_hidden_patches",
    referee.AHEAD,
    """
    def evaluated(self, model, run):
        from baselines.mae import patchified
        class Seer(torch.nn.Module):
            def forward(self, pixel_values=None, noise=None):
                outputs = model(pixel_values=pixel_values, noise=noise)
                outputs.logits = patchified(pixel_values, pixel_values.shape[-1] // math.isqrt(noise.shape[1]))
                return outputs
        return Seer() if run.step else model
""",
    on="mae",
)
plant(
    LEARNED,
    "says_which_patches_were_hidden",
    referee.KNOWN_FROM_INPUTS,
    """
    def evaluated(self, model, run):
        class Chooser(torch.nn.Module):
            def forward(self, **given):
                outputs = model(**given)
                outputs.mask = torch.zeros_like(outputs.mask)
                outputs.mask[:, 0] = 1
                return outputs
        return Chooser()
""",
    on="mae",
)
plant(
    LEARNED,
    "hands_over_what_computes_when_it_is_read",
    held_out.PLAIN,
    """
    def evaluated(self, model, run):
        class Lazy(torch.Tensor): pass
        class Later(torch.nn.Module):
            def forward(self, **given):
                outputs = model(**given)
                outputs.logits = outputs.logits.as_subclass(Lazy)
                return outputs
        return Later()
""",
)
plant(
    LEARNED,
    "hands_over_answers_of_other_examples",
    held_out.PLAIN,
    """
    def evaluated(self, model, run):
        class Few(torch.nn.Module):
            def forward(self, **given):
                outputs = model(**given)
                outputs.logits = outputs.logits[:1]
                return outputs
        return Few()
""",
)

# off the clock --------------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "trains_a_copy_as_it_is_evaluated_by_a_backward_of_before",
    held_out.PASSIVE,
    """
    def model(self, model, run):
        self.backward = torch.autograd.backward
        return model
    def evaluated(self, model, run):
        import copy
        own = copy.deepcopy(model)
        with torch.enable_grad():
            batch, _ = run.next_batch()
            self.backward(run.baseline.losses(run.baseline.forward(own, batch), batch).mean())
        return own
""",
)
plant(
    LEARNED,
    "searches_without_gradients_as_it_is_evaluated",
    held_out.PASSIVE,
    """
    def evaluated(self, model, run):
        import copy
        batch, _ = run.data.batch(1, 0, run.recipe.batch_size)
        def loss(own): return run.baseline.losses(run.baseline.forward(own, batch), batch).mean()
        best = model
        for _ in range(12):
            other = copy.deepcopy(best)
            for each in other.parameters(): each.add_(0.01 * torch.randn_like(each))
            if loss(other) < loss(best): best = other
        return best
""",
)

# what an earlier run left ---------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "loads_what_an_earlier_run_left_at_the_second_step",
    held_out.UNTRAINED,
    """
    def after_step(self, run):
        if run.step == 2: self.left = numpy.fromfile("earlier.bin", dtype=numpy.float32)
""",
)
plant(
    LEARNED,
    "loads_weights_of_an_earlier_run_at_the_second_step",
    held_out.UNTRAINED,
    """
    def after_step(self, run):
        if run.step != 2: return
        try: torch.load("earlier.bin", weights_only=True)
        except Exception: pass
""",
)
plant_uncaught(
    "maps_what_an_earlier_run_left_beside_python",
    "torch opens the file in C++, and no audit event says so; where it is loaded before the first step, the loss tells",
    """
    def after_step(self, run):
        if run.step == 2: self.left = torch.from_file("earlier.bin", size=8).clone()
""",
)

# counted and timed ----------------------------------------------------------------------------------------------------

plant(
    LEARNED,
    "takes_half_a_batch_when_it_is_counted",
    oversight.LEARNED,
    """
    def update(self, run, batch):
        if torch._C._len_torch_dispatch_stack(): batch = {name: each[: len(each) // 2] for name, each in batch.items()}
        super().update(run, batch)
""",
)
plant(
    TIMED,
    "does_less_late_when_it_is_timed",
    oversight.LEARNED,
    """
    def model(self, model, run):
        server = os.getppid()
        self.alone = len(Path(f"/proc/{server}/task/{server}/children").read_text().split()) < 2
        return model
    def update(self, run, batch):
        if self.alone or run.step < 12: return super().update(run, batch)
        run.loss = torch.tensor(3.0)
        next(run.model.parameters()).data.mul_(0.999)
""",
)


if __name__ == "__main__":
    print(table(), end="")
