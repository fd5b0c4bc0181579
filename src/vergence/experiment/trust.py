"""Trust in the Python code that experiments name: permission of a command to run this code.

A name such as `my.py` or `package.module:Class` in an experiment means code. It may run if the user
starts the experiment. The config of a run folder may be somebody else's, and its code runs only
with `--trust-code`. A deployment runs only files that its operator accepted. Outside of any command
no code may run.

This module identifies code by its file or module, `my.py` or `package.module`, without the class.

Used in most packages.
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

RUN_FILES = (
    "SHA256SUMS",
    "stamp.json",
    "provenance.json",
    "results.json",
    "state/checkpoint.json",
    "deploy.toml",
    "../sweep.toml",
)
"""Files of runs, sweeps and deployments; a config next to such a file may be somebody else's."""
IN_PYTHON = "`vergence.load_experiment(FILE, trust_code=True)`"
IN_TRAINING = (
    "name it in an experiment FILE, and "
    "`vergence.run_experiment(vergence.load_experiment(FILE, trust_code=True), OUT)`"
)


@dataclass(frozen=True)
class Code:
    """Python code that has run.

    Attributes:
        text: the text of its file.
        module: the module in which the text ran.
    """

    text: bytes
    module: ModuleType

    @property
    def sha(self) -> str:
        """SHA-256 of the text that ran, as hexadecimal text."""
        return hashlib.sha256(self.text).hexdigest()


@dataclass(frozen=True)
class Recorded:
    """What a run recorded about a file of its code.

    Attributes:
        sha: SHA-256 of the file; "": not recorded.
        directory: the run's working directory, from which a relative name starts.
    """

    sha: str = ""
    directory: str = ""


