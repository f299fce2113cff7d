"""The version of the package: that of the tag that it was built from, or of what follows one."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pydlbench")
except PackageNotFoundError:  # a source tree that nobody has installed
    __version__ = "0+uninstalled"
