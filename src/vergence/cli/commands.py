"""The list of commands, and the page that `vergence --help` prints.

This module imports the standard library alone: the page is printed without the parser of arguments,
and a command's module is imported when the command is called. A test compares the lines below with
the commands themselves.
"""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass

ABOUT = "Train personalised gaze models across people without collecting their data."


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands, of the first level.

    Attributes:
        name: as it is typed.
        place: "module:function", imported when the command is called.
        summary: one sentence.
        inner: the names of a group's commands.
    """

    name: str
    place: str
    summary: str
    inner: tuple[str, ...] = ()


DAILY = (
    Command(
        "new",
        "vergence.cli.new:new",
        "Write a small folder to start from: experiment, own method and task, notebook.",
    ),
    Command(
        "run",
        "vergence.cli.runs:run",
        "Run an experiment into a new directory, then print the table and write the report.",
    ),
    Command(
        "resume",
        "vergence.cli.runs:resume",
        "Go on with an interrupted run, to the same bits as if it had never stopped.",
    ),
    Command(
        "verify",
        "vergence.cli.runs:verify",
        "Recompute every fingerprint of a finished run; fails on one flipped byte.",
    ),
    Command(
        "status",
        "vergence.cli.runs:status",
        "Show the state of a running, stopped or finished run; the run is left alone.",
    ),
    Command(
        "compare",
        "vergence.cli.runs:compare",
        "Print methods side by side, how they treat people, and which differences are real.",
    ),
    Command(
        "report",
        "vergence.cli.runs:report",
        "Write one self-contained HTML file, or one figure alone.",
    ),
    Command(
        "explain",
        "vergence.cli.runs:explain",
        "Print who learns what in a round of an experiment, and draw the flow of data.",
    ),
    Command(
        "predict",
        "vergence.cli.runs:predict",
        "Draw predicted gaze on a video or pictures, with a CSV; or write angles of eye images.",
    ),
    Command(
        "adapt",
        "vergence.cli.runs:adapt",
        "Make a model for somebody who took no part, from a few labelled samples, on this machine.",
    ),
    Command(
        "export",
        "vergence.cli.runs:export",
        "Write the model a person predicts with as one ONNX file, checked against torch and timed.",
    ),
    Command(
        "live",
        "vergence.cli.live:live",
        "Draw gaze over a camera's pictures as they come, with frames a second and latency.",
    ),
    Command(
        "reproduce",
        "vergence.cli.extensions:reproduce",
        "Run a paper's tables again, beside its numbers, with a verdict on every claim.",
    ),
    Command(
        "methods",
        "vergence.cli.runs:methods",
        "List the methods and what the server needs of each reply, or one method's options.",
    ),
)
GROUPS = (
    Command(
        "data",
        "vergence.cli.data:data",
        "Data sets: what there is, whether yours is whole, how people's data differ.",
        ("list", "import", "check", "skew", "partition", "patches"),
    ),
    Command(
        "study",
        "vergence.cli.study:study",
        "Settings chosen fairly, protocols, and what follows from finished runs.",
        ("sweep", "evaluate", "calibrate", "cross", "unlabelled", "swaps", "mlflow"),
    ),
    Command(
        "privacy",
        "vergence.cli.privacy:privacy",
        "What a run gives away, who is forgotten, what an ethics board reads.",
        ("audit", "forget", "ethics", "matrix", "share", "party"),
    ),
    Command(
        "model",
        "vergence.cli.model:model",
        "Smaller networks, where to cut one, which layers became personal.",
        ("prune", "split-plan", "masks"),
    ),
    Command(
        "video",
        "vergence.cli.video:video",
        "Videos made from videos.",
        ("summarise",),
    ),
    Command(
        "deploy",
        "vergence.cli.deploy:deploy",
        "Run an experiment on many machines: a server and its clients.",
        ("init", "app", "key", "serve", "join", "status", "revoke", "stop"),
    ),
)


def spellings() -> dict[str, str]:
    """The full spelling of every command by its last word; of two, the shorter."""
    inner = {name: f"{group.name} {name}" for group in GROUPS for name in group.inner}
    return inner | {each.name: each.name for each in (*DAILY, *GROUPS)}


def help_page(width: int | None = None) -> str:
    """The first page of help: daily commands, then the groups with what is in each.

    Args:
        width: in columns; default that of the terminal, 100 at most.
    """
    width = width or min(100, shutil.get_terminal_size((100, 24)).columns)
    daily = [(each.name, each.summary) for each in DAILY]
    groups = [(each.name, f"{each.summary} Commands: {', '.join(each.inner)}.") for each in GROUPS]
    options = [
        ("--help", "This page; after a command, what it takes."),
        ("--version", "The version of vergence."),
    ]
    first = max(len(name) for name, _ in daily + groups + options)
    parts = [f"Usage: vergence COMMAND\n\n{textwrap.fill(ABOUT, width)}"]
    for title, rows in (
        ("Commands:", daily),
        ("Groups of commands (vergence GROUP --help lists what each takes):", groups),
        ("Options:", options),
    ):
        parts.append("\n".join([title, *(_row(name, text, first, width) for name, text in rows)]))
    return "\n\n".join(parts) + "\n"


def _row(name: str, text: str, first: int, width: int) -> str:
    lead = f"  {name:<{first}}  "
    return textwrap.fill(
        text,
        max(width, len(lead) + 20),
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_on_hyphens=False,
    )
