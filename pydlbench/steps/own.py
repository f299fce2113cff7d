"""The user's own code in a worker: imported, called, and what it raises told in one line.

It runs in the framework's process alone. What it prints goes to that process's standard error, as
all that is printed there.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pydlbench
from pydlbench.backends.base import is_out_of_memory
from pydlbench.errors import (
    InsufficientMemoryError,
    ModelError,
    PydlbenchError,
    UsageError,
    nearest,
)
from pydlbench.models.own import find_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydlbench.models.own import OwnSource

__all__ = ["call_own", "load_own", "own_code"]

_WORDS: Final = {"true": True, "false": False, "none": None}
_HERE: Final = Path(pydlbench.__file__).parent


def load_own(name: str) -> Any:
    """Import what a MODEL of the user's own names; each file runs once in a process.

    Args:
        name: ``FILE.py:CALLABLE`` or ``package.module:CALLABLE``.

    Raises:
        UsageError: no such file, module or callable.
        ModelError: its code has raised.
    """
    source = find_own(name)
    with own_code(name):
        found: Any = _imported(
            source.module, source.path if source.is_file else None, source.folder
        )
        for word in source.attribute.split("."):
            if not hasattr(found, word):
                near = nearest(word, [one for one in dir(found) if not one.startswith("_")])
                place = name.rpartition(":")[0]
                others = f"; nearest: {', '.join(f'{place}:{one}' for one in near)}" if near else ""
                raise UsageError(f"{name}: {place} defines no {word}{others}")
            found = getattr(found, word)
    return found


def call_own(name: str, options: Mapping[str, Any], ready: type) -> Any:
    """Return what the user's callable returns.

    Args:
        name: of the callable.
        options: its keywords; text is read as Python's literals, ``true``, ``false`` or ``none``,
            and else stays text.
        ready: of these types it is what is wanted already, and is not called.

    Raises:
        UsageError: it is none, or wants other arguments.
        ModelError: it has raised.
    """
    found = load_own(name)
    if isinstance(found, ready):
        return found
    if not callable(found):
        raise UsageError(f"{name}: is of type {type(found).__name__}, which cannot be called")
    values = {key: _value(value) for key, value in options.items()}
    with own_code(name):
        _check_arguments(name, found, values)
        return found(**values)


def _check_arguments(name: str, function: Any, values: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # of code that is not Python's: it says so itself
        return
    try:
        signature.bind(**values)
    except TypeError as error:
        known = list(signature.parameters)
        unknown = [one for one in values if one not in known]
        near = (
            nearest(unknown[0], known) or known
            if unknown
            else [
                one
                for one in known
                if one not in values and _is_required(signature.parameters[one])
            ]
        )
        words = ", ".join(f"--arg {one}=VALUE" for one in near) or "leave --arg out"
        raise UsageError(f"{name}: {error}; nearest: {words}") from None


def _is_required(parameter: inspect.Parameter) -> bool:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in several


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return _WORDS.get(value.lower(), value)


@functools.cache
def _imported(module: str, path: Path | None, folder: Path) -> Any:
    """Import a module, or run a file as one, as if Python had been started in its folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if path is None:
        return importlib.import_module(module)
    # A file may be called like a library that is there already.
    name = module if module not in sys.modules else f"{module}_own"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "it is a file of Python's"
    assert spec.loader is not None, "likewise"
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(found)
    except BaseException:
        del sys.modules[name]
        raise
    return found


# -----------------------------------------------------------------------------
# What the user's code raises.


@contextlib.contextmanager
def own_code(name: str) -> Iterator[None]:
    """Let the user's code run: what it raises names its file and line.

    A child that it forks ends where it would come back to ours.

    Args:
        name: of the model.

    Raises:
        InsufficientMemoryError: memory ran out.
        ModelError: whatever else was raised, a call of ``exit`` too.
    """
    process = os.getpid()
    try:
        yield
    except PydlbenchError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise _told(error, name) from error
    finally:
        if os.getpid() != process:
            os._exit(0)


def _told(error: BaseException, name: str) -> PydlbenchError:
    """Return what says in one line what was raised, and where."""
    source = find_own(name)
    frames = [
        (Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    lines = [(path, line) for path, line in frames if _is_own(path, source)]
    where = name
    if lines:
        path, line = lines[-1]
        where = f"{_shown(path, source, name)}:{line}"
    text = " ".join(str(error).split())[:400]
    if is_out_of_memory(error):
        return InsufficientMemoryError(f"{where}: out of memory{f': {text}' if text else ''}")
    return ModelError(f"{where}: {type(error).__name__}{f': {text}' if text else ''}")


def _is_own(path: Path, source: OwnSource) -> bool:
    """Whether a file is the user's: beneath the one that was named, no library's and not ours."""
    if source.is_file:
        roots = [source.folder]
    else:
        top = sys.modules.get(source.module.partition(".")[0])
        places = getattr(top, "__path__", None) or [getattr(top, "__file__", None) or source.folder]
        roots = [Path(one) for one in places]
    for root in roots:
        if path.is_relative_to(root):
            inner = path.relative_to(root).parts
            return "site-packages" not in inner and not path.is_relative_to(_HERE)
    return False


def _shown(path: Path, source: OwnSource, name: str) -> str:
    """Return a file's path as the user would write it."""
    if source.is_file and path == source.path:
        return name.rpartition(":")[0]
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
