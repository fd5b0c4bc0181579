"""Options of a benchmark's command line, declared as a table."""

from __future__ import annotations

import argparse
from typing import Any


def options(about: str | None, **declared: Any) -> argparse.Namespace:
    """Read the command line.

    Args:
        about: what `--help` says first.
        declared: by option its default, whose type it has; or all that argparse wants to know.
    """
    parser = argparse.ArgumentParser(description=about)
    for name, default in declared.items():
        known = (
            default if isinstance(default, dict) else {"default": default, "type": type(default)}
        )
        parser.add_argument(f"--{name.replace('_', '-')}", **known)
    return parser.parse_args()
