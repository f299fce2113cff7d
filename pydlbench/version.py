"""The version of the package, derived from the tag that it was built from."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pydlbench")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+uninstalled"