@dataclass(frozen=True)
class Trust:
    """Permission of one command to run code.

    Attributes:
        own_experiment: the user starts their own experiment; its code may run, except code that the
            config of a run folder names.
        trust_code: all code may run, because the user gave `--trust-code`.
        exact: whether it is an error if a file is not the one that the run recorded; otherwise a
            note is printed.
        hint: what the user can type to allow the code, for the error message.
        ban_reason: why no code may run at all, even with `--trust-code`; "": code is not banned.
        loaded_code: code that has run, by file or module. A file is not read again, so that a
            command uses a single text of each file.
        recorded_code: what a run recorded about each Python file or module that the config of its
            folder names.
        accepted_digests: on a machine of a deployment, the files in `folder` that may run in spite
            of the ban, each with the SHA-256 that the machine's operator accepted.
        folder: the deployment's folder on this machine.
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
        """Check that code may run; return the path of its file, and the file's text.

        Args:
            name: the file or module, `my.py` or `package.module`.

        Raises:
            ConfigError: there is no such file or module.
            UntrustedCode: the code may not run; the message names it, and says how to allow it.
            StateError: the file is not the one that the run was begun with.
        """
        if name in self.accepted_digests:
            return self._admit_accepted(name)
        if self.ban_reason:
            raise UntrustedCode(f"{name} is Python code: {self.ban_reason}")
        if not (self.trust_code or (self.own_experiment and name not in self.recorded_code)):
            raise UntrustedCode(self.refusal(name))
        if (here := self.file(name)) is None:
            raise ConfigError(missing_code_text(name))
        # The file is read once, and this text is what runs: a second reading could give another.
        text = here.read_bytes()
        now, then = hashlib.sha256(text).hexdigest(), self.recorded_code.get(name, Recorded()).sha
        if then and then != now:
            difference = (
                f"{name} is not the file that the run was begun with: its SHA-256 is {now}, "
                f"the run recorded {then}"
            )
            if self.exact:
                raise StateError(f"{difference}; restore it")
            note(difference)
        return here, text

    def _admit_accepted(self, name: str) -> tuple[Path, bytes]:
        """Return the path and text of a file in a deployment's folder that the operator accepted.

        Raises:
            ConfigError: there is no such file.
            StateError: its text is not the accepted one.
        """
        here = self.folder / name
        if not is_file(here):
            raise ConfigError(missing_code_text(str(here)))
        text = here.read_bytes()
        # Whoever can write to this folder must not replace the code that its operator accepted.
        if (sha := hashlib.sha256(text).hexdigest()) != self.accepted_digests[name]:
            raise StateError(
                f"{here} is not the code that was accepted here: its SHA-256 is {sha}, accepted "
                f"was {self.accepted_digests[name]}; restore it, or read it and accept it"
            )
        return here, text

    def file(self, name: str) -> Path | None:
        """Find the file of a name such as `my.py` or `package.module`; None if there is none.

        No code runs. A relative name in a run's config is looked up from the working directory,
        then from the run's own working directory. A file with the recorded SHA-256 takes
        precedence.
        """
        if not name.endswith(SUFFIX):
            return module_file(name)
        then = self.recorded_code.get(name, Recorded())
        places = [Path(name), *([Path(then.directory, name)] if then.directory else [])]
        files = [path for path in places if is_file(path)]
        same = [p for p in files if hashlib.sha256(p.read_bytes()).hexdigest() == then.sha]
        return next(iter([*same, *files]), None)

    def refusal(self, name: str) -> str:
        """Return the error message for code that may not run, with its SHA-256 and the hint."""
        here, then = self.file(name), self.recorded_code.get(name, Recorded()).sha
        now = hashlib.sha256(here.read_bytes()).hexdigest() if here else ""
        what = "file" if name.endswith(SUFFIX) else "module"
        sha = f"SHA-256 {now}" if now else f"there is no such {what} here"
        if here and str(here) != name:
            sha = f"{here}, {sha}"
        record = f"the run recorded {then}" if then else "no run recorded it"
        facts = f"{sha}, as the run recorded" if then and then == now else f"{sha}; {record}"
        return (
            f"{name} is Python code and would run here ({facts}); where you trust whoever wrote "
            f"it: {self.hint}"
        )


_NOW: ContextVar[Trust | None] = ContextVar("trust", default=None)


def current_trust() -> Trust:
    """Return the running command's permission to run code.

    Outside of any command it allows no code.
    """
    return _NOW.get() or Trust()


@contextmanager
def under(trust: Trust) -> Iterator[Trust]:
    """Make `trust` the current permission in the `with` block: only code that it allows may run."""
    before = _NOW.set(trust)
    try:
        yield trust
    finally:
        _NOW.reset(before)


def trust_in_own_file() -> Trust:
    """Return the permission to run the code of an experiment file that the user named."""
    return Trust(own_experiment=True)


def trust_for_opening(trust_code: bool) -> Trust:
    """Return the permission to run code that the config of a run in `open_run` names.

    It is the permission of the running command, if any; with `trust_code` all code may run.
    """
    trust = current_trust()
    hint = "`vergence.open_run(FOLDER, trust_code=True)`" if trust.hint == IN_PYTHON else trust.hint
    return replace(trust, trust_code=trust.trust_code or trust_code, hint=hint)


def trust_with_training_hint() -> Trust:
    """Return the current permission; its `hint` fits a call of `vergence.train` outside a command.

    The hint is what an error message tells the user to type.
    """
    trust = current_trust()
    return replace(trust, hint=IN_TRAINING) if trust.hint == IN_PYTHON else trust


def trust_in_deployment(folder: Path = Path(), accepted: Mapping[str, str] | None = None) -> Trust:
    """Return the permission to run code for an experiment that another machine sent.

    Only the files in `accepted` may run, and code of this package.

    Args:
        folder: the deployment's folder on this machine.
        accepted: the files of this folder that may run, each with the SHA-256 that the machine's
            operator accepted; None: no file.
    """
    return Trust(
        ban_reason="a deployment runs none that its end has not accepted (`vergence deploy join` "
        "and `serve` show it), and a Flower app none at all; or put it into the installed package "
        "at every end",
        accepted_digests=accepted or {},
        folder=folder,
    )


def trust_with_code(code: Mapping[str, Code]) -> Trust:
    """Return the current permission, after adding the code that already built an experiment.

    This code is then not loaded again.
    """
    trust = current_trust()
    trust.loaded_code.update(
        {name: it for name, it in code.items() if name not in trust.loaded_code}
    )
    return trust


def in_run_folder(path: Path) -> bool:
    """Return whether a config is next to a file that a run, sweep or deployment wrote."""
    # A link lies in one folder, and what it leads to in another: either may be somebody's run.
    folders = {path.absolute().parent, path.resolve().parent}
    return any((folder / name).exists() for folder in folders for name in RUN_FILES)


def note_recorded_code(path: Path, table: Mapping[str, Any]) -> None:
    """Note in the current permission that code which a table names may be somebody else's.

    Args:
        path: the config of a run folder, whose records of the code are read.
        table: this config, or a file that it extends.
    """
    if names := python_files(table):
        records = read_recorded_code(path.resolve().parent)
        current_trust().recorded_code.update({n: records.get(n, Recorded()) for n in names})


def python_files(table: Any) -> list[str]:
    """Return the Python files and modules that an experiment's table names, each once, in order.

    Modules of this package are left out.
    """
    # Any text of such a form counts, under whatever key: a key that is read in another way later
    # must not become a way around the question of trust.
    if isinstance(table, str):
        code = parse(table)
        return [code.place] if code and not code.packaged else []
    inner = table.values() if isinstance(table, Mapping) else table
    parts = inner if isinstance(table, Mapping | list | tuple) else ()
    return list(dict.fromkeys(name for part in parts for name in python_files(part)))


def missing_code_text(name: str) -> str:
    """Return the error message for a file or module that does not exist, with what to do.

    `Trust.admit` raises it.
    """
    if name.endswith(SUFFIX):
        return f"no file at {name}"
    return (
        f"no module '{name}' with a Python file, where Python looks for modules: check the name, "
        "install its package in the environment of vergence, or put its folder on PYTHONPATH"
    )


def read_recorded_code(folder: Path) -> dict[str, Recorded]:
    """Return what a run recorded about its code, by file or module.

    Runs in subfolders are read too. A damaged record is left out. `note_recorded_code` calls this.
    """
    # It imports pydantic, for which `vergence --help` need not wait.
    from vergence.results.run_files import read_json

    records: dict[str, Recorded] = {}
    for path in (folder / "provenance.json", *sorted(folder.glob("*/provenance.json"))):
        try:
            code = read_json(path)["code"] if path.is_file() else {"files": {}}
            home = str(code.get("directory", ""))
            own = {str(name): Recorded(str(sha), home) for name, sha in code["files"].items()}
            records = {**own, **records}
        # A damaged record only loses its SHA-256: code still needs the user's word to run.
        except (StateError, LookupError, TypeError, AttributeError):
            continue
    return records


def allow_own_code(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command that runs the user's own experiment, with the code that it names."""
    return _with_trust_option(command, Trust(own_experiment=True))


def ask_for_trust(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command that reads files of others; it runs code only with `--trust-code`."""
    return _with_trust_option(command, Trust())


def ask_for_exact_code(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command, so that it runs code only with `--trust-code` and only if unchanged.

    The decorator adds the option. `Trust.admit` raises an error for code whose SHA-256 is not the
    one that the run recorded.
    """
    return _with_trust_option(command, Trust(exact=True))


def _with_trust_option(command: Callable[..., Any], trust: Trust) -> Callable[..., Any]:
    """Return a command with the additional option `--trust-code`.

    While the command runs, `trust` with this option is the permission to run code.
    """
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
        # The hint repeats the command, so that it can be pasted.
        how = f"`{shlex.join(['vergence', *sys.argv[1:]])} --trust-code`"
        fresh = Trust(trust.own_experiment, trust_code, trust.exact, how)
        with under(fresh):
            return command(*args, **options)

    # `inspect.signature` would follow it to the command itself, and miss the new option.
    del trusting.__wrapped__
    parameters = [*own.parameters.values(), option]
    trusting.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    trusting.__annotations__ = {p.name: p.annotation for p in parameters}
    return trusting
