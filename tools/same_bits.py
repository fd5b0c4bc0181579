"""Bit-for-bit comparison of two checkouts, by small experiments that run in both.

    python tools/same_bits.py A B            # A, B: folders, or git revisions of this repository
    python tools/same_bits.py A B --only fedavg --only pads_bytes
    python tools/same_bits.py --write        # store this checkout's bits for this kind of processor

Bits depend on the processor and on torch, so both checkouts run here, one after the other, each in
a subprocess of its own with this interpreter. Exit code 0: all equal; 1: something differs or did
not run; 2: the question is wrong. The experiments are in `small_experiments.toml`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Table = dict[str, Any]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STORED = ROOT / "tests" / "golden" / "fingerprints.json"

# What differs between checkouts. A row of SPELLINGS is one word of an experiment (a key, or a whole
# text value such as a method's name), as `small_experiments.toml` has it and as other checkouts
# do; when a checkout refuses a word by name, the next one of its row is tried. SECRETS are the
# modules that make the secret which the noise of a simulation comes from, by their `new_seed`.
SPELLINGS: tuple[tuple[str, ...], ...] = (
    ("optimizer", "optimiser"),
    ("interpolation", "earned"),
    ("value_codec", "kept"),
)
SECRETS = ("vergence.privacy.release_log", "vergence.privacy.book")

SECRET = bytes(range(32))
"""Noise is drawn from it. No setting names one."""


@dataclass(frozen=True)
class Bits:
    """What an experiment left: fingerprints by seed, the SHA-256 of people.csv; or why nothing."""

    fingerprint: str = ""
    people: str = ""
    error: str = ""


def experiments() -> dict[str, Table]:
    """The fixed list: every experiment by its name, merged with its base."""
    whole = tomllib.loads((HERE / "small_experiments.toml").read_text())
    bases = whole.pop("base")
    return {
        name: merged(bases[base], changes)
        for base, group in whole.items()
        for name, changes in group.items()
    }


def merged(below: Table, above: Table) -> Table:
    """Two tables as one; `above` wins, but a table with a name of its own replaces the other."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict) and "name" not in value
        out[key] = merged(out[key], value) if both else value
    return out


def protected(table: Table) -> bool:
    """Whether an experiment asks for protections."""
    return "privacy" in table


def spelled(part: Any, words: Mapping[str, str]) -> Any:
    """An experiment with its keys and text values respelled."""
    if isinstance(part, dict):
        return {words.get(key, key): spelled(value, words) for key, value in part.items()}
    if isinstance(part, list):
        return [spelled(value, words) for value in part]
    return words.get(part, part) if isinstance(part, str) else part


def fix_secret() -> None:
    """Let whoever makes the secret of a run's noise get the fixed one."""
    for name in SECRETS:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name).new_seed = lambda: SECRET


def read_bits(folder: Path) -> Bits:
    """The bits of a finished run.

    Raises:
        RuntimeError: it drew from a secret of its own.
    """
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size == len(SECRET) and path.read_bytes() != SECRET:
            where = path.relative_to(folder)
            raise RuntimeError(f"it made a secret of its own in {where}; add its module to SECRETS")
    found = json.loads((folder / "results.json").read_text())["fingerprint"]
    people = hashlib.sha256((folder / "people.csv").read_bytes()).hexdigest()
    return Bits(" ".join(found[seed] for seed in sorted(found, key=int)), people)


