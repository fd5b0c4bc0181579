"""Trust in the Python code that experiments name: permission of this command to run it.

A name such as `my.py` or `package.module:Class` in an experiment is code. It may run where a user
starts the experiment; the config of a run folder, or of a deployment, may be somebody else's, and
its code runs only where the user says `--trust-code`. Nothing may run where no command said so.

Code is known here by its place, `my.py` or `package.module`, whichever of its classes is meant.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from cyclopts import Parameter

from vergence.console import note
from vergence.errors import ConfigError, StateError, UntrustedCode
from vergence.experiment.code_names import SUFFIX, is_file, module_file, parse

LEFT = (
    "SHA256SUMS",
    "stamp.json",
    "provenance.json",
    "results.json",
    "state/checkpoint.json",
    "deploy.toml",
    "../sweep.toml",
)
"""What runs, sweeps and deployments leave behind: a config beside it may be somebody else's."""
IN_PYTHON = "`vergence.load_experiment(FILE, trust_code=True)`"
IN_TRAINING = (
    "name it in an experiment FILE, and "
    "`vergence.run_experiment(vergence.load_experiment(FILE, trust_code=True), OUT)`"
)
OPENED = "`vergence.open_run(FOLDER, trust_code=True)`"


@dataclass(frozen=True)
class Code:
    """Python code that has run: the text of its file, and the module it became."""

    text: bytes
    module: ModuleType

    @property
    def sha(self) -> str:
        """The SHA-256 of the text that ran."""
        return hashlib.sha256(self.text).hexdigest()


@dataclass(frozen=True)
class Recorded:
    """Code as a run recorded it: its SHA-256, and the directory that its name starts from."""

    sha: str = ""
    directory: str = ""


@dataclass(frozen=True)
class Trust:
    """Permission of one command to run code.

    Attributes:
        started: the user starts an experiment; only what run folders name is refused.
        given: all may run, as the user says so.
        exact: a file that differs from the one a run recorded is an error; else it is noted.
        how: what to type where code is refused, and the code is trusted.
        never: why no code may run at all, whoever says so.
        ran: what ran already, by place; it is not read again, so a command has one text of each.
        received: the places that run folders' configs name, with what the run recorded of each.
        accepted: of an end of a deployment, the files of its folder that may run all the same, each
            with the SHA-256 that its operator accepted; their names start from `folder`.
        folder: of the end.
    """

    own_experiment: bool = False
    trust_code: bool = False
    exact: bool = False
    hint: str = IN_PYTHON
    ban_reason: str = ""
    loaded_code: dict[str, Code] = field(default_factory=dict)
    recorded_code: dict[str, Recorded] = field(default_factory=dict)
    accepted_digests: Mapping[str, str] = field(default_factory=dict)
    folder: Path = Path()

    def admit(self, name: str) -> tuple[Path, bytes]:
        """The file of code that may run, and its text, read before any of it runs.

        Raises:
            ConfigError: there is no such file or module.
            UntrustedCode: it may not run; the line says what would have, and how to allow it.
            StateError: it is not the file that the run was begun with.
        """
        if name in self.accepted_digests:
            return self._admit_accepted(name)
        if self.ban_reason:
            raise UntrustedCode(f"{name} is Python code: {self.ban_reason}")
        if not (self.trust_code or (self.own_experiment and name not in self.recorded_code)):
            raise UntrustedCode(self.refusal(name))
        here = self.file(name)
        if here is None:
            raise ConfigError(missing_code_text(name))
        text = here.read_bytes()
        now, then = hashlib.sha256(text).hexdigest(), self.recorded_code.get(name, Recorded()).sha
        if then and then != now:
            said = (
                f"{name} is not the file that the run was begun with: its SHA-256 is {now}, "
                f"the run recorded {then}"
            )
            if self.exact:
                raise StateError(f"{said}; restore it")
            note(said)
        return here, text

    def _admit_accepted(self, name: str) -> tuple[Path, bytes]:
        """The file of an end's folder, and its text, if it is the one that was accepted."""
        here = self.folder / name
        if not is_file(here):
            raise ConfigError(missing_code_text(str(here)))
        text = here.read_bytes()
        if (sha := hashlib.sha256(text).hexdigest()) != self.accepted_digests[name]:
            raise StateError(
                f"{here} is not the code that was accepted here: its SHA-256 is {sha}, accepted "
                f"was {self.accepted_digests[name]}; restore it, or read it and accept it"
            )
        return here, text

    def file(self, name: str) -> Path | None:
        """The file of code, found without running any; None where there is none.

        A file that a run named from its working directory is looked for from this one and from that
        one, and the very file that the run recorded wins.
        """
        if not name.endswith(SUFFIX):
            return module_file(name)
        then = self.recorded_code.get(name, Recorded())
        there = [Path(name), *([Path(then.directory, name)] if then.directory else [])]
        found = [path for path in there if is_file(path)]
        same = [p for p in found if hashlib.sha256(p.read_bytes()).hexdigest() == then.sha]
        return next(iter([*same, *found]), None)

    def refusal(self, name: str) -> str:
        """Reason why code does not run, its digest, and the way to allow it."""
        here, then = self.file(name), self.recorded_code.get(name, Recorded()).sha
        now = hashlib.sha256(here.read_bytes()).hexdigest() if here else ""
        what = "file" if name.endswith(SUFFIX) else "module"
        sha = f"SHA-256 {now}" if now else f"there is no such {what} here"
        if here and str(here) != name:
            sha = f"{here}, {sha}"
        record = f"the run recorded {then}" if then else "no run recorded it"
        told = f"{sha}, as the run recorded" if then and then == now else f"{sha}; {record}"
        return (
            f"{name} is Python code and would run here ({told}); where you trust whoever wrote "
            f"it: {self.hint}"
        )


