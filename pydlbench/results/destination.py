"""Where results are written: checked before anything is measured, replaced in one step.

A run can take an hour; a typing error in the path must not cost it, and a crash while writing must
not leave half a file in the place of a good one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import TextIO

from pydlbench.errors import UsageError, nearest
from pydlbench.results.paths import user_path

__all__ = ["STDOUT", "check_writable", "write_bytes", "write_text"]

STDOUT = "-"
# Names from the command line may hold bytes that are no text; JSON knows this notation too.
_ERRORS = "backslashreplace"


def check_writable(option: str, target: str) -> None:
    """Make sure that ``target`` can be written later, without leaving a trace.

    Args:
        option: Option that named it, for the message: ``--json``.
        target: Path, or ``-`` for standard output.

    Raises:
        UsageError: It is a directory, its folder is missing, or permission is lacking.
    """
    if target == STDOUT:
        return
    label = f"{option} {target}"
    if not target:
        raise UsageError(f"{option} '': empty file name; expected a path, or - for standard output")
    try:
        path = _resolve(target)
        if path.is_dir():
            raise UsageError(f"{label}: is a directory; nearest: {Path(target) / 'results'}")
        if not path.parent.is_dir():
            raise UsageError(f"{label}: no such directory: {path.parent}; {_near_folder(path)}")
        if path.exists():
            if not os.access(path, os.W_OK):
                raise UsageError(f"{label}: no permission to write it; choose another file")
            if not path.is_file():
                return  # a device or a pipe is opened as it is
        # The only sure test: access() knows nothing of read-only or full file systems.
        probe = _open_beside(path)
        os.close(probe[0])
        probe[1].unlink()
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{label}: cannot be written ({reason}); choose another file") from error


def write_text(target: str, text: str, stdout: TextIO | None = None) -> None:
    """Write ``text`` to ``target``: a whole new file in one step, or standard output.

    Args:
        target: Path, or ``-``.
        text: What to write.
        stdout: Stream for ``-``; standard output by default.

    Raises:
        OSError: The disk is full, for example; an old file is then left as it was.
    """
    if target != STDOUT:
        write_bytes(target, text.encode("utf-8", _ERRORS))
        return
    stream = sys.stdout if stdout is None else stdout
    stream.flush()
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(text)
    else:
        # The documents are UTF-8 wherever they go; a terminal's ASCII would spoil JSON.
        buffer.write(text.encode("utf-8", _ERRORS))
    stream.flush()


def write_bytes(target: str, data: bytes) -> None:
    """Write ``data`` to ``target``, as :func:`write_text` does.

    Raises:
        OSError: The disk is full, for example; an old file is then left as it was.
    """
    if target == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = _resolve(target)
    mode: int | None = None
    if path.exists():
        if not path.is_file():
            # Replacing /dev/null or a named pipe by a file would be a disaster.
            path.write_bytes(data)
            return
        mode = stat.S_IMODE(path.stat().st_mode)
    handle, temporary = _open_beside(path)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _resolve(target: str) -> Path:
    # Follow links, so that a link stays a link and the file behind it is replaced.
    return user_path(target).resolve()


def _open_beside(path: Path) -> tuple[int, Path]:
    """Create a file in the same folder: only within a file system is a replacement atomic."""
    temporary = path.with_name(f".pydlbench-{secrets.token_hex(6)}.tmp")
    # 0o666 less the umask: what any program's new file gets (mkstemp's 0o600 is not).
    return os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), temporary


def _near_folder(path: Path) -> str:
    folder = path.parent
    existing = next((parent for parent in folder.parents if parent.is_dir()), Path())
    missing = folder.relative_to(existing).parts[0]
    try:
        names = nearest(missing, [item.name for item in existing.iterdir() if item.is_dir()], 1)
    except OSError:
        names = []
    return f"nearest: {existing / names[0] if names else existing}"
