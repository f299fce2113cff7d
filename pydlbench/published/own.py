"""Own results in the form in which they can stand beside a published figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydlbench.results.store.reading import Loaded

__all__ = ["Own", "own_figures"]

# The names that protocols give to their numbers -> the stage of the source.
_STAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "alexnet-tutorial": {"Forward": "forward", "Forward-backward": "forward-backward"},
    "mnist-tutorial": {"Step": "train"},
    "cifar10-tutorial": {"examples/sec": "train"},
    "tf-cnn-benchmarks": {"total images/sec": "train"},
    "deep-learning-benchmark": {"eval": "eval", "train": "train"},
    "convnet-benchmarks": {
        ":Forward:": "forward",
        ":Backward:": "backward",
        ":TOTAL:": "forward-backward",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """One result of ours.

    Attributes:
        model: its name.
        phase: of a step: ``forward``, ``forward-backward``, ``training``.
        precision: of the products.
        batch: images per step.
        seconds: of a step.
        who: framework and mode, or what else it is: ``torch eager``, ``native layers, summed``.
        device: processor it ran on.
        run: its run.
        options: of a variant of the model: ``lrn=off``; empty of the model itself.
        protocol: of the published script it was run as; None of a plain step.
        stage: of the protocol.
    """

    model: str
    phase: str
    precision: str
    batch: int
    seconds: float
    who: str
    device: str
    run: str
    options: str = ""
    protocol: str | None = None
    stage: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "model": self.model,
            "phase": self.phase,
            "precision": self.precision,
            "batch": self.batch,
            "seconds": self.seconds,
            "who": self.who,
            "device": self.device,
            "run": self.run,
            "options": self.options,
            "protocol": self.protocol,
        }


def own_figures(
    name: str, loaded: Loaded, batch_of: Callable[[str, str], int | None]
) -> Iterator[Own]:
    """Yield what a run says of whole models: steps, checks, estimates and played protocols.

    Args:
        name: of the run, as the user gave it.
        loaded: the run.
        batch_of: returns the batch that a protocol gives a model if nobody asks for another.
    """
    device = str(loaded.record.device.get("name") or "")
    for table, read in _READERS.items():
        for entry in loaded.table(table):
            for fields in read(entry.document, batch_of):
                seconds, batch = fields["seconds"], fields["batch"]
                if seconds and batch:
                    yield Own(**fields, device=device, run=name)


def _step(document: Mapping[str, Any], _batch_of: object) -> Iterator[dict[str, Any]]:
    time = document.get("time_s") or {}
    if document.get("status", "ok") == "ok":
        yield {**_shared(document), "seconds": time.get("median"), "who": _who(document)}


def _check(document: Mapping[str, Any], _batch_of: object) -> Iterator[dict[str, Any]]:
    time = document.get("measured_s") or {}
    yield {**_shared(document), "seconds": time.get("median"), "who": _who(document)}


def _estimate(document: Mapping[str, Any], _batch_of: object) -> Iterator[dict[str, Any]]:
    found = document.get("estimate") or {}
    if not document.get("missing"):
        who = "native layers, summed"
        yield {**_shared(document), "seconds": found.get("time_s"), "who": who}


def _protocol(
    document: Mapping[str, Any], batch_of: Callable[[str, str], int | None]
) -> Iterator[dict[str, Any]]:
    protocol, model = str(document["protocol"]), str(document["model"])
    stages = _STAGES.get(protocol, {})
    batch = document.get("batch") or batch_of(protocol, model)
    for number in document.get("numbers") or ():
        # "vgg16 eval" names the model as well.
        name = str(number["name"]).removeprefix(f"{model} ")
        if name not in stages or not batch or not number["value"] > 0:
            continue
        yield {
            "model": model,
            "phase": stages[name],
            "precision": document.get("precision", "fp32"),
            "batch": batch,
            "seconds": _seconds(number["value"], number["unit"], batch),
            "who": _who(document),
            "options": _options(document),
            "protocol": protocol,
            "stage": stages[name],
        }


def _seconds(value: float, unit: str, batch: int) -> float | None:
    if unit in ("images/s", "examples/s"):
        return batch / value
    return {"s": value, "ms": value / 1e3}.get(unit)


def _shared(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": str(document.get("model")),
        "phase": str(document.get("phase")),
        "precision": str(document.get("precision")),
        "batch": document.get("batch"),
        "options": _options(document),
    }


def _options(document: Mapping[str, Any]) -> str:
    found = document.get("options") or {}
    return " ".join(f"{name}={found[name]}" for name in sorted(found))


def _who(document: Mapping[str, Any]) -> str:
    """Framework and mode, and the layout and the feed of a step that has others than usual."""
    words = [document.get("framework"), document.get("mode")]
    for name, usual in (("layout", "nhwc"), ("feed", "resident")):
        words.append(None if document.get(name) == usual else document.get(name))
    return " ".join(str(word) for word in words if word)


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Any], Iterator[dict[str, Any]]]]] = {
    "step": _step,
    "check": _check,
    "estimate": _estimate,
    "protocol": _protocol,
}
