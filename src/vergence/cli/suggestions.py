"""Suggestions for commands and arguments that were not understood, in one line."""

from __future__ import annotations

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
)

from vergence.cli.commands import DAILY, GROUPS, spellings
from vergence.errors import nearest

OTHERS = {
    **dict.fromkeys(("train", "fit", "start", "launch", "simulate", "demo"), "run"),
    **dict.fromkeys(("test", "eval", "score", "validate"), "study evaluate"),
    **dict.fromkeys(("tune", "search", "optimise", "optimize"), "study sweep"),
    **dict.fromkeys(("plot", "show", "html"), "report"),
    **dict.fromkeys(("infer", "webcam", "overlay"), "predict"),
    **dict.fromkeys(("dataset", "datasets"), "data"),
    **dict.fromkeys(("continue", "restart"), "resume"),
    **dict.fromkeys(("init", "create", "template"), "new"),
    **dict.fromkeys(("server", "client"), "deploy"),
    "onnx": "export",
    "diff": "compare",
    "unlearn": "privacy forget",
    "summarize": "video summarise",
}
"""What other programs call it."""
GROUPED = {
    *("sweep", "evaluate", "calibrate", "cross", "unlabelled", "swaps", "mlflow"),
    *("audit", "forget", "prune", "split-plan", "masks", "summarise"),
}
"""Commands of the first level that went into groups."""
MOVED = {
    "bench": "`python -m benchmarks.bench`, in a checkout of the repository",
    **{name: f"`vergence {spellings()[name]}`" for name in GROUPED},
}
"""Commands that are no more, as they were typed (such as `bench` or `data skew`): the new one."""
MOVED_OPTIONS = {
    "report --for": "`vergence privacy ethics`",
    "explain --matrix": "`vergence privacy matrix`",
}
PLACES = {
    "--out": "a new folder for what it makes, such as --out runs/first",
    "--config": "an experiment: a file, or one of the package by name, such as `vergence run toy`",
}


def told(error: CycloptsError, app: App) -> str:
    """One line about arguments that were not understood."""
    chain = list(error.command_chain or ())
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        given = error.unused_tokens[0]
        old = " ".join([*chain, given])
        if old in MOVED:
            return f"no command '{old}' any more: it is now {MOVED[old]}"
        return f"no command '{old}'{_meant(given, chain, app)}: " + (
            f"`vergence {' '.join([*chain, '--help'])}` says what each does"
        )
    if isinstance(error, UnknownOptionError) and error.token is not None:
        old = " ".join([*chain, error.token.keyword or ""])
        if old in MOVED_OPTIONS:
            return f"no option '{old}' any more: it is now {MOVED_OPTIONS[old]}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        if name in PLACES and "Did you mean" not in str(error):  # of a name that was mistyped
            what = f"{name}: {PLACES[name]}" if name == "--out" else PLACES[name]
            return f"{' '.join(chain)} needs {what}"
    return str(error).splitlines()[0] if str(error) else "unusable arguments"


def _meant(given: str, chain: list[str], app: App) -> str:
    """The nearest command first: of a command's name, or of what another program calls one.

    Of a group's commands, those of the group are looked at alone.
    """
    if chain:
        home = app
        for name in chain:
            home = home[name]
        known = [name for name in home if not name.startswith("-")]
        alike = {name: name for name in known}
    else:
        known = [each.name for each in (*DAILY, *GROUPS)]
        alike = OTHERS | spellings()
    close = nearest(given.lower(), alike)
    if "did you mean" not in close:
        return f" (known: {', '.join(known)})"
    word = close.split("'")[1]
    called = f", vergence's word for {word}" if word not in alike[word].split() else ""
    return f" (did you mean '{alike[word]}'{called}? known: {', '.join(known)})"
