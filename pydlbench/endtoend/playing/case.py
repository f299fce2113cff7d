"""A published protocol on a model in a framework, in a form that crosses to its process."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.endtoend.protocols import find_protocol
from pydlbench.endtoend.step import StepCase
from pydlbench.models import build_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydlbench.endtoend.protocols import Published, Settings
    from pydlbench.models.graph import Model

__all__ = ["ProtocolCase"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolCase:
    """What is played, and how.

    Attributes:
        protocol: its name.
        model: None is the first that the script was written for.
        options: of the model, besides those that the script sets.
        framework: None is the script's own.
        mode: None is the framework's first.
        precision: of the products.
        cast: below float32: ``mixed`` or ``whole``; None is what the script does.
        layout: ``nhwc`` or ``nchw``.
        device: ``cpu`` or ``cuda:N``.
        seed: of weights and images.
        batch: images per step; this and the following: None is the script's.
        warmup: steps before those that count.
        steps: that count.
        every: steps between lines.
        epochs: passes over the training images.
        quirks: switched on.
        without: quirks switched off.
        data: folder of the real data set; None generates images.
        generated: how many images to generate: for training (those for validation included), for
            validation and for the test; None is as many as the real data set has.

    Raises:
        UsageError: no such protocol, framework and so on; a model that the script does not have;
            a number that cannot be.
    """

    protocol: str
    model: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    framework: str | None = None
    mode: str | None = None
    precision: str = "fp32"
    cast: str | None = None
    layout: str = "nhwc"
    device: str = "cpu"
    seed: int = 0
    batch: int | None = None
    warmup: int | None = None
    steps: int | None = None
    every: int | None = None
    epochs: float | None = None
    quirks: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    data: str | None = None
    generated: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        published = self.published
        if self.model is None:
            object.__setattr__(self, "model", published.models[0])
        published.check_model(str(self.model))
        if self.framework is None:
            object.__setattr__(self, "framework", published.framework)
        object.__setattr__(self, "mode", self.step.mode)
        self.settings()

    @property
    def published(self) -> Published:
        """The protocol."""
        return find_protocol(self.protocol)

    @property
    def step(self) -> StepCase:
        """How its steps are run, whatever they are."""
        cast = self.cast or self.published.specs_in(str(self.framework))[0].cast
        return StepCase(
            model=str(self.model),
            framework=str(self.framework),
            mode=self.mode,
            precision=self.precision,
            cast=cast,
            layout=self.layout,
            device=self.device,
            seed=self.seed,
        )

    def settings(self) -> Settings:
        """Return the script's settings with this case's changes."""
        return self.published.settings(
            self.model,
            batch=self.batch,
            warmup=self.warmup,
            steps=self.steps,
            every=self.every,
            epochs=self.epochs,
            quirks=self.quirks,
            without=self.without,
        )

    def build(self) -> Model:
        """Return the model's graph as the script has it."""
        options = {**self.published.model_options(str(self.model)), **self.options}
        return build_model(str(self.model), self.settings().batch, **options)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able form that :meth:`from_dict` reads back."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {**fields, "options": dict(self.options)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ProtocolCase:
        """Rebuild a case from :meth:`to_dict`'s form, JSON's lists included."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        return cls(**plain)
