"""Process groups that are stopped while somebody else is timed, and continued whatever happens.

Threads that wait for more work spin for some milliseconds after their last, on the cores of whoever
comes next. A stopped process spins no more, and need not be waited for.

Nobody may stay stopped: not after an error, nor after this process was killed. A guardian, a shell
in a session of its own, is told who is stopped; once its input ends, because this process has, it
continues them all. A worker that goes on finds its own input ended, too, and exits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
from typing import Final

# Of the groups that it is told of, ``+ 123`` and ``- 123``, it keeps those that are stopped.
_GUARDIAN: Final = """
trap '' HUP INT TERM
stopped=' '
while read -r sign group; do
  case $sign in
    +) stopped="$stopped$group " ;;
    -)
      case $stopped in
        *" $group "*) stopped="${stopped%% $group *} ${stopped#* $group }" ;;
      esac ;;
  esac
done
for group in $stopped; do kill -s CONT -- "-$group"; done
"""


class Guardian:
    """Stops groups and continues them; a shell does where this process cannot any more."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def stop(self, group: int) -> bool:
        """Stop a process group; return whether it is stopped now.

        Args:
            group: led by a child of this process.
        """
        if not self._tell(f"+ {group}"):
            return False
        try:
            os.killpg(group, signal.SIGSTOP)
        except ProcessLookupError:  # it has died: whoever asks it next is told
            self._tell(f"- {group}")
            return False
        return True

    def resume(self, group: int) -> None:
        """Continue a group that was stopped.

        Args:
            group: likewise; it may be gone.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)
        self._tell(f"- {group}")

    def close(self) -> None:
        """End the guardian, which continues whoever is still stopped."""
        shell, self._shell = self._shell, None
        if shell is not None and shell.stdin is not None and self._owner == os.getpid():
            with contextlib.suppress(BrokenPipeError):
                shell.stdin.close()
            shell.wait()

    def _tell(self, line: str) -> bool:
        """Tell the guardian something; False where there is none, and nobody may be stopped."""
        if self._owner != os.getpid():  # a fork has its parent's children, not its own
            self._shell, self._owner = self._start(), os.getpid()
        if self._shell is None or self._shell.stdin is None:
            return False
        try:
            self._shell.stdin.write(f"{line}\n".encode())
            self._shell.stdin.flush()
        except BrokenPipeError:
            self._shell = None
        return self._shell is not None

    @staticmethod
    def _start() -> subprocess.Popen[bytes] | None:
        try:
            return subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return None


guardian: Final = Guardian()
atexit.register(guardian.close)
