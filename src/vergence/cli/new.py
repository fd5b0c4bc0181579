"""`vergence new`: a small folder to start from.

Used by `cli.commands`.
"""

from __future__ import annotations

from pathlib import Path

from vergence.console import out
from vergence.errors import ConfigError

TEMPLATES = Path(__file__).parent / "templates"


def new(name: Path) -> None:
    """Write a small folder to start from: experiment, own method and task, notebook.

    Args:
        name: a new folder.
    """
    try:
        name.mkdir(parents=True)
    # An existing folder is refused, also an empty one: nobody's files can be overwritten.
    except FileExistsError:
        raise ConfigError(f"{name} is there already; choose the name of a new folder") from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be made ({error.strerror}); choose another") from None
    for template in sorted(path for path in TEMPLATES.iterdir() if path.is_file()):
        (name / template.name).write_text(
            # Line endings do not depend on the system: fingerprints count a file's bytes.
            template.read_text(encoding="utf-8"),
            encoding="utf-8",
            newline="\n",
        )
        out.print(f"{name / template.name}", highlight=False, markup=False, soft_wrap=True)
    out.print(
        f"next: cd {name}; vergence run experiment.toml",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
