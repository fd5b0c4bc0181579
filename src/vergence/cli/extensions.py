"""Commands of other packages, which register them as entry points of `vergence.commands`.

Used by `cli.commands`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

from cyclopts import Parameter

from vergence.errors import ConfigError


def __getattr__(name: str) -> Callable[..., Any]:
    """Return another package's command, or a substitute that says what to install."""
    # The parser of commands resolves "module:reproduce" by attribute; any other name is a mistake.
    if name != "reproduce":
        raise AttributeError(f"no command '{name}' in another package")
    for point in entry_points(group="vergence.commands", name=name):
        return point.load()
    return reproduce_without_papers


def reproduce_without_papers(
    *words: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)],  # noqa: ARG001
) -> None:
    """Run a paper's tables again, beside its numbers, with a verdict on every claim.

    The papers are a package of their own, vergence-papers, which is not installed: in a clone of
    the repository, `pip install ./papers`.
    """
    raise ConfigError(
        "reproduce needs the papers: install vergence-papers, with `pip install ./papers` in a "
        "clone of vergence's repository"
    )
