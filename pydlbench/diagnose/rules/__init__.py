"""The rules: each reads what is known of a step and names what may cost time.

A rule knows no model and no layer by name. It says nothing where its symptom is absent, or where
what it could save is less than anybody would care for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.rules import (
    arithmetic,
    batch,
    channels,
    copies,
    decay,
    dispatch,
    first_touch,
    fusion,
    layout,
    loss,
    operators,
    optimizer,
    roofs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydlbench.diagnose.finding import Hypothesis
    from pydlbench.diagnose.observations import Observations

__all__ = ["RULES"]

#: In the order in which their symptoms are named where they share an experiment.
RULES: Final[tuple[Callable[[Observations], Iterator[Hypothesis]], ...]] = (
    first_touch.find,
    layout.find,
    operators.find,
    channels.find,
    copies.find,
    roofs.find,
    dispatch.find,
    fusion.find,
    optimizer.find,
    decay.find,
    loss.find,
    batch.find,
    arithmetic.find,
)
