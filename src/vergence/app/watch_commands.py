"""The commands that look on: how a run stands, and what MLflow is to know of it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vergence.app.screen import out
from vergence.errors import ConfigError

Flag = Annotated[bool, Parameter(negative="")]


def status(
    folder: Path,
    *,
    watch: Flag = False,
    json: Flag = False,
    serve: int | None = None,
    out_: Annotated[Path | None, Parameter(name="--out")] = None,
    lines: int = 10,
) -> None:
    """Say how a run stands that is going on, has stopped or is finished; it is left alone.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or a deployment's folder.
        watch: again every two seconds, until the run ends.
        json: all that is known, everybody included, for programs.
        serve: a page at http://127.0.0.1:PORT, for this machine alone; 0: any free port.
        out_: write the page into this file (.html).
        lines: how many people and events in the terminal.
    """
    ways = {"--watch": watch, "--json": json, "--serve": serve is not None, "--out": out_}
    chosen = [name for name, on in ways.items() if on]
    if len(chosen) > 1:
        raise ConfigError(f"choose one of {' and '.join(chosen)}")
    from vergence.app import status_text as text

    with suppress(KeyboardInterrupt):  # who looks on may stop to look
        if json:
            from vergence.app.status import status as look

            sys.stdout.write(text.as_json(look(folder)) + "\n")
        elif watch:
            text.watch(folder, out, lines)
        elif serve is not None:
            from vergence.app.status_page import serve as page

            page(folder, serve, out)
        elif out_ is not None:
            from vergence.app.status_page import write

            out.print(f"page: {write(folder, out_)}", soft_wrap=True, highlight=False)
        else:
            text.show(folder, out, lines)


def mlflow(
    folder: Path,
    *,
    to: str,
    experiment: str = "vergence",
    watch: Flag = False,
) -> None:
    """Send a run to MLflow: one MLflow run per method and seed; again, only what is new.

    Args:
        folder: what `vergence run --out` wrote, a run directory below, or a deployment's folder.
        to: MLflow's tracking address, such as http://127.0.0.1:5000 or sqlite:///mlflow.db.
        experiment: the MLflow experiment.
        watch: go on until the run ends.
    """
    from vergence.app.mlflow_log import send

    with suppress(KeyboardInterrupt):
        out.print(send(folder, to, experiment, watch), soft_wrap=True, highlight=False)
