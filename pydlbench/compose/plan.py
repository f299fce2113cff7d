"""Which kernels a step is made of: each distinct one is measured once, however often it occurs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydlbench.backends.case import Case
from pydlbench.models.work import work

if TYPE_CHECKING:
    from pydlbench.models.graph import Model
    from pydlbench.models.work import Work

__all__ = ["COLD", "HOT", "Plan", "Term", "plan"]

HOT = "hot"
COLD = "all-cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One piece of a step's work.

    Attributes:
        work: which node's, in which pass.
        hot: what is measured for it, its operands in the cache as far as they fit.
        cold: the same with nothing in the cache; ``hot`` where the operands would not fit anyway.
    """

    work: Work
    hot: Case
    cold: Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A step's work and the measurements that it takes.

    Attributes:
        model: the model, with its batch.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        terms: in the order of execution.
    """

    model: Model
    phase: str
    precision: str
    terms: tuple[Term, ...]

    @property
    def cases(self) -> tuple[Case, ...]:
        """What is to be measured: each distinct case once, hot and cold ones beside each other."""
        found: dict[Case, None] = {}
        for term in self.terms:
            found.setdefault(term.hot)
            found.setdefault(term.cold)
        return tuple(found)


def plan(
    model: Model,
    phase: str = "forward",
    precision: str = "fp32",
    device: str = "cpu",
    cache_bytes: int | None = None,
) -> Plan:
    """Return the work of a step and what has to be measured for it.

    Args:
        model: with its batch.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        device: ``cpu`` or ``cuda:N``.
        cache_bytes: size of the last cache before memory. A kernel whose operands take four times
            as much finds none of them there, whoever ran before: it is measured once, not twice.
            None measures everything twice.

    Raises:
        UsageError: no such phase.
    """
    known: dict[Case, Case] = {}  # without names -> as it is called where it first occurs

    def shared(case: Case) -> Case:
        nameless = dataclasses.replace(case, layer=dataclasses.replace(case.layer, name=None))
        return known.setdefault(nameless, case)

    terms = []
    for one in work(model, phase):
        hot = Case(
            layer=one.layer,
            pass_=one.pass_,
            precision=precision,
            propagation=one.propagation,
            cache=HOT,
            device=device,
        )
        cold = hot
        if cache_bytes is None or one.layer.bytes(one.pass_, itemsize(precision)) < 4 * cache_bytes:
            cold = dataclasses.replace(hot, cache=COLD)
        terms.append(Term(work=one, hot=shared(hot), cold=shared(cold)))
    return Plan(model=model, phase=phase, precision=precision, terms=tuple(terms))


def itemsize(precision: str) -> int:
    """Return the bytes of an element: 4, 2 or 1."""
    return 4 if precision in ("fp32", "tf32") else 1 if precision.startswith("fp8") else 2
