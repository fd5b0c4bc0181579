"""Nasty experiment files, what each must come to, and a way to put them through the command line.

`python -m tests.adversary.files.experiment_files` prints what each of them is told. Every case runs
in a fork of a process that has imported everything already, with bounded memory and time, so that
one which asks for gigabytes or ends its interpreter harms nobody else.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vergence.cli.main import main

MEMORY, SECONDS = 6 << 30, 30
BASE = """
task       = { name = "toy" }
model      = { name = "linear" }
federation = { name = "toy", people = 3 }
METHODS
local      = { optimizer = "sgd", epochs = 1, batch = 8, lr = 0.05 }
run        = { rounds = 2, evaluate_every = 0, workers = 1, solver = "sequential" }
"""
LONE = BASE.replace("METHODS", 'method = "fedavg"')
SEVERAL = BASE.replace("METHODS", 'methods = ["fedavg"]')
OWN = BASE.replace("METHODS", 'method = "own.py"')
WIDE = "x" * 5000
HALF = """
from dataclasses import dataclass
from vergence.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Half(FedAvg):
    "FedAvg under another name."
"""


@dataclass(frozen=True)
class Case:
    """One experiment and what it must come to.

    Attributes:
        name: what is nasty about it.
        sets: `--set` arguments.
        text: of the experiment file.
        files: further files beside it.
        code: the exit code; 0: a real result must be there.
        says: words of its one line on stderr.
        config: the file to run, where it is not the one that `text` went into.
        out: the run's folder.
    """

    name: str
    sets: tuple[str, ...] = ()
    text: str | bytes = LONE
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 2
    says: tuple[str, ...] = ()
    config: str = "toy.toml"
    out: str = "out"


@dataclass(frozen=True)
class Outcome:
    """What a case left: exit code, both streams, and whether there is a result."""

    code: int
    out: str
    err: str
    results: bool

    def faults(self, case: Case) -> list[str]:
        """What is not as it must be."""
        lines = self.err.strip().splitlines()
        found = []
        if "Traceback (most recent call last)" in self.err + self.out:
            found.append("a traceback")
        if self.code != case.code:
            found.append(f"exit code {self.code} instead of {case.code}")
        if case.code and (len(lines) != 1 or not lines[0].startswith("vergence: ")):
            found.append(f"{len(lines)} lines on stderr")
        if case.code and not all(c.isprintable() for c in self.err.strip()):
            found.append("control characters on stderr")
        if not case.code and not self.results:
            found.append("no result")
        return found + [f"not said: {word}" for word in case.says if word not in self.err]


def setting(item: str, *says: str, code: int = 2, text: str = LONE) -> Case:
    """One `--set` on the plain experiment."""
    name = item if len(item) < 60 else f"{item[:40]}... ({len(item)} letters)"
    return Case(name, (item,), text, {}, code, says)


def private(item: str, *says: str, kind: str = "user") -> Case:
    """One table of `privacy`."""
    return setting(f"privacy.{kind}={{{item}}}", f"privacy.{kind}", *says)


def own(name: str, code: str | bytes, *says: str, exit_: int = 2) -> Case:
    """One file with a method of one's own."""
    return Case(f"own method: {name}", (), OWN, {"own.py": code}, exit_, says)


def file(name: str, text: str | bytes, *says: str, exit_: int = 2, **files: str | bytes) -> Case:
    """One experiment file, others beside it."""
    beside = {f"{stem}.toml": content for stem, content in files.items()}
    return Case(name, (), text, beside, exit_, says)


