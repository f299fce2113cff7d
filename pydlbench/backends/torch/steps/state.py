"""State that a module keeps between its steps, in buffers and in attributes of any kind."""

import types
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
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
_NO_STATE: Final = (type, types.ModuleType, types.FunctionType, types.MethodType, nn.Module)


class KeptState:
    """The state of a module and its parts, which can be restored in place.

    It is found in buffers and in plain attributes: tensors, arrays, numbers, lists, mappings, sets
    and objects of the user's classes, at any depth.

    Args:
        module: the module.
        trained: whether its weights belong to the state, too.
    """

    def __init__(self, module: nn.Module, trained: bool = False) -> None:
        self._seen: set[int] = set()
        self._restore: list[Callable[[], None]] = []
        #: The tensors of the state.
        self.tensors: list[torch.Tensor] = []
        pending: list[Any] = [*module.buffers(), *(module.parameters() if trained else ())]
        for part in module.modules():
            pending += self._mapping(vars(part), _OF_EACH_MODULE)
        while pending:
            pending += self._parts(pending.pop())

    def restore(self) -> None:
        """Give all parts the values that they had."""
        with torch.no_grad():
            for restore in self._restore:
                restore()

    def _parts(self, value: Any) -> Iterator[Any]:
        """Remember a value, unless it is known; yield its parts."""
        if isinstance(value, _NO_STATE) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, np.ndarray):
            self._restore.append(partial(np.copyto, value, value.copy()))
        elif isinstance(value, torch.Generator):
            self._restore.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, dict):
            yield from self._mapping(value)
        elif isinstance(value, (list, deque, set)):
            self._restore.append(partial(_refill, value, [*value]))
            yield from value
        elif isinstance(value, tuple):
            yield from value
        elif type(value).__module__.partition(".")[0] not in _FOREIGN:
            yield from self._mapping(getattr(value, "__dict__", {}))

    def _tensor(self, tensor: torch.Tensor) -> None:
        if nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided:
            return
        self.tensors.append(tensor)
        kept, shared = tensor.detach().clone(), not all(tensor.stride())

        def restore() -> None:
            if tensor.shape != kept.shape:
                tensor.data = kept.clone()
            elif not shared:
                tensor.copy_(kept)

        self._restore.append(restore)

    def _mapping(
        self, mapping: dict[Any, Any], left_out: frozenset[str] = frozenset()
    ) -> list[Any]:
        """Remember the entries of a mapping; return its values."""
        kept = {name: value for name, value in mapping.items() if name not in left_out}

        def restore() -> None:
            for name in mapping.keys() - kept.keys() - left_out:
                del mapping[name]
            mapping.update(kept)

        self._restore.append(restore)
        return [*kept.values()]


def _refill(container: Any, values: list[Any]) -> None:
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(values)
