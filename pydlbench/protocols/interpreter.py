"""Runs a protocol on a model in a framework, and prints the lines of its script."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.steps.definition import FrameworkStep, Outcome, StepDefinition
from pydlbench.backends.steps.inputs import Batch
from pydlbench.errors import UsageError
from pydlbench.protocols.data.datasets import Dataset, Split
from pydlbench.protocols.protocol import ProtocolRun, TimedLoop, TrainingLoop
from pydlbench.records.published import ProtocolNumber
from pydlbench.timing.statistics import median

#: Images per epoch, by data set.
_EPOCH: Final = {"imagenet": 1_281_167, "cifar10": 50_000}
_CIFAR_SIZE: Final = 32
# Index of the evaluating definition of a training script.
_EVALUATION: Final = 2


def run_protocol(run: ProtocolRun) -> tuple[ProtocolNumber, ...]:
    """Run a protocol, print its lines and return its numbers.

    Raises:
        UsageError: without the data that it needs, or with settings that the data do not allow.
        UnsupportedError: the framework cannot do what the script does.
    """
    protocol, data = run.protocol, run.data
    if protocol.data is not None:
        if data is None:
            raise UsageError(
                f"--protocol {protocol.name}: needs images; use --data or generated ones"
            )
        if data.name != protocol.data:
            raise UsageError(
                f"--protocol {protocol.name}: {data.name} is not its data; nearest: {protocol.data}"
            )
        if data.remark:
            run.log.note(data.remark)
    loop = protocol.loop_with(run.settings)
    definitions = protocol.definitions_in(run.subject.framework, run.settings)
    if isinstance(loop, TimedLoop):
        return tuple(_TimedSection(run, loop, definitions).run())
    assert data is not None, "scripts that train have data"
    return tuple(_Training(run, loop, definitions, data).run())


class _Lines:
    """Writes a protocol's lines from templates, with the fields of the run."""

    def __init__(self, run: ProtocolRun, definitions: Sequence[StepDefinition]) -> None:
        self._log = run.log
        subject, protocol, batch = run.subject, run.protocol, run.settings.batch
        steps = run.settings.steps or 1
        dataset = "cifar10" if subject.image[1] == _CIFAR_SIZE else "imagenet"
        on_gpu = ":" in subject.device
        trains = definitions[0].phase == "training"
        self._known: dict[str, Any] = {
            "began": run.log.today().isoformat(),
            "model": subject.model,
            "title": protocol.titles.get(subject.model, subject.model),
            "framework": protocol.frameworks.get(subject.framework, subject.framework),
            "version": ".".join(subject.version.split(".")[:2]),
            "precision": subject.precision,
            "layout": subject.layout,
            "optimizer": subject.optimizer,
            "device": f"/gpu:{subject.device.partition(':')[2]}" if on_gpu else "/cpu:0",
            "batch": batch,
            "steps": steps,
            "shape": "x".join(str(extent) for extent in (batch, *subject.image)),
            "dataset": dataset,
            "epochs": steps * batch / _EPOCH[dataset],
            "mode": "TRAIN" if trains else "FORWARD_ONLY",
        }

    def fill(self, template: str, fields: dict[str, Any]) -> str:
        """Return a template with its fields filled in."""
        return template.format_map({**self._known, **fields})

    def write(self, templates: Iterable[str], **fields: Any) -> None:
        """Write lines, each with the time of day."""
        for template in templates:
            self._log.write(self.fill(template, {**fields, "stamp": self._log.stamp()}))


# -----------------------------------------------------------------------------
# Scripts that time steps on resident images.


def summary(times: Sequence[float], batch: int, steps: int) -> dict[str, float]:
    """Return the statistics of step times that scripts print; see ``protocol.FIELDS``.

    Args:
        times: times of the timed steps in seconds; at least one.
        batch: number of images per step.
        steps: divisor of the sums. If a script drops a step but divides by all of them, equal times
            ``t`` of 100 steps have the mean ``0.99 t`` and the spread ``sqrt(0.99 - 0.99^2) t =
            0.0995 t``: this explains published spreads of 10 %.
    """
    mean = sum(times) / steps
    rates = [batch / time for time in times]
    mean_rate = sum(rates) / len(rates)
    variance = sum((rate - mean_rate) ** 2 for rate in rates) / len(rates)
    middle = median(rates)
    return {
        "mean": mean,
        "ms": 1e3 * mean,
        # Rounding can make the difference of equal times a little negative.
        "spread": math.sqrt(max(0.0, sum(t * t for t in times) / steps - mean * mean)),
        "rate": batch * len(times) / sum(times),
        "uncertainty": math.sqrt(variance / len(rates)),
        "jitter": 1.4826 * median(abs(rate - middle) for rate in rates),
    }


