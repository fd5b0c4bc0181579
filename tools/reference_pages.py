"""Writer of the reference pages that follow from the code and from files.

    python -m tools.reference_pages          # writes them
    python -m tools.reference_pages --check  # exit code 1 where a page is not what would be written

The pages are committed, so that they are read and linked without building the site, and a test
compares them with what is written here.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import vergence
from tools import coverage_page, experiment_keys, results_list, verdicts_list
from vergence import errors
from vergence.core import exports

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOTICE = "<!-- Written by tools/reference_pages.py; change the code or its docstrings instead. -->"
PACKAGES = ("methods", "tasks", "models", "data", "metrics", "privacy", "attacks")
PRIVACY = re.compile(
    r"vergence\.privacy\.(config|hooks|robust|poisoning|dp\.mask_budget"
    r"|split\.(defense|output_range|split_guard))\b"
)
"""Modules of the package privacy that somebody's code uses; the others are its mechanisms."""
GROUPS = {
    "Train and look at runs": (
        "train train_all recipe load_experiment run_experiment open_run compare explain Run "
        "Comparison RoundReport"
    ),
    "Settings": "Experiment Plan LocalTraining Participation EarlyStopping Privacy Share",
    "Data": "Federation Dataset Samples SharedRows Splits ClientId",
    "Tasks and networks": (
        "Task Model task_from average_batch_norm freeze_batch_norm group_norm "
        "KernelHead "
        "personalize_batch_norm"
    ),
    "Write a method": (
        "Method Exposure Tree Global NoState Layers ClientContext Message Reply reply Conversation "
        "aggregate collect fit compute Aggregate Params Mask Objective OptimizerState"
    ),
    "Errors": (
        "VergenceError ConfigError UntrustedCode BuiltInPython StateError DataError PartialRun"
    ),
}
"""Public names by topic; a test says that none is missing."""


def cli() -> str:
    """Every command with its options, from the parser of the command line."""
    from vergence.cli.app import app

    with patch.object(sys, "argv", ["vergence"]):  # lines of usage name the program that runs
        told = app.generate_docs("markdown", recursive=True, max_heading_level=3)
    _, _, commands = told.partition("**Commands**:")
    return (
        "# Command line\n\nEvery command with its options, as `vergence COMMAND --help` prints "
        "them. The [first page](../index.md#which-page-do-you-need) says which one you need; "
        f"[exit codes](exit_codes.md) have a page of their own.\n\n**Commands**:{commands}"
    )


def exit_codes() -> str:
    """Exit codes of the command line, from the classes of errors."""
    kinds: dict[int, list[type[errors.VergenceError]]] = {}
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.VergenceError):
            kinds.setdefault(kind.exit_code, []).append(kind)
    rows = ["| 0 | | The command did what was asked. |"]
    for code, found in sorted(kinds.items()):
        names = "<br>".join(f"`vergence.{kind.__name__}`" for kind in found)
        said = "<br>".join(_first(kind) for kind in found)
        rows.append(f"| {code} | {names} | {said} |")
    table = "\n".join(["| code | error in Python | meaning |", "|---|---|---|", *rows])
    codes = "\n".join(f"| `{code}` | {text} |" for code, text in errors.CODES.items())
    return (
        "# Exit codes\n\nA command that fails prints one line on stderr and ends with one of these "
        "codes. In Python the same faults are exceptions; all of them are a "
        f"`vergence.VergenceError`.\n\n{table}\n\nCtrl-C ends a command with code "
        f"{errors.PartialRun.exit_code}, and what was done is kept: see "
        "[interrupting and resuming](runs.md#interrupting-resuming-verifying). Any other code, and "
        "a traceback, is a fault of this software: please report it.\n\n"
        "In Python an error has a `code`, too: what is wrong, in a word that stays when the "
        f"message is worded otherwise.\n\n| `code` | what is wrong |\n|---|---|\n{codes}\n"
    )


def api() -> str:
    """The names of `import vergence as vg`, by topic."""
    parts = [
        "# Python API\n\nEverything here is imported with `import vergence as vg`; `make docs` "
        "fills in the page, and `help(vg.train)` prints the same. How it is used: "
        "[from Python](../how-to/python.md). The classes that an experiment can name have a page "
        f"for each package: {', '.join(f'[{name}](api/{name}.md)' for name in PACKAGES)}.\n"
    ]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names.split():
            found = getattr(vergence, name)
            named = hasattr(found, "__qualname__") and found.__module__.startswith("vergence")
            where = f"{found.__module__}.{found.__qualname__}" if named else f"vergence.{name}"
            parts.append(_directive(f"vergence.{name}", where, 3))
    return "\n".join(parts)