SEEDS = [
    setting(f"run.seeds=[{2**70}]", "seeds", str(2**70), str(2**63)),
    setting(f"run.seeds=[{2**63}]", "seeds", str(2**63)),
    setting("run.seeds=[-1]", "seeds", "-1"),
    setting('run.seeds=["0"]', "seeds", "whole numbers", "'0'"),
    setting("run.seeds=[true]", "seeds", "whole numbers", "True"),
    setting("run.seeds=[1.5]", "seeds", "1.5"),
    setting("run.seeds=3", "seeds", "write [3]"),
    setting("run.seeds=[]", "at least one"),
    setting("run.seeds=[0, 0]", "different"),
    setting(f"run.seeds=[{2**63 - 1}]", code=0),
]
ROUNDS = [
    setting("run.rounds=true", "rounds", "whole number", "True"),
    setting('run.rounds="3"', "rounds", "whole number", "'3'"),
    setting("run.rounds=0", "rounds"),
    setting("run.rounds=nan", "rounds"),
    setting("run.rounds=inf", "rounds"),
    setting("run.rounds=[1]", "rounds", "[1]"),
    setting("run.rounds={a=1}", "rounds"),
    setting("run.rounds=1979-05-27", "rounds"),
    setting(f"run.rounds={'9' * 400}", "rounds", "999"),
    setting(f"run.rounds={'9' * 5000}", "4300 digits"),
    setting("run.workers=-1", "workers"),
    setting("run.workers=1e300", "workers"),
    setting("run.device=tpu", "device"),
    setting("run.points=[]", "points"),
    setting('run.points="P0"', "points", 'write ["P0"]'),
    setting("run.checkpoint_every=-1", "checkpoint_every"),
    setting("presence.cohort=nan", "cohort"),
    setting("presence.cohort=inf", "cohort"),
    setting("presence.lost=1.0", "nobody's reply counted", "lost", code=5),
    setting('presence.gone={"p0\\n0"=1}', "gone"),
]
LOCAL = [
    setting("local.lr=inf", "lr", "inf"),
    setting("local.lr=-inf", "lr"),
    setting("local.lr=nan", "lr"),
    setting("local.lr=1e300", "lr"),
    setting("local={lr=1e30, epochs=20}", "nobody's reply counted", "fedavg", "finite:", code=5),
    setting("local.lr=true", "lr", "number", "True"),
    setting('local.lr="0.1"', "lr", "number", "'0.1'"),
    setting("local.lr=fast", "lr", "number", "'fast'"),
    setting("local.weight_decay=inf", "weight_decay", "inf"),
    setting("local.weight_decay=1e300", "weight_decay", "1e+300"),
    setting("local.clip=inf", "clip", "inf"),
    setting("local.momentum=1", "momentum"),
    setting(f"local.batch={2**70}", "batch"),
    setting("local.epochs=true", "epochs"),
    setting("local.optimizer=lion", "optimizer", "adamw"),
    setting("local=true", "local must be a table"),
]
PRIVACY = [
    private("clip=inf, epsilon=8", "clip", "inf"),
    private("clip=1e-320, epsilon=8", "clip"),
    private("clip=1e300, epsilon=8", "clip"),
    private("clip=0.0, epsilon=8", "clip"),
    private("epsilon=1e-300", "epsilon"),
    private("epsilon=inf", "epsilon", "inf"),
    private("epsilon=1e300", "epsilon"),
    private("epsilon=true", "epsilon", "number"),
    private("noise=1e-9", "noise"),
    private("noise=inf", "noise", "inf"),
    private("epsilon=8, delta=1e-320", "delta"),
    private("epsilon=8, delta=0.999", "delta", "people"),
    private("epsilon=8, delta=0", "delta"),
    private("epsilon=8, delta=nan", "delta"),
    private("clip=1.0", "epsilon"),
    private("epsilon=8, bits=true", "bits"),
    private("noise=1e-3", "noise", kind="solver"),
    private("noise=0.02, clip=1e300", "clip", kind="solver"),
    private("noise=1.0, clip=inf", "clip", kind="solver"),
    private("noise=1.0, delta=0.5", "delta", kind="solver"),
    private("epsilon=1e300", "epsilon", kind="solver"),
    setting("privacy.dp=true", "'dp'", "privacy.user", "privacy.solver"),
    setting("privacy.user=true", "privacy.user must be a table"),
    setting("privacy=3", "privacy must be a table"),
    setting("privacy.solver.noise=1e-3", "noise"),
    setting("privacy.mask={epsilon=inf}", "epsilon"),
    setting("privacy.aggregation={range=1e300}", "1e+30"),
]
CODE = [
    own("a syntax error", "x = (\n\ndef y:\n", "own.py", "line"),
    own("raises", "\n\nraise ValueError('not today')\n", "own.py, line 3", "not today"),
    own("raises two lines", "raise ValueError('a\\nb')\n", "own.py, line 1"),
    own("raises nothing", "raise Exception\n", "own.py, line 1", "Exception"),
    own("not UTF-8", b"x = '\xff\xfe'\n", "own.py"),
    own("a NUL byte", b"x = 1\0\n", "own.py"),
    own("sys.exit(0)", "import sys\n\nsys.exit(0)\n", "own.py, line 3"),
    own("sys.exit in words", "raise SystemExit('bye')\n", "own.py, line 1"),
    own("imports what is not there", "import no_such_thing\n", "own.py, line 1", "no_such_thing"),
    own("for ever deeper", "def f():\n    f()\nf()\n", "own.py"),
    own("empty", "", "own.py", "Method"),
    own("two methods", HALF + HALF.replace("Half", "Other"), "own.py", "Half", "Other"),
    own("a broken line 80 levels deep", "(" * 300, "own.py"),
    own("works", HALF, exit_=0),
    Case(
        "own method: a folder",
        (),
        OWN.replace("own.py", "deep/own.py"),
        {"deep/own.py/x": ""},
        says=("own.py",),
    ),
    setting('method="no/such.py"', "no file at no/such.py"),
    Case(
        "own network: a plain module",
        ('model={name="own.py"}',),
        LONE,
        {"own.py": "from torch import nn\nclass Net(nn.Module):\n    pass\n"},
        says=("own.py", "Model", "build", "Net"),
    ),
]
NAMES = [
    setting('methods=[{name="fedavg", label="--help"}]', "label", text=SEVERAL),
    setting('methods=[{name="fedavg", label="a\\nb"}]', "label", text=SEVERAL),
    setting('methods=[{name="fedavg", label="\\u001b[31m"}]', "label", text=SEVERAL),
    setting('methods=[{name="fedavg", label="../x"}]', "label", text=SEVERAL),
    setting(f'methods=[{{name="fedavg", label="{WIDE}"}}]', "label", text=SEVERAL),
    setting('methods=["fedavg", "fedavg"]', "two methods", text=SEVERAL),
    setting('methods=["\\u0000"]', "no method named", text=SEVERAL),
    setting('methods=[""]', "no method named", text=SEVERAL),
    setting('methods=["..fedavg"]', "no method named", text=SEVERAL),
    setting('methods="fedavg"', "methods must be a list", text=SEVERAL),
    setting("methods={}", "methods must be a list", text=SEVERAL),
    Case(
        "ten thousand methods",
        (),
        BASE.replace(
            "METHODS",
            "methods = ["
            + ", ".join(f'{{ name = "fedavg", label = "m{i}" }}' for i in range(10_000))
            + "]",
        ),
        {},
        says=("10,000 methods",),
    ),
    setting('task={name="toy\\nx"}', "no task named"),
    setting('task={name="\\u202e"}', "no task named"),
    setting("a\nb=1", "unknown key"),
    setting("=3", "unknown key"),
    setting("run..rounds=3", "run"),
    setting("run.rounds", "--set takes key=value"),
    setting("\N{SNOWMAN}=1", "unknown key"),
]
PEOPLE = [
    setting("federation.people=1000000000", "people", "100000"),
    setting("federation.people=0", "people"),
    setting("federation.people=true", "people"),
    setting("federation.samples=1e300", "samples"),
    setting("federation.strength=inf", "strength"),
    setting(f"federation.root={WIDE}", "root"),
    setting('federation.root="a\\u0000b"', "root"),
    setting("federation.root=3", "root"),
    setting("model.inputs=0", "inputs"),
    setting("model.inputs=7", "do not fit together"),
    setting("model.inputs=1000000000000", "memory"),
    setting("wire.bits=true", "wire"),
    setting("pruning.amount=inf", "amount"),
    setting('presence.trace="/dev/null\\u0000"', "trace", code=3),
]
FILES = [
    file("broken TOML", "task = {", "not valid TOML"),
    file("a key twice", LONE + "task = 1\n", "not valid TOML"),
    file("not UTF-8", b"\xff\xfe", "not valid TOML"),
    file("a NUL byte", b'task = "\0"', "not valid TOML"),
    file("empty", "", "task = { name = ... }"),
    file("a list of everything", "[[task]]\nname = 'toy'\n", "task"),
    file("extends itself", 'extends = ["toy.toml"]\n', "extends", "toy.toml"),
    file(
        "two that extend each other",
        'extends = ["b.toml"]\n',
        "extends",
        b='extends = ["toy.toml"]\n',
    ),
    file("extends what is not there", 'extends = ["none.toml"]\n', "none.toml"),
    file("extends a folder", 'extends = ["."]\n', "no experiment file"),
    file("extends text", 'extends = "toy.toml"\n', "extends must be a list"),
    file("extends a name of 5,000 letters", f'extends = ["{WIDE}"]\n', "no experiment file"),
    file("extends a NUL", 'extends = ["a\\u0000"]\n', "no experiment file"),
    file("tables 3,000 deep", LONE + "[sweep.space." + ".".join("a" * 3000) + "]\n", "toy.toml"),
    file("lists 20,000 deep", "task = " + "[" * 20_000, "not valid TOML"),
    file("an unknown table", LONE + "[extra]\n", "unknown key 'extra'"),
    file("a sweep that is a number", "sweep = 3\n" + LONE, "sweep must be a table"),
    Case("no file", config="none.toml", says=("no experiment file",)),
    Case("a folder for a file", config=".", says=("no experiment file",)),
    Case("a file's name of 5,000 letters", config=WIDE, says=("no experiment",)),
    Case("a file's name with a newline", config="a\nb.toml", says=("no experiment file",)),
    Case("out is a file", files={"out": "mine"}, says=("is a file",)),
    Case("out below a file", files={"mine": "x"}, out="mine/out", says=("mine",)),
    Case("out of 5,000 letters", out=WIDE, says=("--out",)),
]
CASES = [*SEEDS, *ROUNDS, *LOCAL, *PRIVACY, *CODE, *NAMES, *PEOPLE, *FILES]