class _TimedSection:
    """Runs a script that times steps."""

    def __init__(
        self, run: ProtocolRun, loop: TimedLoop, definitions: Sequence[StepDefinition]
    ) -> None:
        self._run, self._loop, self._definitions = run, loop, definitions
        self._lines = _Lines(run, definitions)
        self._steps = run.settings.steps or 1

    def run(self) -> Iterator[ProtocolNumber]:
        """Warm up and time each kind of step; yield the numbers.

        Raises:
            UsageError: there is a single step, which is dropped.
        """
        run, loop = self._run, self._loop
        if loop.drops_first and self._steps == 1:
            quirk = next(quirk.name for quirk in run.protocol.quirks if "drops_first" in quirk.loop)
            raise UsageError(
                f"--steps 1: {run.protocol.name} drops the first timed step; nearest: "
                f"--steps 2, or --quirk {quirk}=off"
            )
        self._lines.write(loop.heading)
        for name, shape in run.subject.activations if loop.activation else ():
            self._lines.write([loop.activation], name=name, shape=list(shape))
        run.model.initialize()
        prepared: list[FrameworkStep] = []
        if loop.together:
            prepared = [run.model.prepare(definition) for definition in self._definitions]
            self._warm_up(prepared)
        means: list[float] = []
        for index, definition in enumerate(self._definitions):
            if loop.together:
                step = prepared[index]
            else:
                step = run.model.prepare(definition)
                self._lines.write(loop.warming)
                self._warm_up([step])
            self._lines.write(loop.ready)
            times, fields = self._timed(step, definition)
            fields |= {"index": index, "name": definition.name}
            self._lines.write(loop.stage, **fields)
            means.append(fields["mean"])
            for figure in loop.figures:
                yield ProtocolNumber(
                    name=self._lines.fill(figure.name, fields),
                    value=fields[figure.value],
                    unit=figure.unit,
                    spread=None if figure.spread is None else fields[figure.spread],
                    times=times if figure.samples else (),
                    includes=definition.includes() + figure.more,
                )
        for name, indices in loop.sums.items():
            ms = 1e3 * sum(means[index] for index in indices)
            self._lines.write(loop.stage, name=name, ms=ms)
            yield ProtocolNumber(name=name, value=ms, unit="ms", includes="sum of the above")

    def _warm_up(self, steps: Sequence[FrameworkStep]) -> None:
        for _ in range(self._run.settings.warmup):
            for step in steps:
                step()
            self._run.model.synchronize()

    def _timed(
        self, step: FrameworkStep, definition: StepDefinition
    ) -> tuple[tuple[float, ...], dict[str, Any]]:
        """Return the seconds of the timed steps, and their statistics."""
        now, wait = self._run.log.now, self._run.model.synchronize
        batch, every, steps = self._run.settings.batch, self._run.settings.every, self._steps
        loop = self._loop
        around = loop.waits == "around"
        begin = now()
        if loop.clock == "loop":
            for _ in range(steps):
                step()
            wait()
            mean = (now() - begin) / steps
            return (), {"mean": mean, "ms": 1e3 * mean}
        times: list[float] = []
        for index in range(steps):
            if around:
                wait()
            start = now()
            outcome = step()
            if around or not definition.fetch:
                wait()
            seconds = now() - start
            if index == 0 and loop.drops_first:
                continue
            times.append(seconds)
            number = index + loop.first
            if loop.line and (index == 0 or number % every == 0):
                fields = summary(times, batch, steps)
                loss = outcome.loss or 0.0
                self._lines.write([loop.line], index=number, seconds=seconds, loss=loss, **fields)
        total = steps * batch / (now() - begin)
        return tuple(times), {**summary(times, batch, steps), "total": total}


# -----------------------------------------------------------------------------
# Scripts that train on a data set and print the time between lines.


