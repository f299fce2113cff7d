"""State that a module keeps between its steps: buffers, attributes, and what its code refers to."""

import contextlib
import functools
import math
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

# Attributes that each module has: hooks, children and trained weights.
_OF_EACH_MODULE: Final = frozenset(vars(nn.Module())) - {"_buffers", "training"}
# Objects of these packages are no state of a model: compiled functions, threads, locks.
_FOREIGN: Final = {
    *("_thread", "builtins", "concurrent", "functools", "logging", "multiprocessing", "numba"),
    *("threading", "torch", "types", "weakref"),
}
_FUNCTION: Final = types.FunctionType
_CODE: Final = (type, types.ModuleType, _FUNCTION, types.MethodType, functools.partial)
# Bytes of tensors in globals and closures: a data set there is no state.
_CODE_BYTES: Final = 1 << 22
_PACKAGE: Final = Path(__file__).parents[3]


class KeptState:
    """The state of a module and its parts, which can be restored in place.

    It is found in buffers and in plain attributes: tensors, arrays, numbers, generators of random
    numbers, lists, mappings, sets and objects of the user's classes, at any depth; then in globals
    and closures of the user's functions, and attributes of the user's classes.

    Args:
        module: the module.
        trained: whether its weights belong to the state, too.
    """

    def __init__(self, module: nn.Module, trained: bool = False) -> None:
        self._seen: set[int] = set()
        self._restore: list[Callable[[], None]] = []
        self._code: list[Any] = []
        self._bytes = math.inf
        #: The tensors of the state, without those in globals and closures.
        self.tensors: list[torch.Tensor] = []
        pending: list[Any] = [*module.buffers(), *(module.parameters() if trained else ())]
        for part in module.modules():
            pending += self._mapping(vars(part), _OF_EACH_MODULE)
            self._code += type(part).__mro__
        self._walk(pending)
        found, self._bytes = len(self.tensors), _CODE_BYTES
        while self._code:
            self._walk(self._referred(self._code.pop()))
        del self.tensors[found:]

    def restore(self) -> None:
        """Give all parts the values that they had."""
        with torch.no_grad():
            for restore in self._restore:
                restore()

    def _walk(self, pending: list[Any]) -> None:
        while pending:
            pending += self._parts(pending.pop())

    def _parts(self, value: Any) -> Iterator[Any]:
        """Remember a value, unless it is known; yield its parts."""
        if isinstance(value, nn.Module) or id(value) in self._seen:
            return
        if isinstance(value, _CODE):
            self._code.append(value)
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            if value.flags.writeable and self._fits(value.nbytes):
                self._restore.append(partial(np.copyto, value, value.copy()))
        elif restore := _restored_generator(value):
            self._restore.append(restore)
        elif isinstance(value, dict):
            yield from self._mapping(value)
        elif isinstance(value, (list, deque, set)):
            self._restore.append(partial(_refill, value, [*value]))
            yield from value
        elif isinstance(value, tuple):
            yield from value
        else:
            yield from self._attributes(value)

    def _attributes(self, value: Any) -> Iterator[Any]:
        """Remember the attributes of an object; in globals those of the user's classes only."""
        kind = type(value)
        name = kind.__module__
        if _is_users(name) if self._bytes < math.inf else name.partition(".")[0] not in _FOREIGN:
            self._code.append(kind)
            yield from self._mapping(getattr(value, "__dict__", {}))
            slots = [name for each in kind.__mro__ for name in vars(each).get("__slots__", ())]
            yield from self._named(value, partial(_members, value, slots))

    def _referred(self, code: Any) -> list[Any]:
        """Return the objects to which a function, method, class or module of the user refers."""
        if id(code) in self._seen:
            return []
        self._seen.add(id(code))
        if isinstance(code, types.MethodType):
            return [code.__self__, code.__func__]
        if isinstance(code, functools.partial):
            return [code.func, code.args, code.keywords]
        name = code.__name__ if isinstance(code, types.ModuleType) else code.__module__
        if not _is_users(name):
            return []
        if isinstance(code, _FUNCTION):
            given: list[Any] = [code.__defaults__, code.__kwdefaults__, sys.modules[name]]
            for cell in code.__closure__ or ():
                given += self._named(cell, partial(_members, cell, ["cell_contents"]))
            return [*given, *self._mapping(vars(code))]
        if isinstance(code, type):
            members = self._named(code, lambda: _without_special(vars(code)))
            bound = [getattr(x, "__func__", getattr(x, "fget", x)) for x in members]
            return [*code.__mro__[1:], *bound]
        special = frozenset(vars(code)) - _without_special(vars(code)).keys()
        return self._mapping(vars(code), special)

    def _fits(self, size: int) -> bool:
        """Whether a tensor is kept, of those that are no attributes."""
        if size > self._bytes:
            return False
        self._bytes -= size
        return True

    def _tensor(self, tensor: torch.Tensor) -> None:
        if nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided:
            return
        if tensor.is_nested or tensor.is_inference():  # neither can be written to in place
            return
        if not self._fits(tensor.nbytes):
            return
        self.tensors.append(tensor)
        kept, shared = tensor.detach().clone(), not all(tensor.stride())

        def restore() -> None:
            if tensor.shape != kept.shape:
                tensor.data = kept.clone()
            elif not shared:
                tensor.copy_(kept)

        self._restore.append(restore)

    def _named(self, owner: Any, members: Callable[[], dict[str, Any]]) -> list[Any]:
        """Remember members that are not in a mapping which can be written to; return them."""
        return self._members(members, partial(setattr, owner), partial(delattr, owner))

    def _mapping(
        self, mapping: dict[Any, Any], left_out: frozenset[str] = frozenset()
    ) -> list[Any]:
        """Remember the entries of a mapping; return its values."""
        return self._members(
            lambda: {name: value for name, value in mapping.items() if name not in left_out},
            mapping.__setitem__,
            mapping.__delitem__,
        )

    def _members(
        self,
        members: Callable[[], dict[Any, Any]],
        put: Callable[[Any, Any], None],
        remove: Callable[[Any], None],
    ) -> list[Any]:
        """Remember members; return their values."""
        kept = members()

        def restore() -> None:
            now = members()
            for name in now.keys() - kept.keys():
                remove(name)
            for name, value in kept.items():
                if name not in now or now[name] is not value:
                    put(name, value)

        self._restore.append(restore)
        return [*kept.values()]


def _refill(container: Any, values: list[Any]) -> None:
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(values)


def _restored_generator(value: Any) -> Callable[[], None] | None:
    """Return the function that restores a generator of random numbers; None for other values."""
    match value:
        case random.SystemRandom():  # it has no state
            return None
        case torch.Generator():
            return partial(value.set_state, value.get_state())
        case np.random.RandomState():
            return partial(value.set_state, value.get_state())
        case np.random.Generator():
            return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
        case random.Random():
            return partial(value.setstate, value.getstate())
    return None


def _members(owner: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the members that have a value."""
    values = {}
    for name in names:
        with contextlib.suppress(AttributeError, ValueError):  # a cell may be empty
            values[name] = getattr(owner, name)
    return _without_special(values)


def _without_special(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if not name.startswith("__")}


@functools.cache
def _is_users(module: str) -> bool:
    """Whether a module is neither installed, nor Python's, nor of this package."""
    path = Path(getattr(sys.modules.get(module), "__file__", None) or "<")
    library = {"site-packages", "dist-packages"} & {*path.parts}
    standard = Path(functools.__file__).parent
    return path.is_absolute() and not (
        library or path.is_relative_to(standard) or path.is_relative_to(_PACKAGE)
    )
