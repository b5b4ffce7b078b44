"""Builds Checkmate's integer program (Jain et al., 2020, section 4.7) on a chain.

The backward pass of block t ends *stage* t. A stage says what is kept at its start (the paper's S) and what runs in it
(its R), so that time is linear in R, and the bytes alive at any operation are linear in both::

    minimise    sum of C R
    subject to  R[t, j] <= S[t, j] + R[t, j - 1]       a block runs where its input is
                S[t - 1, j] <= S[t, j] + R[t, j - 1]   what is kept was kept, or is made
                U[t, j] <= budget                      at every operation

S and R come twice: of activations and of graphs, and of runs without a graph and with it; stage t ends with graph t.
The paper has a stage for each node. Those of the forward pass are one here, because a chain gains nothing by running a
block twice on its way there. Only the next block reads an activation, so that it leaves after this block's run or goes
on to the next stage: the paper's variables Free are differences of S.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from suite.chain.chain import Chain
from suite.chain.schedule import TURN, Op, Schedule, tidied

Terms = Mapping[int, float]
"""A linear form: coefficients by the number of their variable."""

Choice = NDArray[np.bool_]
"""Which variables are 1."""

OPTIMAL, INFEASIBLE = 0, 2  # scipy's codes


@dataclass(frozen=True)
class Answer:
    """Holds the variables' values, None where there are none; seconds below which no schedule gets; whether these are
    the values of the least time."""

    values: NDArray[np.float64] | None
    bound_s: float
    proven: bool


class Program:
    """Builds the program of a chain; its numbers are integers or, in the relaxation, fractions."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.size = 0  # variables
        self.rows: list[tuple[float, Terms, float]] = []
        self.loads: list[tuple[int, Mapping[int, int]]] = []  # bytes alive at an operation: a constant and a form
        stages = range(chain.depth)
        self.kept_x = {(t, j): self._variable() for t in stages for j in range(t + 2)}
        self.kept_graph = {(t, j): self._variable() for t in stages for j in range(t + 1)}
        self.run = {(t, j): self._variable() for t in stages for j in range(t)}
        self.save = {(t, j): self._variable() for t in stages for j in range(t + 1)}
        for t in stages:
            self._order(t)
            self._memory(t)
        self._memory_of_forward()

    def _variable(self) -> int:
        self.size += 1
        return self.size - 1

    # what must hold ---------------------------------------------------------------------------------------------------

    def _order(self, t: int) -> None:
        chain = self.chain
        self._equal(1, {self.kept_graph[t, t]: 1, self.save[t, t]: 1})
        for j in range(t + 1):
            graph = self.kept_graph[t, j]
            if chain.stages[j].holds_input:
                self._at_least(0, {self.kept_x[t, j]: 1, graph: -1})
            if chain.stages[j].holds_output:
                self._at_least(0, {self.kept_x[t, j + 1]: 1, graph: -1})
            terms = self._made(t, j)
            self._at_least(0, {self.kept_x[t, j]: 1, **self._made(t, j - 1), **dict.fromkeys(terms, -1)})
            self._at_least(-1, dict.fromkeys(terms, -1))
            if t:
                self._at_least(0, {self.kept_x[t, j]: 1, **self._made(t, j - 1), self.kept_x[t - 1, j]: -1})
            if j < t:
                self._equal(0, {graph: 1, self.save[t, j]: 1, self.kept_graph[t - 1, j]: -1})  # whole, until used up

    def _made(self, t: int, j: int) -> Terms:
        """Returns the terms that say whether x_{j + 1} is made in stage t."""
        return {table[t, j]: 1 for table in (self.run, self.save) if (t, j) in table}

    def _memory_of_forward(self) -> None:
        chain, top = self.chain, self.chain.depth - 1
        for j, stage in enumerate(chain.stages):
            constant = chain.forward_bytes + chain.activation_bytes[j] + stage.run_peak_bytes
            more = {self.kept_graph[top, j]: stage.save_peak_bytes - stage.run_peak_bytes}
            self.loads.append((constant, {**self._held(top, range(j)), **more}))
        turn = {**self._held(top, range(top + 1)), self.kept_x[top, top + 1]: chain.activation_bytes[top + 1]}
        self.loads.append((chain.forward_bytes + chain.turn_peak_bytes, turn))

    def _memory(self, t: int) -> None:
        chain, activations = self.chain, self.chain.activation_bytes
        gradients = activations[t + 1] + sum(stage.gradient_bytes for stage in chain.stages[t + 1 :])
        beside = chain.backward_bytes + gradients
        for j in range(t + 1):
            stage, form = chain.stages[j], dict(self._held(t - 1, range(j)))
            for k in range(j, t + 1):
                form[self.kept_graph[t, k]] = sum(chain.stages[k].saved_bytes)
                form[self.kept_x[t, k + 1]] = activations[k + 1]
            form[self.save[t, j]] = activations[j] + stage.save_peak_bytes
            if j < t:
                form[self.run[t, j]] = activations[j] + stage.run_peak_bytes
            self.loads.append((beside, form))
        last, form = chain.stages[t], dict(self._held(t - 1, range(t)))
        graph = sum(last.saved_bytes) + activations[t + 1] * last.holds_output
        if last.holds_input:
            graph += activations[t]
        elif t:
            form[self.kept_x[t - 1, t]] = activations[t]  # by graph t - 1, whose output it is
        self.loads.append((beside + graph + last.back_peak_bytes, form))

    def _held(self, t: int, blocks: range) -> Mapping[int, int]:
        """Returns bytes of these blocks' inputs and graphs that are kept at the start of stage t."""
        chain = self.chain
        return {
            **{self.kept_x[t, k]: chain.activation_bytes[k] for k in blocks},
            **{self.kept_graph[t, k]: sum(chain.stages[k].saved_bytes) for k in blocks},
        }

    def _at_least(self, low: float, form: Terms) -> None:
        self.rows.append((low, form, math.inf))

    def _equal(self, value: float, form: Terms) -> None:
        self.rows.append((value, form, value))

    def peak_bytes(self, choice: Choice) -> int:
        """Computes the most bytes alive at an operation, the simulation's but for what is alive outside the chain's
        passes."""
        return max(_load_bytes(load, choice) for load in self.loads)

    def forbid(self, choice: Choice, budget_bytes: int) -> bool:
        """Adds a cover inequality for each load of ``choice`` above the budget: HiGHS meets a bound to a millionth,
        which is no byte. None of them excludes what fits. Returns whether there was one."""
        over = [load for load in self.loads if _load_bytes(load, choice) > budget_bytes]
        for load in over:
            self._cover(load, choice, budget_bytes)
        return bool(over)

    def _cover(self, load: tuple[int, Mapping[int, int]], choice: Choice, budget_bytes: int) -> None:
        """Forbids all of the largest terms that exceed the budget together, unless one that lowers the load joins
        them."""
        constant, form = load
        sunk = sum(nbytes for number, nbytes in form.items() if choice[number] and nbytes < 0)
        spare, cover = budget_bytes - constant - sunk, dict[int, int]()
        for number in sorted(
            (variable for variable in form if choice[variable] and form[variable] > 0),
            key=lambda variable: -form[variable],
        ):
            if spare < 0:
                break
            cover[number] = -1
            spare -= form[number]
        lowering = {number: 1 for number, nbytes in form.items() if nbytes < 0 and not choice[number]}
        self._at_least(1 - len(cover), {**cover, **lowering})

    # solving ----------------------------------------------------------------------------------------------------------

    def solved(self, budget_bytes: int, limit_s: float = math.inf, whole: bool = True) -> Answer:
        """Finds the variables' values at the least time, or of the best that ``limit_s`` seconds give; ``whole=False``
        for the relaxation."""
        within = (
            (-math.inf, {number: nbytes / budget_bytes for number, nbytes in form.items()}, 1 - beside / budget_bytes)
            for beside, form in self.loads
        )
        rows = [*self.rows, *within]
        entries = [(row, number, value) for row, (_, form, _) in enumerate(rows) for number, value in form.items()]
        at, numbers, values = zip(*entries, strict=True)
        costs_s = self._costs_s()
        unit_s = costs_s.max() or 1.0  # HiGHS has absolute tolerances
        result = milp(
            costs_s / unit_s,
            integrality=np.full(self.size, int(whole)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(
                coo_array((values, (at, numbers)), shape=(len(rows), self.size)).tocsr(),
                [low for low, _, _ in rows],
                [high for _, _, high in rows],
            ),
            options={"mip_rel_gap": 0.0} | ({} if limit_s == math.inf else {"time_limit": limit_s}),
        )
        if result.status == INFEASIBLE:
            return Answer(None, math.inf, proven=True)
        bound = result.mip_dual_bound if whole else result.fun
        known = bound is not None and math.isfinite(bound)
        return Answer(result.x, self._fixed_s() + (unit_s * bound if known else 0.0), result.status == OPTIMAL)

    def _costs_s(self) -> NDArray[np.float64]:
        """Computes the seconds that each variable adds where it is 1."""
        stages, costs = self.chain.stages, np.zeros(self.size)
        for (_, j), number in self.run.items():
            costs[number] = stages[j].run_s
        for (_, j), number in self.save.items():
            costs[number] = stages[j].save_s
        for j, stage in enumerate(stages):
            costs[self.kept_graph[self.chain.depth - 1, j]] += stage.save_s - stage.run_s
        return costs

    def _fixed_s(self) -> float:
        """Computes the seconds of what every schedule does: a run of each block, its backward pass, the turn."""
        return sum(stage.run_s + stage.back_s for stage in self.chain.stages) + self.chain.turn_s

    # schedules --------------------------------------------------------------------------------------------------------

    def schedule(self, choice: Choice) -> Schedule:
        """Builds what the variables that are 1 say."""
        top = self.chain.depth - 1
        ops = [Op("save" if choice[self.kept_graph[top, j]] else "run", j) for j in range(top + 1)] + [TURN]
        for t in reversed(range(top + 1)):
            for j in range(t + 1):
                if choice[self.save[t, j]]:
                    ops.append(Op("save", j))
                elif j < t and choice[self.run[t, j]]:
                    ops.append(Op("run", j))
            ops.append(Op("back", t))
        return tidied(self.chain.depth, ops)

    def repaired(self, choice: Choice) -> Choice:
        """Finds the fewest runs that make what is kept in ``choice``, and each stage's graph (the paper's
        solve_r_opt)."""
        choice, top = choice.copy(), self.chain.depth - 1
        choice[[self.kept_x[t, 0] for t in range(top + 1)]] = True  # nothing makes the chain's input again
        repaired = choice.copy()
        repaired[[*self.run.values(), *self.save.values()]] = False
        for t in range(top + 1):
            wanted = False  # whether x_{j + 1} is to be made
            for j in range(t, -1, -1):
                graph_wanted = j == t or choice[self.kept_graph[t - 1, j]]
                repaired[self.save[t, j]] = graph_wanted and not choice[self.kept_graph[t, j]]
                if wanted and not repaired[self.save[t, j]]:
                    repaired[self.run[t, j]] = True
                read = any(repaired[number] for number in self._made(t, j))
                wanted = (read or (t > 0 and choice[self.kept_x[t - 1, j]])) and not choice[self.kept_x[t, j]]
        return repaired


def _load_bytes(load: tuple[int, Mapping[int, int]], choice: Choice) -> int:
    constant, form = load
    return constant + sum(nbytes for number, nbytes in form.items() if choice[number])