def error_rate(predictions: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the percentage of rows whose largest entry is not the label's."""
    right = int((predictions.argmax(axis=1) == labels).sum())
    return 100.0 - 100.0 * right / len(labels)


class _Training:
    """Runs a script that trains."""

    def __init__(
        self,
        run: ProtocolRun,
        loop: TrainingLoop,
        definitions: Sequence[StepDefinition],
        data: Dataset,
    ) -> None:
        self._run, self._loop, self._definitions, self._data = run, loop, definitions, data
        self._batch = run.settings.batch
        self._images = len(data.train.labels)
        self._lines = _Lines(run, definitions)

    def run(self) -> list[ProtocolNumber]:
        """Train, print lines in between, test at the end; return the numbers."""
        run, loop, log = self._run, self._loop, self._run.log
        every = run.settings.every
        self._check_sizes()
        steps, batches = self._steps(), self._batches()
        train, *others = (run.model.prepare(definition) for definition in self._definitions)
        report, evaluate = others or (None, None)
        seconds: list[float] = []
        validation = 0.0
        start = log.now()
        run.model.initialize()
        self._lines.write(loop.ready)
        for index in range(steps):
            fed = next(batches)
            outcome = train(fed, self._rate(index))
            if not self._definitions[0].fetch:
                run.model.synchronize()
            if index % every:
                continue
            if report is not None:
                outcome = report(fed)
            current = log.now()
            elapsed, start = current - start, current
            share = every if index or loop.first_over_all else 1
            self._report(index, elapsed, share, outcome, fed)
            if evaluate is not None:
                validation = self._evaluate(evaluate, self._data.validation)
                self._lines.write([loop.validation], error=validation)
                if not loop.validation_in_time:
                    start = log.now()
            if index:
                seconds.append(elapsed / share)
        numbers = self._figure(seconds)
        if evaluate is not None:
            test = self._evaluate(evaluate, self._data.test)
            self._lines.write([loop.test], error=test)
            numbers.append(ProtocolNumber(name="Validation error", value=validation, unit="%"))
            numbers.append(ProtocolNumber(name="Test error", value=test, unit="%"))
        return numbers

    def _rate(self, step: int) -> float:
        return self._loop.rate(step, self._batch, self._images)

    def _report(self, index: int, elapsed: float, share: int, outcome: Outcome, fed: Batch) -> None:
        """Write the lines of a report on ``share`` steps that took ``elapsed`` seconds."""
        error = None
        if outcome.predictions is not None:
            assert fed.labels is not None, "scripts that train have labels"
            error = error_rate(outcome.predictions, fed.labels)
        self._lines.write(
            self._loop.lines,
            index=index,
            epoch=index * self._batch / self._images,
            seconds=elapsed / share,
            ms=1e3 * elapsed / share,
            examples=share * self._batch / elapsed,
            loss=outcome.loss,
            # Scripts read the rate after the optimizer has counted this step.
            next_rate=self._rate(index + 1),
            error=error,
        )

    def _figure(self, seconds: Sequence[float]) -> list[ProtocolNumber]:
        """Return the mean over all lines but the first; empty without such lines."""
        if not seconds:
            return []
        name, field, unit = self._loop.figure
        mean = sum(seconds) / len(seconds)
        return [
            ProtocolNumber(
                name=name,
                value=1e3 * mean if field == "ms" else self._batch / mean,
                unit=unit,
                times=tuple(seconds),
                includes=self._definitions[0].includes() + self._loop.more,
            )
        ]

    def _check_sizes(self) -> None:
        """Check that the batch fits all parts of the data."""
        parts = [("training", self._data.train)]
        if len(self._definitions) > _EVALUATION:
            parts += [("validation", self._data.validation), ("test", self._data.test)]
        for name, split in parts:
            # The offset of training batches is modulo images minus batch, which must not be 0.
            spare = int(name == "training")
            count = len(split.labels)
            if count < self._batch + spare:
                raise UsageError(
                    f"--batch {self._batch}: only {count} {name} images; nearest: {count - spare}"
                )

    def _steps(self) -> int:
        settings, images = self._run.settings, self._images
        if settings.steps is not None:
            return settings.steps
        epochs = settings.epochs or 0.0
        steps = int(epochs * images) // settings.batch
        if steps < 1:
            raise UsageError(
                f"--epochs {epochs:g}: less than one step of {settings.batch} out of {images} "
                f"images; nearest: {settings.batch / images:.2g}"
            )
        return steps

    def _batches(self) -> Iterator[Batch]:
        """Yield the batches of training steps, without end."""
        offset = 0
        while True:
            yield _cut(self._data.train, offset, offset + self._batch)
            offset = (offset + self._batch) % (self._images - self._batch)

    def _evaluate(self, step: FrameworkStep, split: Split) -> float:
        """Return the error rate of all images; the last batch overlaps the one before it."""
        count, rows = len(split.labels), []
        for begin in range(0, count, self._batch):
            first = min(begin, count - self._batch)
            predictions = step(_cut(split, first, first + self._batch)).predictions
            rows.append(cast("NDArray[np.float32]", predictions)[begin - first :])
        return error_rate(np.concatenate(rows), split.labels)


def _cut(split: Split, begin: int, end: int) -> Batch:
    return Batch(split.images[begin:end], split.labels[begin:end])
