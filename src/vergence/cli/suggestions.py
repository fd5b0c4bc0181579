"""Suggestions, in one line, for commands and arguments that the parser does not know.

Used by `cli.main`.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
from dataclasses import fields

from cyclopts import (
    App,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from vergence.cli.commands import DAILY, GROUPS, full_spellings
from vergence.errors import nearest

SYNONYMS = {
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
"""Words that other programs use for a command, each with this program's name for it."""
MOVED_INTO_GROUPS = {
    *("sweep", "evaluate", "calibrate", "cross", "unlabelled", "swaps", "mlflow"),
    *("audit", "forget", "prune", "split-plan", "masks", "summarise"),
}
"""Commands that moved from the first level into a group."""
MOVED = {
    "bench": "`python -m benchmarks.bench`, in a checkout of the repository",
    **{name: f"`vergence {full_spellings()[name]}`" for name in MOVED_INTO_GROUPS},
}
"""Former commands as they were typed (such as `bench` or `data skew`), and what replaced them."""
MOVED_OPTIONS = {
    "report --for": "it is now `vergence privacy ethics`",
    "explain --matrix": "it is now `vergence privacy matrix`",
    "data patches --landmarker": "leave it out: faces are found by networks that "
    "docs/how-to/patches.md says how to install",
    "live --landmarker": "give `--face`, which needs no file",
}
"""Former options as they were typed, and what to do instead."""
MISSING_ARGUMENT_HINTS = {
    "--config": "an experiment: a file, or one of the package by name, such as `vergence run toy`",
}
"""Text for a required argument that is missing, with an example."""


def error_line(error: CycloptsError, app: App) -> str:
    """Return one line that says which argument was not understood, and what to type instead."""
    chain = list(error.command_chain or ())
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        word = error.unused_tokens[0]
        if (old := " ".join([*chain, word])) in MOVED:
            return f"no command '{old}' any more: it is now {MOVED[old]}"
        return f"no command '{old}'{_nearest_command(word, chain, app)}: " + (
            f"`vergence {' '.join([*chain, '--help'])}` says what each does"
        )
    if isinstance(error, UnknownOptionError) and error.token is not None:
        old = " ".join([*chain, error.token.keyword or ""])
        if old in MOVED_OPTIONS:
            return f"no option '{old}' any more: {MOVED_OPTIONS[old]}"
        # Where the experiment is missing too, the parser reports the option as a value.
        keyword = error.token.keyword or error.token.value.partition("=")[0]
        setting = _as_setting(_option_with_value(keyword, error.root_input_tokens or []))
        if setting and _takes_settings(error):
            return f"no option '{keyword}': settings are given with --set, here {setting}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return _one_word_too_many(error, error.unused_tokens[0])
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name, command = error.argument.name, " ".join(chain)
        # For a mistyped name the parser's own "Did you mean" says more.
        misspelt = "Did you mean" in str(error)
        if name in MISSING_ARGUMENT_HINTS and not misspelt:
            return f"{command} needs {MISSING_ARGUMENT_HINTS[name]}"
        if name == "--out" and not misspelt:
            meaning = _described(error, name).partition(", ")[2]
            ending = re.search(r"\((\.\w+)\)", meaning)
            example = f"mine{ending[1]}" if ending else "runs/first"
            return f"{command} needs --out: {meaning}, such as --out {example}"
        if error.argument.index is not None and not error.argument.tokens:
            return (
                f"{command} needs {_described(error, name)}: `vergence {command} --help` says more"
            )
    return str(error).splitlines()[0] if str(error) else "unusable arguments"


def _nearest_command(word_typed: str, chain: list[str], app: App) -> str:
    """Return the command nearest to a mistyped word, and all known ones, as "(did you mean ...)".

    Words that other programs use for a command count too. Within a group, only its own commands
    are suggested.
    """
    if chain:
        group = app
        for name in chain:
            group = group[name]
        # The parser lists --help and --version among a group's commands.
        known = [name for name in group if not name.startswith("-")]
        alike = {name: name for name in known}
    else:
        known = [each.name for each in (*DAILY, *GROUPS)]
        alike = SYNONYMS | full_spellings()
    close = nearest(word_typed.lower(), alike)
    if "did you mean" not in close:
        return f" (known: {', '.join(known)})"
    word = close.split("'")[1]
    # A word of another program is explained: "did you mean 'run', vergence's word for train?"
    called = f", vergence's word for {word}" if word not in alike[word].split() else ""
    return f" (did you mean '{alike[word]}'{called}? known: {', '.join(known)})"


def _one_word_too_many(error: CycloptsError, word: str) -> str:
    """Return the line for a superfluous word, which may be a method or a setting."""
    command = " ".join(error.command_chain or ())
    line = f"{command} does not take the word '{word}'"
    if _takes_settings(error):
        from vergence.core.method import Method
        from vergence.experiment.registry import names

        if word in names("methods", Method):
            return f"{line}: methods stand in the experiment; to replace them write " + (
                f"""--set "methods=['{word}']" (--set method={word} in a file with method = ...)"""
            )
        if setting := _as_setting(word):
            return f"{line}: settings are given with --set, here {setting}"
    return f"{line}: `vergence {command} --help` says what it takes"


def _described(error: MissingArgumentError, name: str) -> str:
    """Return an argument in capitals, with the first clause of its description in the help."""
    documented = error.app.assemble_argument_collection(parse_docstring=True) if error.app else ()
    text = next((each.parameter.help for each in documented if each.name == name), None) or ""
    meaning = re.split("[;.] ", text)[0].rstrip(".")
    return ", ".join(filter(None, (name.removeprefix("--").upper(), meaning)))


def _takes_settings(error: CycloptsError) -> bool:
    return error.target is not None and "set_" in inspect.signature(error.target).parameters


def _option_with_value(keyword: str, words: list[str]) -> str:
    """Return an option of the command line with its value, as KEY=VALUE."""
    key = keyword.removeprefix("--")
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word == keyword:
            # The next word is the value, unless it is an option or the end of the line.
            return f"{key}=VALUE" if after.startswith("-") else f"{key}={after}"
        if word.startswith(f"{keyword}="):
            return word.removeprefix("--")
    return key


def _as_setting(text: str) -> str:
    """Return the --set for KEY=VALUE or SECTION.KEY=VALUE, "" where no section has such a key."""
    from vergence.core.local_training import LocalTraining
    from vergence.engine.participation import Participation
    from vergence.engine.plan import Plan

    key, equals, value = text.partition("=")
    sections = {"run": Plan, "local": LocalTraining, "presence": Participation}
    types = {
        f"{section}.{each.name}": str(each.type)
        for section, record in sections.items()
        for each in fields(record)
        if re.match("Annotated|Literal|[a-z]", str(each.type))  # records are tables of their own
    }
    name = next((name for name in types if key.replace("-", "_") in (name, name.split(".")[1])), "")
    if not name or not equals:
        return ""
    # A list is written as TOML: numbers without quotes, names with them.
    if types[name].startswith("tuple") and not value.startswith("["):
        value = (
            f"[{value}]" if types[name].startswith("tuple[int") else json.dumps(value.split(","))
        )
    return f"--set {shlex.quote(f'{name}={value}')}"
