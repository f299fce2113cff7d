"""Builds these pages as a site: ``sphinx-build -W docs build/site`` (``pip install '.[docs]'``)."""

import re

project = "pydlbench"
author = "The pydlbench developers"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "index"
html_theme = "furo"
html_title = "pydlbench"
myst_heading_anchors = 3  # as on GitHub, where the same files are read
myst_fence_as_directive = ["mermaid"]

_REPOSITORY = "https://github.com/pydlbench/pydlbench/blob/main/"


def _adapt(_, page, source):
    """Let links to other files lead to the repository, and make the contents of the index."""
    if page == root_doc:
        for title, section in re.findall(r"^## (.+)\n([^#]+)", source[0], re.MULTILINE):
            pages = "\n".join(re.findall(r"\]\(([\w-]+)\.md\)", section))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```\n"
    source[0] = re.sub(r"\]\(\.\./([^)]+)\)", rf"]({_REPOSITORY}\1)", source[0])


def setup(app):
    """Register what this file adds; Sphinx calls it."""
    app.connect("source-read", _adapt)
