"""Experiment files that come with the package, and are found by name.

Used by `cli.deploy` and `experiment.schema`.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from vergence.errors import ConfigError
from vergence.experiment.code_names import is_file

FOLDER = Path(__file__).parent.parent / "experiments"


def packaged() -> list[str]:
    """Return the names of the experiments in the package."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def locate(path: Path) -> Path:
    """Return the file of an experiment: the named file, or the package's experiment of this name.

    Args:
        path: a file, or a name such as `quickstart`. A path with a folder or a suffix is returned
            as it is, whether it exists or not.

    Raises:
        ConfigError: `path` is a name, and the package has no experiment of this name.
    """
    name = str(path)
    if is_file(path) or path.name != name or path.suffix:
        return path
    if name in packaged():
        return FOLDER / f"{name}.toml"
    close = get_close_matches(name, packaged(), n=1)
    meant = f" (did you mean '{close[0]}'?)" if close else ""
    raise ConfigError(
        f"no experiment '{name[:100]}'{meant}: there is no such file, and the package has "
        f"{', '.join(packaged())}"
    )