class Inside:
    """One checkout, in the subprocess that has its package on the path."""

    def __init__(self, checkout: Path, out: Path) -> None:
        self.checkout, self.out = checkout, out
        self.chosen = [0] * len(SPELLINGS)
        self.main = self._entrance()

    def _entrance(self) -> Callable[[], None]:
        """The command `vergence` of this checkout, wherever it keeps it."""
        table = tomllib.loads((self.checkout / "pyproject.toml").read_text())
        module, _, name = table["project"]["scripts"]["vergence"].partition(":")
        found = importlib.import_module(module)
        if not Path(str(found.__file__)).is_relative_to(self.checkout / "src"):
            raise RuntimeError(f"{module} comes from {found.__file__}, not from {self.checkout}")
        return getattr(found, name)

    def bits(self, name: str, table: Table) -> Bits:
        """Run one experiment, in the words that this checkout knows."""
        attempt = 0
        while True:
            words = {row[0]: row[at] for row, at in zip(SPELLINGS, self.chosen, strict=True)}
            folder = self.out / f"{name}.{attempt}"
            code, said = self._run(spelled(table, words), folder, protected(table))
            if code == 0:
                try:
                    return read_bits(folder)
                except (OSError, KeyError, ValueError, RuntimeError) as error:
                    return Bits(error=f"{type(error).__name__}: {error}")
            if not self._respell(said):
                last = said.strip().rpartition("\n")[2]
                return Bits(error=f"exit code {code}: {last}")
            attempt += 1

    def _respell(self, said: str) -> bool:
        """Go on to the next spelling of the words that a refusal names; False if there is none."""
        refused = [
            at
            for at, row in enumerate(SPELLINGS)
            if self.chosen[at] + 1 < len(row) and re.search(rf"\b{row[self.chosen[at]]}\b", said)
        ]
        for at in refused:
            self.chosen[at] += 1
        return bool(refused)

    def _run(self, table: Table, folder: Path, hidden: bool) -> tuple[int, str]:
        """Run `vergence run` in a fork, which leaves nothing behind for the next experiment."""
        import tomli_w

        folder.mkdir(parents=True)
        file, log, loaded = (folder.with_suffix(s) for s in (".toml", ".log", ".modules"))
        file.write_text(tomli_w.dumps(table))
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os._exit(
                self._forked(
                    ["vergence", "run", str(file), "--out", str(folder)], log, loaded, hidden
                )
            )
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if loaded.exists():  # what the first run imported, the next need not import again
            for module in loaded.read_text().split():
                with suppress(ImportError):
                    importlib.import_module(module)
        return code, log.read_text(errors="replace")

    def _forked(self, arguments: list[str], log: Path, loaded: Path, hidden: bool) -> int:
        if hidden:
            fix_secret()
        with log.open("w") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
            sys.argv = arguments
            try:
                self.main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):
                    print(end.code)
            except BaseException:
                traceback.print_exc()
                code = 1
            loaded.write_text(
                "\n".join(name for name in sys.modules if name.startswith("vergence"))
            )
            sys.stdout.flush()
            sys.stderr.flush()
        return code


def inside(checkout: Path, names: Sequence[str]) -> None:
    """Run experiments of the checkout on the path; a line of JSON for each."""
    tables = experiments()
    with tempfile.TemporaryDirectory(prefix="same_bits.") as out:
        os.environ["VERGENCE_CACHE"] = str(Path(out) / "cache")
        try:
            place = Inside(checkout, Path(out) / "runs")
        except (ImportError, AttributeError, LookupError, OSError, RuntimeError) as error:
            sys.exit(f"{type(error).__name__}: {error}")
        for name in names:
            print(json.dumps(asdict(place.bits(name, tables[name]))), flush=True)


def run_all(label: str, checkout: Path, names: Sequence[str]) -> dict[str, Bits]:
    """Run experiments of a checkout in a subprocess, saying how far it is."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("VERGENCE_")}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {
        **kept,
        **threads,
        "PYTHONPATH": str(checkout / "src"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, __file__, "--inside", str(checkout), *names]
    found: dict[str, Bits] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for name in names:
            began = time.perf_counter()
            line = child.stdout.readline()
            found[name] = Bits(**json.loads(line)) if line else Bits(error="its process died")
            took, many = time.perf_counter() - began, f"{len(found)}/{len(names)}"
            say(f"{label} {many:>5} {name:<20} {took:5.1f} s  {found[name].error}")
            if not line:
                break
    return found


def say(text: str) -> None:
    """Tell who waits."""
    print(text.rstrip(), file=sys.stderr, flush=True)


@contextmanager
def checked_out(what: str) -> Iterator[Path]:
    """A checkout: a folder as it is, or a revision in a work tree that lasts as long as this.

    Raises:
        ValueError: it is neither.
    """
    if Path(what).is_dir():
        folder = Path(what).resolve()
        if not (folder / "src" / "vergence").is_dir():
            raise ValueError(f"{what} is no checkout: it has no src/vergence")
        yield folder
        return
    found = git("rev-parse", "--verify", "--quiet", f"{what}^{{commit}}")
    if found.returncode:
        raise ValueError(f"{what} is neither a folder nor a revision of {ROOT}")
    with tempfile.TemporaryDirectory(prefix="same_bits.") as temporary:
        folder = Path(temporary).resolve() / "checkout"
        added = git("worktree", "add", "--quiet", "--detach", str(folder), found.stdout.strip())
        if added.returncode:
            raise ValueError(f"{what} cannot be checked out: {added.stderr.strip()}")
        try:
            yield folder
        finally:
            git("worktree", "remove", "--force", str(folder))


def git(*arguments: str, at: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Git, here."""
    return subprocess.run(["git", "-C", str(at), *arguments], capture_output=True, text=True)


