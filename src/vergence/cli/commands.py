"""The list of commands, and the page that `vergence --help` prints.

This module imports the standard library alone: the page is printed without the parser of arguments,
and a command's module is imported when the command is called. A test compares the lines below with
the commands themselves.

Used by `cli.app`, `cli.main` and `cli.suggestions`.
"""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass

ABOUT = "Train personalised gaze models across people without collecting their data."


@dataclass(frozen=True)
class Command:
    """A command, or a group of commands, that follows `vergence` directly.

    Attributes:
        name: the word that users type.
        import_path: "module:function", imported when the command is called.
        summary: one sentence for the page of help.
        subcommands: the names of a group's commands; empty for a command.
    """

    name: str
    import_path: str
    summary: str
    subcommands: tuple[str, ...] = ()


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
        "web",
        "vergence.cli.live:web",
        "Write a static page that corrects a model for whoever opens it, in the browser.",
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
        ("list", "import", "look", "check", "skew", "partition", "patches"),
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
        (
            "init",
            "app",
            "key",
            "serve",
            "join",
            "status",
            "add",
            "admit",
            "renew",
            "revoke",
            "stop",
        ),
    ),
)


def full_spellings() -> dict[str, str]:
    """Return the full spelling of every command by its last word.

    Where two commands end in the same word, that without a group is returned.
    """
    in_groups = {name: f"{group.name} {name}" for group in GROUPS for name in group.subcommands}
    # First-level commands come last: `status` is the daily command, and not `deploy status`.
    return in_groups | {command.name: command.name for command in (*DAILY, *GROUPS)}


def help_page(width: int | None = None) -> str:
    """Return the page of `vergence --help`: daily commands, then the groups and their commands.

    Args:
        width: of the page, in columns; by default the terminal's, 100 at most.
    """
    # Lines longer than 100 columns are hard to read, however wide the terminal is.
    width = width or min(100, shutil.get_terminal_size((100, 24)).columns)
    daily = [(each.name, each.summary) for each in DAILY]
    groups = [
        (each.name, f"{each.summary} Commands: {', '.join(each.subcommands)}.") for each in GROUPS
    ]
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
        parts.append(
            "\n".join([title, *(_help_row(name, text, first, width) for name, text in rows)])
        )
    return "\n\n".join(parts) + "\n"


def _help_row(name: str, text: str, first: int, width: int) -> str:
    lead = f"  {name:<{first}}  "
    return textwrap.fill(
        text,
        # In a very narrow terminal the text still gets 20 columns, rather than one word a line.
        max(width, len(lead) + 20),
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        # A command with a hyphen, such as split-plan, stays in one piece that can be copied.
        break_on_hyphens=False,
    )
