"""The user's code in a worker: imported, called, and its exceptions reported in one line.

It runs in the framework's process only. All that this process prints, the user's code included,
goes to standard error.
"""

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydlbench.backends.base import is_out_of_memory
from pydlbench.errors import (
    InsufficientMemoryError,
    ModelError,
    PydlbenchError,
    UnsupportedError,
    UsageError,
    nearest,
)
from pydlbench.models.user_model import UserModelSource, find_user_model
from pydlbench.records.user_model import DTYPES, UserInput
from pydlbench.words import FRAMEWORKS

_WORDS: Final = {"true": True, "false": False, "none": None}
_PYDLBENCH: Final = Path(__file__).parent.parent
#: Escape sequences of bold text, which Keras has in its exceptions.
_BOLD: Final = re.compile(r"\x1b\[[0-9;]*m")


def load_user_object(name: str) -> Any:
    """Import the object that a MODEL of the user names; each file runs once in a process.

    Args:
        name: ``FILE.py:CALLABLE`` or ``package.module:CALLABLE``.

    Raises:
        UsageError: no such file, module or callable.
        ModelError: the user's code has raised an exception.
    """
    source = find_user_model(name)
    with user_code_errors(name):
        value: Any = _imported(
            source.module, source.path if source.is_file else None, source.folder
        )
        for word in source.attribute.split("."):
            if not hasattr(value, word):
                near = nearest(word, [other for other in dir(value) if not other.startswith("_")])
                place = name.rpartition(":")[0]
                names = ", ".join(f"{place}:{other}" for other in near)
                others = f"; nearest: {names}" if near else ""
                raise UsageError(f"{name}: {place} defines no {word}{others}")
            value = getattr(value, word)
    return value


def call_user_object(name: str, options: Mapping[str, Any], reference: str | None = None) -> Any:
    """Call the user's callable and return its result; an object that is a model is not called.

    A class in a file that defines ``get_inputs`` follows KernelBench's convention: it is called
    with what ``get_init_inputs`` returns, and the result is the model with its inputs.

    Args:
        name: name of the callable.
        reference: a callable in the file that defines these functions; None for the class's own.
        options: keyword arguments of the callable; text is read as a Python literal, ``true``,
            ``false`` or ``none``, if it is one.

    Raises:
        UsageError: the object cannot be called, or takes other arguments.
        ModelError: the user's code has raised an exception.
    """
    function = load_user_object(name)
    if framework_of(function) is not None:
        return function
    if not callable(function):
        raise UsageError(
            f"{name}: is of type {type(function).__name__}, which cannot be called; nearest: a "
            "function that returns it"
        )
    values = {key: _value(value) for key, value in options.items()}
    makers = load_user_object(reference) if reference else function
    module = sys.modules.get(getattr(makers, "__module__", ""))
    make_inputs = getattr(module, "get_inputs", None)
    if isinstance(function, type) and make_inputs is not None:
        with user_code_errors(name):
            inputs = tuple(make_inputs())
            return function(*getattr(module, "get_init_inputs", tuple)(), **values), inputs
    with user_code_errors(name):
        _check_arguments(name, function, values)
        return function(**values)


