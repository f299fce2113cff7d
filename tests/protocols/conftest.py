"""An invented framework: every kind of step takes a stated time on an invented clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench.backends.steps.definition import Outcome
from pydlbench.protocols.interpreter import run_protocol
from pydlbench.protocols.protocol import LogStream, ProtocolRun, ProtocolSubject, find_protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.steps.definition import StepDefinition
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.protocols.data.datasets import Dataset
    from pydlbench.records.published import ProtocolNumber


@dataclass
class World:
    """A clock, a log stream and a model in one, which remembers what it saw.

    ``seconds`` gives a step's time by its name and how often it ran before; ``waiting`` is what the
    device still has to do when a step that fetches nothing has returned.
    """

    seconds: Callable[[str, int], float] = field(default=lambda _name, _count: 1e-3)
    launches: bool = False
    predict: Callable[[Batch], np.ndarray] | None = None
    loss: Callable[[int], float] = field(default=lambda count: 7.0 + count)
    initialization: float = 0.0
    clock: float = 100.0
    waiting: float = 0.0
    lines: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    definitions: list[StepDefinition] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    rates: list[float | None] = field(default_factory=list)
    fed: list[Batch | None] = field(default_factory=list)

    def initialize(self) -> None:
        self.clock += self.initialization

    def synchronize(self) -> None:
        self.clock += self.waiting
        self.waiting = 0.0

    def prepare(self, definition: StepDefinition) -> Callable[..., Outcome]:
        self.definitions.append(definition)

        def step(batch: Batch | None = None, rate: float | None = None) -> Outcome:
            count = self.ran.count(definition.name)
            self.ran.append(definition.name)
            self.rates.append(rate)
            self.fed.append(batch)
            assert (batch is not None) == (definition.feed == "host")
            self.waiting += self.seconds(definition.name, count)
            if not self.launches or definition.fetch:
                self.synchronize()
            predictions = None
            if "predictions" in definition.fetch:
                assert batch is not None
                predictions = self._predict(batch)
            return Outcome(
                loss=self.loss(count) if "loss" in definition.fetch else None,
                predictions=predictions,
            )

        return step

    def _predict(self, batch: Batch) -> np.ndarray:
        if self.predict is not None:
            return self.predict(batch)
        return np.eye(10, dtype=np.float32)[batch.labels]

    def today(self) -> datetime:
        return datetime(2019, 1, 8, 10, 1, 11) + timedelta(seconds=self.clock)

    def run(
        self,
        protocol: str,
        subject: ProtocolSubject | None = None,
        data: Dataset | None = None,
        **settings: Any,
    ) -> tuple[ProtocolNumber, ...]:
        found = find_protocol(protocol)
        subject = subject or ProtocolSubject(model=found.models[0], image=(3, 224, 224))
        return run_protocol(
            ProtocolRun(
                protocol=found,
                model=self,
                subject=subject,
                settings=found.settings(subject.model, **settings),
                log=LogStream(
                    write=self.lines.append,
                    note=self.notes.append,
                    now=lambda: self.clock,
                    today=self.today,
                ),
                data=data,
            )
        )


@pytest.fixture
def world():
    """The class: each test invents its own."""
    return World
