"""The candidates of one case on a CPU: made, tried, verified, and given back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pydlbench._cpu as _cpu
from pydlbench.backends.native import search
from pydlbench.backends.reference import Verdict, make_inputs, verify
from pydlbench.errors import PydlbenchError, UnsupportedError
from pydlbench.layers import Pointwise
from pydlbench.timing.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.backends.base import Preparation
    from pydlbench.backends.case import Case

__all__ = ["CpuSearch"]

_CACHES = {
    "hot": _cpu.CacheState.hot,
    "weights-cold": _cpu.CacheState.weights_cold,
    "all-cold": _cpu.CacheState.all_cold,
}
_TRIES = 3
_WAIT = Policy()


class _Contender:
    def __init__(self, kernel: _cpu.Kernel) -> None:
        self.kernel = kernel

    def seconds(self, samples: int, untimed: int = 0) -> Sequence[float]:
        """Return times; those of a moment in which others had the CPUs are taken again, twice."""
        seconds: list[float] = []
        for _ in range(_TRIES):
            raw = self.kernel.sample(samples, 1, untimed)
            seconds = raw["seconds"].tolist()
            waited = max(_WAIT.chunk_wait_floor_s, _WAIT.chunk_wait_fraction * raw["wall_s"])
            if raw["run_delay_s"] <= waited:
                break
        return seconds


class CpuSearch:
    """The candidates of one case on their way to the choice of one."""

    def __init__(
        self, case: Case, preparation: Preparation, cpus: list[int], effort: search.Effort
    ) -> None:
        self.case = case
        self.preparation = preparation
        self.cpus = cpus
        self.effort = effort
        self.inputs = make_inputs(
            case.layer, case.pass_, case.precision, preparation.seed, propagation=case.propagation
        )
        self.arena = _cpu.Arena(self.inputs)
        self.kernels: dict[int, _cpu.Kernel] = {}
        self.verdicts: dict[int, Verdict] = {}
        self.reorders: dict[int, dict[str, float]] = {}

    def kernel(self, entrant: search.Entrant) -> _cpu.Kernel:
        """Return the candidate's kernel, made when first asked for."""
        key = id(entrant)
        if key not in self.kernels:
            self.kernels[key] = _cpu.Kernel(
                entrant.candidate,
                self.arena,
                _CACHES[self.case.cache],
                self.preparation.cold_bytes,
                self.cpus,
            )
        return self.kernels[key]

    def drop(self, entrant: search.Entrant) -> None:
        """Give back a candidate's kernel."""
        self.kernels.pop(id(entrant), None)

    def tidy(self) -> None:
        """Give back the shared tensors if they have grown too large, and what holds them."""
        if self.arena.bytes > self.preparation.memory_bytes // 4:
            self.kernels.clear()
            self.arena.clear()

    def try_all(self, entrants: Sequence[search.Entrant], *, thorough: bool) -> int:
        """Give each entrant a trial; return how many cannot be tried at all."""
        best = float("inf")
        refused = 0
        effort = self.effort
        if len(entrants) == 1 and not thorough:
            # It needs no time to be chosen by: that it runs is enough.
            effort = dataclasses.replace(effort, trial_s=0.0)
        for entrant in entrants:
            try:
                search.trial(
                    entrant, self.contender(entrant), best, thorough=thorough, effort=effort
                )
                if thorough:
                    self.reorders[id(entrant)] = self.kernel(entrant).reorder_seconds()
                    if wrong := self.verify(entrant):
                        entrant.disqualify(wrong)
            except PydlbenchError as error:
                entrant.disqualify(error)
                refused += isinstance(error, UnsupportedError)
            if entrant.status == "ok":
                best = min(best, entrant.time)
            self._keep_finalists(entrants, best)
            self.tidy()
        return refused

    def _keep_finalists(self, entrants: Sequence[search.Entrant], best: float) -> None:
        """Give back the kernels that will not race, if nobody is faster than ``best``.

        Making a kernel again takes as long as its trial. But a cold one holds many copies.
        """
        if len(entrants) == 1:
            return
        hot = self.case.cache == "hot"
        racing = [one for one in entrants if hot and search.may_win(one, best, self.effort)]
        kept = {id(one) for one in search.ranking(racing)[: self.effort.finalists]}
        for entrant in entrants:
            if id(entrant) not in kept:
                self.drop(entrant)

    def contender(self, entrant: search.Entrant) -> _Contender:
        """Make a candidate runnable."""
        return _Contender(self.kernel(entrant))

    def verify(self, entrant: search.Entrant) -> str | None:
        """Run a candidate on poisoned outputs and compare; returns what is wrong with it."""
        kernel = self.kernel(entrant)
        kernel.run_poisoned()
        layer = self.case.layer
        extra = None
        if isinstance(layer, Pointwise):
            # What belongs to channels has as many dimensions as a primitive likes.
            written = kernel.outputs()
            extra = {role: array.reshape(layer.dims(role)) for role, array in written.items()}
            output = extra.pop(layer.writes(self.case.pass_, self.case.propagation)[0])
        else:
            output = kernel.output()
        verdict = verify(
            layer,
            self.case.pass_,
            self.case.precision,
            self.inputs,
            output,
            seed=self.preparation.seed,
            algorithm=entrant.candidate.implementation,
            extra=extra,
            propagation=self.case.propagation,
        )
        self.verdicts[id(entrant)] = verdict
        return None if verdict.status == "ok" else verdict.detail
