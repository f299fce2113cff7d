"""Files that were written by hand, or damaged: one line instead of a traceback."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.results.paths import user_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["reading_files"]


@contextlib.contextmanager
def reading_files(names: Sequence[str]) -> Iterator[None]:
    """Take it that values which nothing can be done with are those of files that were named.

    Args:
        names: runs and files; where no file is among them, errors pass unchanged.

    Raises:
        UsageError: a file holds something else than a command had written.
    """
    try:
        yield
    except PydlbenchError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        files = [name for name in dict.fromkeys(names) if user_path(name).is_file()]
        if not files:
            raise
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"{', '.join(files)}: not as a command writes it with --json ({what}); nearest: the "
            "run itself, or the file written again by pydlbench export RUN --format json"
        ) from error