def api_of(package: str) -> str:
    """The public names of one package; its modules are not imported, as some need extras."""
    module = import_module(f"vergence.{package}")
    summary = (module.__doc__ or "").strip().partition("\n")[0]
    parts = [f"# vergence.{package}\n\n{summary}\n\nBack to the [Python API](../api.md).\n"]
    homes = exports.index(module.__name__, functions=package == "metrics")
    spelled = getattr(module, "SPELLINGS", {})
    top = " ".join(GROUPS.values()).split()
    for name in dir(module):
        own = spelled.get(name, name)
        where = f"{homes[own][0]}.{own}"
        if name in top or (package == "privacy" and not PRIVACY.match(where)):
            continue
        parts.append(_directive(f"vergence.{package}.{name}", where, 2, brief=True))
    return "\n".join(parts)


def server_fields() -> str:
    """Every field that a server sends to clients of a secure sum, with its class."""
    from tests.adversary.server_fields import table

    return (
        "# What a server may vary\n\nEach field that a server, main server or aggregator sends to "
        "a client of a [secure sum](../explanation/secure_aggregation.md) is *agreed* (all ends of "
        "a sum sign or digest it), *own* (the client computes or knows it and refuses another "
        "value), *limited* (the client's log says how often) or *harmless*, with the reason. One "
        "test fails where a field is missing; another lets a server lie about each field of the "
        f"first two classes.\n\n{table()}"
    )


def decisions() -> str:
    """The list of decisions."""
    paths = sorted((DOCS / "explanation/decisions").glob("*.md"))
    titled = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in paths}
    rows = [f"- [{title[2:]}]({name})" for name, title in titled.items() if name != "README.md"]
    return (
        "# Decisions\n\nChoices that would surprise a newcomer: the context, the choice and what "
        "follows from it, half a page each.\n\n" + "\n".join(rows)
    )


def pages() -> dict[str, Callable[[], str]]:
    """Every page, by its path below docs, with what writes it."""
    return {
        "reference/cli.md": cli,
        "reference/experiment.md": experiment_keys.page,
        "reference/exit_codes.md": exit_codes,
        "reference/server_fields.md": server_fields,
        "reference/coverage.md": coverage_page.page,
        "reference/api.md": api,
        **{
            f"reference/options/{kind}.md": lambda key=key: experiment_keys.options(key)
            for key, (kind, *_) in experiment_keys.NAMED.items()
        },
        **{f"reference/api/{name}.md": lambda name=name: api_of(name) for name in PACKAGES},
        "explanation/decisions/README.md": decisions,
        "results/verdicts.md": lambda: verdicts_list.page(ROOT / "papers", verdicts_list.ASKED),
        "results/README.md": lambda: results_list.page(DOCS / "results", ROOT / "papers"),
    }


def written(name: str) -> str:
    """What a page holds: the text, with a notice that it is written."""
    title, _, rest = pages()[name]().partition("\n")
    return f"{title}\n\n{NOTICE}\n{rest.rstrip()}\n"


def outdated() -> Iterator[str]:
    """Pages that are not what would be written."""
    for name in pages():
        path = DOCS / name
        if not path.is_file() or path.read_text(encoding="utf-8") != written(name):
            yield name


def _first(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _directive(shown: str, where: str, level: int, brief: bool = False) -> str:
    """Lines from which mkdocstrings writes the section of one object."""
    options = [f"      heading: {shown}", f"      toc_label: {shown.rpartition('.')[2]}"]
    options += [f"      heading_level: {level}"]
    options += ["      members: false"] if brief else []
    return "\n".join([f"::: {where}", "    options:", *options, ""])


def main() -> None:
    """Write the pages, or say which ones are out of date."""
    if sys.argv[1:] == ["--check"]:
        found = list(outdated())
        mend = "run python -m tools.reference_pages"
        sys.stderr.write("".join(f"docs/{name}: {mend}\n" for name in found))
        sys.exit(bool(found))
    for name in pages():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / name).write_text(written(name), encoding="utf-8")
        sys.stdout.write(f"docs/{name}\n")


if __name__ == "__main__":
    main()