_NOW: ContextVar[Trust | None] = ContextVar("trust", default=None)


def current_trust() -> Trust:
    """Return the trust of the command at hand; without one, nothing may run."""
    return _NOW.get() or Trust()


@contextmanager
def under(trust: Trust) -> Iterator[Trust]:
    """Let `find` run what this trust allows."""
    before = _NOW.set(trust)
    try:
        yield trust
    finally:
        _NOW.reset(before)


def trust_in_own_file() -> Trust:
    """Return the trust in a file that the user named on the command line itself."""
    return Trust(own_experiment=True)


def trust_for_opening(trust_code: bool) -> Trust:
    """Return the trust in what the config of an opened run names, within a command its own."""
    trust = current_trust()
    hint = OPENED if trust.hint == IN_PYTHON else trust.hint
    return replace(trust, trust_code=trust.trust_code or trust_code, hint=hint)


def trust_for_training() -> Trust:
    """Return the trust at hand, with what to do about code that a call of `train` names."""
    trust = current_trust()
    return replace(trust, hint=IN_TRAINING) if trust.hint == IN_PYTHON else trust


def trust_in_deployment(folder: Path = Path(), accepted: Mapping[str, str] | None = None) -> Trust:
    """Return the trust in a deployment's experiment, which its operator wrote.

    An end runs those files of its folder alone whose SHA-256 its own operator accepted.
    """
    return Trust(
        ban_reason="a deployment runs none that its end has not accepted (`vergence deploy join` "
        "and `serve` show it), and a Flower app none at all; or put it into the installed package "
        "at every end",
        accepted_digests=accepted or {},
        folder=folder,
    )


def trust_with_code(code: Mapping[str, Code]) -> Trust:
    """Return the trust at hand, and that what an experiment was built from may be used again."""
    trust = current_trust()
    trust.loaded_code.update(
        {name: it for name, it in code.items() if name not in trust.loaded_code}
    )
    return trust


def in_run_folder(path: Path) -> bool:
    """True if a config lies beside what a run, a sweep or a deployment leaves behind."""
    # A link lies in one folder, and what it leads to in another: either may be somebody's run.
    folders = {path.absolute().parent, path.resolve().parent}
    return any((folder / left).exists() for folder in folders for left in LEFT)


def note_recorded_code(path: Path, table: Mapping[str, Any]) -> None:
    """Take note of the code that a run folder's config names, or a file that it extends."""
    if names := python_files(table):
        told = read_recorded_code(path.resolve().parent)
        current_trust().recorded_code.update({name: told.get(name, Recorded()) for name in names})


def python_files(table: Any) -> list[str]:
    """The files and modules of code that an experiment names, in its order, each once.

    Any text in it of such a form counts, wherever it stands; this package's own modules do not.
    """
    if isinstance(table, str):
        code = parse(table)
        return [code.place] if code and not code.packaged else []
    inner = table.values() if isinstance(table, Mapping) else table
    parts = inner if isinstance(table, Mapping | list | tuple) else ()
    return list(dict.fromkeys(name for part in parts for name in python_files(part)))


def missing_code_text(name: str) -> str:
    """That there is no such file or module, and the mend."""
    if name.endswith(SUFFIX):
        return f"no file at {name}"
    return (
        f"no module '{name}' with a Python file, where Python looks for modules: check the name, "
        "install its package in the environment of vergence, or put its folder on PYTHONPATH"
    )


def read_recorded_code(folder: Path) -> dict[str, Recorded]:
    """Code that a run, or the runs below it, recorded, by place."""
    from vergence.results.run_files import (
        read_json,  # brings pydantic: `vergence --help` need not wait
    )

    found: dict[str, Recorded] = {}
    for path in (folder / "provenance.json", *sorted(folder.glob("*/provenance.json"))):
        try:
            code = read_json(path)["code"] if path.is_file() else {"files": {}}
            home = str(code.get("directory", ""))
            told = {str(name): Recorded(str(sha), home) for name, sha in code["files"].items()}
            found = {**told, **found}
        except (StateError, LookupError, TypeError, AttributeError):
            continue
    return found


def allow_own_code(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command run the code that the user's own experiment names."""
    return _with_trust_option(command, Trust(own_experiment=True))


def ask_for_trust(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command run code with `--trust-code` only: it reads what others may have made."""
    return _with_trust_option(command, Trust())


def ask_for_exact_code(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command run, with `--trust-code`, only the very code that a run recorded."""
    return _with_trust_option(command, Trust(exact=True))


def _with_trust_option(command: Callable[..., Any], trust: Trust) -> Callable[..., Any]:
    """Give a command the option `--trust-code`, and what it may run for as long as it runs."""
    words = "run the Python code that the folder or file names; read it first."
    option = inspect.Parameter(
        "trust_code",
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, Parameter(negative="", help=words)],
    )
    own = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def trusting(*args: Any, trust_code: bool = False, **options: Any) -> Any:
        how = f"`{shlex.join(['vergence', *sys.argv[1:]])} --trust-code`"
        fresh = Trust(trust.own_experiment, trust_code, trust.exact, how)
        with under(fresh):
            return command(*args, **options)

    del trusting.__wrapped__  # whoever reads the signature would read the command's own
    parameters = [*own.parameters.values(), option]
    trusting.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    trusting.__annotations__ = {p.name: p.annotation for p in parameters}
    return trusting
