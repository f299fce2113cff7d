"""How a model of the user's own is fed and run, besides what every step has."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from pydlbench.errors import UsageError
from pydlbench.records.record import Record, one_of
from pydlbench.words import check_word

#: Types of an input's elements; the first is the default.
DTYPES: Final = ("float32", "int64", "int32", "bool", "float64", "bfloat16", "float16")
#: Those of whole numbers, which may index a table's rows.
INDEX_DTYPES: Final = ("int64", "int32")
#: Losses that are known by a word; any other is ``package.module:FUNCTION``.
LOSSES: Final = ("cross-entropy", "sum", "mean-square")
#: Stands behind an optimizer that reads and writes each tensor once (PyTorch's ``fused=True``).
FUSED: Final = "-fused"
_UPDATES: Final = ("sgd", "momentum", "adam", "adamw")
#: What training updates the weights with; the first is the default.
OPTIMIZERS: Final = (*_UPDATES, *(f"{each}{FUSED}" for each in _UPDATES), "none")


def rate_unit(own: object) -> str:
    """Return the unit of a batch over a step's time.

    Args:
        own: None of a model of the catalogue, which takes images.
    """
    return "images/s" if own is None else "samples/s"


class UserInput(Record, frozen=True, kw_only=True):
    """A tensor that a model is called with, its values random.

    Attributes:
        shape: of the tensor; the first number is the batch.
        dtype: ``float32`` (uniform in [-1, 1)), ``int64`` (whole numbers) and others.
        name: of the keyword that it is handed over as; None hands it over by its place.
        below: what whole numbers are below, from 0 on; None is the rows of the table that they
            index, and 2 where that is not known.
    """

    shape: tuple[int, ...]
    dtype: Annotated[str, one_of(*DTYPES)] = DTYPES[0]
    name: str | None = None
    below: int | None = None

    omitted = ("below",)

    @classmethod
    def parse(cls, text: str) -> UserInput:
        """Read what ``--input`` takes: ``8x3x224x224``, ``tokens=8x128:int64:5000``.

        Raises:
            UsageError: it is written otherwise.
        """
        named = re.fullmatch(r"(?:([^=:]*)=)?([^=:]*)(?::([^=:]*))?(?::([^=:]*))?", text.strip())
        near = "8x3x224x224, 8x128:int64, 8x128:int64:5000 or tokens=8x128:int64"
        if named is None:
            raise UsageError(f"--input {text}: no shape; nearest: {near}")
        name, sizes, dtype, below = named.groups()
        if not re.fullmatch(r"[1-9][0-9]{0,11}(x[1-9][0-9]{0,11})*", sizes):
            raise UsageError(f"--input {text}: {sizes or 'nothing'} is no shape; nearest: {near}")
        if name is not None and not name.isidentifier():
            raise UsageError(f"--input {text}: {name or 'nothing'} is no name; nearest: {near}")
        if dtype is not None:
            check_word(f"--input {text}:", dtype, DTYPES)
        if below is not None and (
            not re.fullmatch("[1-9][0-9]{0,17}", below) or dtype not in INDEX_DTYPES
        ):
            raise UsageError(
                f"--input {text}: {below or 'nothing'} bounds no {dtype} numbers; nearest: {near}"
            )
        return cls(
            shape=tuple(map(int, sizes.split("x"))),
            dtype=dtype or DTYPES[0],
            name=name,
            below=None if below is None else int(below),
        )

    def with_batch(self, batch: int, other: int) -> UserInput:
        """Return it with another batch, where its first number is the batch."""
        if self.shape[:1] != (batch,):
            return self
        return msgspec.structs.replace(self, shape=(other, *self.shape[1:]))

    @property
    def text(self) -> str:
        """What ``--input`` takes for it."""
        name = f"{self.name}=" if self.name else ""
        dtype = f":{self.dtype}" if self.dtype != DTYPES[0] else ""
        below = f":{self.below}" if self.below is not None else ""
        return f"{name}{'x'.join(map(str, self.shape))}{dtype}{below}"


class UserModelSpec(Record, frozen=True, kw_only=True):
    """How a model of the user's own is fed and run.

    Attributes:
        inputs: that it is called with; none are those that the user's callable returns.
        loss: ``cross-entropy``, ``sum`` or ``mean-square`` of the output, or
            ``package.module:FUNCTION``, called with the output; None is the loss that the user's
            callable returns, else the model's own, else the sum of its outputs.
        optimizer: of training: ``sgd``, ``momentum``, ``adam``, ``adamw``, each of them fused as
            ``adam-fused``, or ``none``.
        train: whether the modules are in training mode; None is in all phases but forward.

    Raises:
        UsageError: a word that is not among its choices.
    """

    inputs: tuple[UserInput, ...] = ()
    loss: str | None = None
    optimizer: Annotated[str, one_of(*OPTIMIZERS)] = OPTIMIZERS[0]
    train: bool | None = None

    def __post_init__(self) -> None:
        check_word("--optimizer", self.optimizer, OPTIMIZERS)
        if self.loss is not None and ":" not in self.loss:
            check_word("--loss", self.loss, LOSSES)

    @property
    def fused(self) -> bool:
        """Whether its optimizer is a fused one."""
        return self.optimizer.endswith(FUSED)

    def words(self) -> list[str]:
        """Return the options of the command line that ask for it."""
        words = [word for each in self.inputs for word in ("--input", each.text)]
        words += ["--loss", self.loss] if self.loss else []
        words += ["--optimizer", self.optimizer] if self.optimizer != OPTIMIZERS[0] else []
        modes = {None: [], True: ["--train-mode"], False: ["--eval-mode"]}
        return [*words, *modes[self.train]]

    def described(self, phase: str) -> list[str]:
        """Return in words what is not as by default, and what a phase has besides."""
        words = [f"input {each.text}" for each in self.inputs]
        words += [f"loss {self.loss}"] if self.loss and phase != "forward" else []
        words += [self.optimizer] if phase == "training" else []
        modes = {None: [], True: ["training mode"], False: ["evaluation mode"]}
        return [*words, *modes[self.train]]
