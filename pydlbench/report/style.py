"""Colour for terminals only: pipes, ``NO_COLOR`` and dumb terminals get plain text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

__all__ = ["PLAIN", "Style"]


@dataclass(frozen=True, slots=True)
class Style:
    """Marks text, or leaves it alone where ``enabled`` is false."""

    enabled: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Style:
        """Return the style that suits ``stream`` (https://no-color.org)."""
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return cls(not plain and stream.isatty())

    def bold(self, text: str) -> str:
        """Mark what is to be read first."""
        return f"\033[1m{text}\033[0m" if self.enabled else text

    def alarm(self, text: str) -> str:
        """Mark what went wrong."""
        return f"\033[31m{text}\033[0m" if self.enabled else text


PLAIN = Style()
