"""The inputs, loss, optimizer and mode of a user's model: what its step has besides a spec."""

import re
from typing import Annotated, Final, Self

import msgspec

from pydlbench.errors import UsageError
from pydlbench.records.record import Record, one_of
from pydlbench.words import PHASES, check_word, option_words

#: Element types of an input; the first is the default.
DTYPES: Final = ("float32", "int64", "int32", "bool", "float64", "bfloat16", "float16")
#: Integer types, whose values may index the rows of a table.
INDEX_DTYPES: Final = ("int64", "int32")
#: Built-in losses; any other is ``package.module:FUNCTION``.
LOSSES: Final = ("cross-entropy", "sum", "mean-square")
#: Suffix of an optimizer that reads and writes each tensor once (PyTorch's ``fused=True``).
FUSED: Final = "-fused"
#: Suffix of an optimizer that updates only the rows of tables that a step reads (PyTorch's
#: ``sparse=True``); of those that have such updates.
SPARSE: Final = "-sparse"
SPARSE_UPDATES: Final = ("sgd", "adam", "adamw")
_UPDATES: Final = ("sgd", "momentum", "adam", "adamw")
#: Optimizers of the training phase; the first is the default.
OPTIMIZERS: Final = (
    *_UPDATES,
    *(f"{update}{FUSED}" for update in _UPDATES),
    *(f"{update}{SPARSE}" for update in SPARSE_UPDATES),
    "none",
)


def rate_unit(own: object) -> str:
    """Return the unit of a batch over a step's time.

    Args:
        own: how a user's model is run; None for a model of the catalogue, which takes images.
    """
    return "images/s" if own is None else "samples/s"


class UserInput(Record, frozen=True, kw_only=True):
    """A tensor of random values, or of values in a file, that a model is called with.

    Attributes:
        shape: shape of the tensor; the first number is the batch. Empty for a file.
        dtype: element type: ``float32`` (uniform in [-1, 1)), ``int64`` (integers) and others.
        name: keyword argument that it is passed as; None passes it by position.
        below: exclusive upper bound of integers, which start at 0; None is the number of rows of
            the table that they index, or 2 where that is not known.
        file: NumPy's ``FILE.npy`` or ONNX's ``FILE.pb`` with the values; None for random ones.
    """

    shape: tuple[int, ...]
    dtype: Annotated[str, one_of(*DTYPES)] = DTYPES[0]
    name: str | None = None
    below: int | None = None
    file: str | None = None

    omitted = ("below", "file")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a value of ``--input``: ``8x3x224x224``, ``tokens=8x128:int64:5000``, ``FILE.npy``.

        Raises:
            UsageError: the text has another form.
        """
        named = re.fullmatch(r"(?:([^=:]*)=)?([^=:]*)(?::([^=:]*))?(?::([^=:]*))?", text.strip())
        near = "8x3x224x224, 8x128:int64, 8x128:int64:5000, tokens=8x128:int64 or FILE.npy"
        if named is None:
            raise UsageError(f"--input {text}: no shape; nearest: {near}")
        name, sizes, dtype, below = named.groups()
        if sizes.endswith((".npy", ".pb")) and dtype is None:
            return cls(shape=(), name=name, file=sizes)
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

    def with_batch(self, batch: int, other: int) -> Self:
        """Return the input with another batch size, if its first number is the batch."""
        if self.shape[:1] != (batch,):
            return self
        return msgspec.structs.replace(self, shape=(other, *self.shape[1:]))

    @property
    def text(self) -> str:
        """The value of ``--input`` that asks for it."""
        name = f"{self.name}=" if self.name else ""
        dtype = f":{self.dtype}" if self.dtype != DTYPES[0] else ""
        below = f":{self.below}" if self.below is not None else ""
        return f"{name}{self.file or 'x'.join(map(str, self.shape))}{dtype}{below}"


class UserModelSpec(Record, frozen=True, kw_only=True):
    """Inputs, loss, optimizer and mode of a user's model.

    Attributes:
        inputs: tensors that it is called with; if empty, those that the user's callable returns.
        loss: ``cross-entropy``, ``sum`` or ``mean-square`` of the output, or
            ``package.module:FUNCTION``, called with the output; None is the loss that the user's
            callable returns, else the model's own, else the sum of its outputs.
        optimizer: optimizer of training: ``sgd``, ``momentum``, ``adam`` or ``adamw``, or one of
            these fused (``adam-fused``), or ``none``.
        train: whether the modules are in training mode; None: in all phases but forward.
        reference: a class whose file defines ``get_inputs`` and ``get_init_inputs`` for it; None
            for its own file.

    Raises:
        UsageError: a word that is not among its choices.
    """

    inputs: tuple[UserInput, ...] = ()
    loss: str | None = None
    optimizer: Annotated[str, one_of(*OPTIMIZERS)] = OPTIMIZERS[0]
    train: bool | None = None
    reference: str | None = None

    omitted = ("reference",)

    def __post_init__(self) -> None:
        check_word("--optimizer", self.optimizer, OPTIMIZERS)
        if self.loss is not None and ":" not in self.loss:
            check_word("--loss", self.loss, LOSSES)

    @property
    def fused(self) -> bool:
        """Whether the optimizer is a fused one."""
        return self.optimizer.endswith(FUSED)

    @property
    def sparse(self) -> bool:
        """Whether tables have sparse gradients."""
        return self.optimizer.endswith(SPARSE)

    def words(self) -> list[str]:
        """Return the command line's options that ask for the same."""
        words = option_words(
            *(("--input", tensor.text, "") for tensor in self.inputs),
            ("--loss", self.loss, None),
            ("--optimizer", self.optimizer, OPTIMIZERS[0]),
        )
        modes = {None: [], True: ["--train-mode"], False: ["--eval-mode"]}
        return [*words, *modes[self.train]]

    def described(self, phase: str) -> list[str]:
        """Return settings other than the defaults, and the optimizer of training, in words."""
        modes = {None: "", True: "training mode", False: "evaluation mode"}
        words = (
            *(f"input {tensor.text}" for tensor in self.inputs),
            f"loss {self.loss}" if self.loss and phase != PHASES[0] else "",
            self.optimizer if phase == "training" else "",
            modes[self.train],
        )
        return list(filter(None, words))