def outcome(case: Case, folder: Path) -> Outcome:
    """Run a case in a fork of this process, in an empty folder."""
    config = folder / "toy.toml"
    config.write_bytes(case.text if isinstance(case.text, bytes) else case.text.encode())
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    sets = [word for item in case.sets for word in ("--set", item)]
    argv = ["vergence", "run", case.config, "--out", case.out, *sets]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _be(argv, folder, out.fileno(), err.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    with contextlib.suppress(OSError):
        return Outcome(code, *texts, any((folder / case.out).rglob("results.json")))
    return Outcome(code, *texts, False)


def _be(argv: list[str], folder: Path, out: int, err: int) -> None:
    """Be the command until it ends; a case that runs on is ended by an alarm."""
    code = 70
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w"), "utf-8") for n in (1, 2))
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        sys.argv = argv
        code = 0
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def tell(cases: list[Case]) -> int:
    """Print what every case is told; return how many were not told well."""
    wrong = 0
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            found = outcome(case, Path(folder))
        faults = found.faults(case)
        wrong += bool(faults)
        last = (found.err.strip().splitlines() or ["a result" if found.results else "nothing"])[-1]
        print(
            f"{'no ' if faults else 'ok '} {case.name[:60]!r}: {found.code} {last[:200]}"
            f"{'   << ' + '; '.join(faults) if faults else ''}",
            flush=True,
        )
    print(f"{len(cases)} cases, {wrong} not told well")
    return wrong


if __name__ == "__main__":
    sys.exit(int(bool(tell(CASES))))