def compare(a: Mapping[str, Bits], b: Mapping[str, Bits], names: Sequence[str]) -> bool:
    """Print the table of both; whether all are equal."""
    row = "{:<20}  {:<12}  {:<12}  {:<12}  {:<12}  {}"
    print(row.format("experiment", "fingerprint A", "B", "people.csv A", "B", "equal"))
    all_equal = True
    for name in names:
        one, other = (side.get(name, Bits(error="not run")) for side in (a, b))
        equal = one == other and not one.error
        all_equal &= equal
        shown = (
            s[:12] or "-" for s in (one.fingerprint, other.fingerprint, one.people, other.people)
        )
        print(row.format(name, *shown, "yes" if equal else "NO"))
        for label, side in (("A", one), ("B", other)):
            if side.error:
                print(f"    {label}: {side.error}")
    many = sum(a.get(n) == b.get(n) and not a[n].error for n in names if n in a)
    print(f"{many} of {len(names)} experiments are equal bit for bit, on {processor()}")
    return all_equal


def processor() -> str:
    """What bits depend on beside code: the processor's maker, family and instructions; libraries.

    torch, oneDNN and MKL choose kernels by these (the widest vector instructions are what ATen says
    it uses), and each adds up in an order of its own, as may another version of torch or numpy.
    Measured on a Zen 4: without AVX512 networks move, without AVX2 everything; MKL's mode for all
    processors moves everything too, and what AVX512 has beyond its core (bf16, VNNI) nothing.
    """
    import numpy
    import torch

    about: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, colon, value = line.partition(":")
            if colon:
                about.setdefault(key.strip(), value.strip())
    maker = about.get("vendor_id") or about.get("CPU implementer") or platform.machine()
    family = about.get("cpu family") or about.get("CPU part") or "-"
    widest = torch.backends.cpu.get_cpu_capability()
    return f"{maker} {family} {widest}, torch {torch.__version__}, numpy {numpy.__version__}"


def read_stored(kind: str) -> dict[str, Bits]:
    """The stored bits of a kind of processor; nothing where none are."""
    whole = json.loads(STORED.read_text()) if STORED.exists() else {}
    entry = whole.get(kind, {}).get("experiments", {})
    return {name: Bits(**bits) for name, bits in entry.items()}


def write(found: Mapping[str, Bits], commit: str) -> None:
    """Store bits for this kind of processor; what moved is out of date for others, and goes."""
    kind, before = processor(), read_stored(processor())
    whole = json.loads(STORED.read_text()) if STORED.exists() else {}
    moved = [name for name, bits in before.items() if found.get(name, bits) != bits]
    for entry in whole.values():
        for name in moved:
            entry["experiments"].pop(name, None)
    kept = {
        name: {"fingerprint": bits.fingerprint, "people": bits.people}
        for name, bits in {**before, **found}.items()
        if name in experiments()
    }
    whole[kind] = {"commit": commit, "experiments": dict(sorted(kept.items()))}
    STORED.write_text(json.dumps(dict(sorted(whole.items())), indent=1) + "\n")
    print(
        f"{STORED.relative_to(ROOT)}: {len(found)} experiments for {kind}; moved: {moved or 'none'}"
    )


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkouts", nargs="*", metavar="CHECKOUT", help="folder or git revision")
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    parser.add_argument("--unprotected", action="store_true", help="only those without protections")
    parser.add_argument("--write", action="store_true", help="store the bits of one checkout")
    asked = parser.parse_args(given)
    tables = experiments()
    for name in asked.only or ():
        if name not in tables:
            parser.error(f"no experiment '{name}'; known: {', '.join(tables)}")
    asked.names = [
        name
        for name, table in tables.items()
        if name in (asked.only or tables) and not (asked.unprotected and protected(table))
    ]
    if asked.write and not asked.checkouts:
        asked.checkouts = [str(ROOT)]
    if len(asked.checkouts) != (1 if asked.write else 2):
        parser.error("give two checkouts to compare, or --write and at most one")
    if not asked.names:
        parser.error("nothing is left to run: --only names protected experiments alone")
    return asked


def main() -> int:
    """Compare, or store."""
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), sys.argv[3:])
        return 0
    asked = arguments()
    sides, commit = [], ""
    for label, what in zip("AB", asked.checkouts, strict=False):
        try:
            with checked_out(what) as folder:
                sides.append(run_all(label, folder, asked.names))
                commit = git("describe", "--always", "--dirty", "--abbrev=40", at=folder).stdout
        except ValueError as error:
            say(f"same_bits: {error}")
            return 2
    if not asked.write:
        return 0 if compare(sides[0], sides[1], asked.names) else 1
    (found,) = sides
    failed = [name for name in asked.names if name not in found or found[name].error]
    if failed:
        say(f"same_bits: nothing is stored, as these did not run: {', '.join(failed)}")
        return 1
    write(found, commit.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