def _check_arguments(name: str, function: Any, values: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in without signature: the call itself raises
        return
    try:
        signature.bind(**values)
    except TypeError as error:
        known = list(signature.parameters)
        unknown = [key for key in values if key not in known]
        missing = [
            key
            for key, parameter in signature.parameters.items()
            if key not in values
            and parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        near = nearest(unknown[0], known) or known if unknown else missing
        words = ", ".join(f"--set {key}=VALUE" for key in near) or "leave --set out"
        raise UsageError(f"{name}: {error}; nearest: {words}") from None


def _value(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return _WORDS.get(value.lower(), value)


@functools.cache
def _imported(module: str, path: Path | None, folder: Path) -> Any:
    """Import a module, or run a file as one, as if Python had been started in its folder."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    if path is None:
        return importlib.import_module(module)
    # A file may have the name of a library that is imported already.
    name = module if module not in sys.modules else f"{module}_own"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "likewise"
    imported = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(imported)
    except BaseException:
        del sys.modules[name]
        raise
    return imported


# -----------------------------------------------------------------------------
# The result of the user's callable.


def framework_of(value: Any) -> str | None:
    """Return the framework of a model; None if the object is not a model.

    Only frameworks that are imported can have built it. A Keras model belongs to Keras's backend.
    """
    torch, tensorflow, keras = map(sys.modules.get, ("torch", "tensorflow", "keras"))
    # A module that is being imported, or whose import has failed, lacks its names.
    if isinstance(value, getattr(getattr(torch, "nn", None), "Module", ())):
        return "torch"
    function = getattr(getattr(tensorflow, "types", None), "experimental", None)
    kinds = getattr(tensorflow, "Module", ()), getattr(function, "PolymorphicFunction", ())
    if any(isinstance(value, kind) for kind in kinds):
        return "tensorflow"
    if isinstance(value, getattr(keras, "Layer", ())):
        assert keras is not None, "its class was found"
        return str(keras.config.backend())
    return None


def parts_of(name: str, result: Any, framework: str) -> tuple[Any, Any, Any]:
    """Return model, inputs and loss function; missing parts are None.

    Args:
        name: name of the model.
        result: result of the user's callable.
        framework: framework of this process.

    Raises:
        UsageError: the result is not a model of any framework.
        UnsupportedError: the result is a model of another framework.
    """
    parts = result if isinstance(result, (tuple, list)) else (result,)
    owner = framework_of(parts[0]) if parts else None
    if owner is None or len(parts) > 3:
        types = ", ".join(type(part).__name__ for part in parts[:4])
        raise UsageError(
            f"{name}: returns {f'({types})' if parts is result else types}; nearest: a "
            "torch.nn.Module, a Keras model, (model, inputs) or (model, inputs, loss function)"
        )
    if owner != framework:
        runs = owner in FRAMEWORKS
        near = f"--framework {owner}" if runs else "the environment KERAS_BACKEND=tensorflow"
        raise UnsupportedError(
            f"{name}: returns {type(parts[0]).__name__} of {owner}; nearest: {near}"
        )
    model, inputs, loss = (*parts, None, None)[:3]
    if loss is not None and not _takes_output(loss):
        raise UsageError(
            f"{name}: returns {type(loss).__name__} as third; nearest: a function of the output "
            "alone that returns the loss: lambda output: criterion(output, labels)"
        )
    return model, inputs, loss


def loss_of(name: str) -> Any:
    """Return the loss function that ``--loss`` names.

    Raises:
        UsageError: there is no such function, or it needs more than the output.
    """
    function = load_user_object(name)
    if not _takes_output(function):
        raise UsageError(
            f"--loss {name}: cannot be called with the output alone; nearest: a function of the "
            "output alone that returns the loss: lambda output: criterion(output, labels)"
        )
    return function


def _takes_output(loss: Any) -> bool:
    """Whether a loss can be called with an output alone."""
    return accepts(getattr(loss, "forward", loss), None)


def accepts(function: Any, *arguments: Any, **keywords: Any) -> bool:
    """Whether the signature of a function takes these arguments; True if it has no signature."""
    try:
        inspect.signature(function).bind(*arguments, **keywords)
    except TypeError:
        return False
    except ValueError:  # a built-in without signature
        return True
    return True


def input_texts(given: Iterable[tuple[str | None, Sequence[int], str]]) -> tuple[str, ...]:
    """Return inputs as ``--input`` takes them; empty if ``--input`` cannot express one of them.

    Args:
        given: name (None if positional), shape and type of each tensor.
    """
    given = list(given)
    if any(not shape or 0 in shape or dtype not in DTYPES for _, shape, dtype in given):
        return ()
    if not all(name is None or name.isidentifier() for name, _, _ in given):
        return ()
    return tuple(
        UserInput(shape=tuple(shape), dtype=dtype, name=name).text for name, shape, dtype in given
    )


def batch_of(name: str, shape: Sequence[int] | None) -> int:
    """Return the number of images or sequences of a step.

    Args:
        name: name of the model.
        shape: shape of the first input; None if there are no inputs.

    Raises:
        UsageError: the batch is empty.
    """
    if not shape:
        return 1
    if not shape[0]:
        sizes = "x".join(map(str, shape))
        near = "x".join(map(str, (1, *shape[1:])))
        raise UsageError(f"{name}: its first input is {sizes}: the batch is empty; nearest: {near}")
    return shape[0]


def part_of(output: Any, name: str) -> Any:
    """Return an item or attribute of an output; None if it has none of this name."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


# -----------------------------------------------------------------------------
# Exceptions of the user's code.


@contextlib.contextmanager
def user_code_errors(name: str) -> Iterator[None]:
    """Run the user's code, and translate its exceptions to errors with its file and line.

    A child process that it forks ends instead of returning to pydlbench's code.

    Args:
        name: name of the model.

    Raises:
        InsufficientMemoryError: memory ran out.
        ModelError: any other exception, a call of ``exit`` included.
    """
    process = os.getpid()
    try:
        yield
    except (PydlbenchError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's code can raise anything
        raise _translated(error, name) from error
    finally:
        if os.getpid() != process:
            os._exit(0)


def user_line(name: str) -> Callable[[], str | None]:
    """Return a function that finds the innermost line of the user's files on this thread's stack.

    Args:
        name: name of the model.

    Returns:
        A function that returns ``my_model.py:15``, or None if no frame is in the user's files.
    """
    source = find_user_model(name)
    is_user_file = functools.cache(lambda file: _is_user_file(Path(file), source))

    def line() -> str | None:
        frame = inspect.currentframe()
        while frame is not None:
            file = frame.f_code.co_filename
            if is_user_file(file):
                return f"{_shown(Path(file), source, name)}:{frame.f_lineno}"
            frame = frame.f_back
        return None

    return line


def _translated(error: BaseException, name: str) -> PydlbenchError:
    """Return an error that says in one line what was raised, and where."""
    source = find_user_model(name)
    frames = [
        (Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    lines = [(path, line) for path, line in frames if _is_user_file(path, source)]
    where = name
    if lines:
        path, line = lines[-1]
        where = f"{_shown(path, source, name)}:{line}"
    text = " ".join(_BOLD.sub("", str(error)).split())[:400]
    if is_out_of_memory(error):
        return InsufficientMemoryError(f"{where}: out of memory{f': {text}' if text else ''}")
    return ModelError(f"{where}: {type(error).__name__}{f': {text}' if text else ''}")


def _is_user_file(path: Path, source: UserModelSource) -> bool:
    """Whether a file is the user's: in the named folder or package, and of no library."""
    if source.is_file:
        roots = [source.folder]
    else:
        top = sys.modules.get(source.module.partition(".")[0])
        places = getattr(top, "__path__", None) or [getattr(top, "__file__", None) or source.folder]
        roots = [Path(place) for place in places]
    for root in roots:
        if path.is_relative_to(root):
            inner = path.relative_to(root).parts
            return "site-packages" not in inner and not path.is_relative_to(_PYDLBENCH)
    return False


def _shown(path: Path, source: UserModelSource, name: str) -> str:
    """Return a file's path as the user would write it."""
    if source.is_file and path == source.path:
        return name.rpartition(":")[0]
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
