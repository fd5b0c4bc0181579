"""Counts of what makes a code base hard to find one's way in; `tests/test_house.py` holds limits.

    python tools/house.py            # the counts
    python tools/house.py --list     # and what is counted, place by place

It reads the package below `src` and the papers, without importing them, and the pages of the API.
Statements are counted in benchmarks and tools as well, since moving is not cutting.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "vergence"
PAPERS = ROOT / "papers"
ROOMS = ("src", "papers", "benchmarks", "tools")
"""Folders whose statements are counted, apart and together."""
FORBIDDEN = Path(__file__).with_name("forbidden_words.txt")
SYSTEM = Path(__file__).with_name("system_names.txt")
ALLOWED = Path(__file__).with_name("statements.toml")
LONG_FILE, LONG_FUNCTION = 800, 60
PARTICIPLES = frozenset(
    [
        "told",
        "found",
        "kept",
        "held",
        "owed",
        "given",
        "said",
        "heard",
        "drawn",
        "chosen",
        "taken",
        "left",
        "beside",
        "apart",
    ]
)
"""Names that say what happened to a thing and not what the thing is."""
PRAGMA = re.compile(r"#\s*(type:|pyright|noqa|fmt:|pragma|ruff|!)")
MOST_PARAMETERS = 8

USERS = re.compile(r"\n\nUsed (?:by|in|throughout) (.+?)\.(?=\n\n|\Z)", re.DOTALL)
"""Paragraph of a module's docstring that names the modules, or packages, which import it."""
PUBLIC = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
"""A name on a page of the API, by its module."""


@cache
def parsed(path: Path) -> ast.Module:
    """Syntax tree of a file, which is read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a syntax tree, which is walked once for all that is counted in it."""
    return list(ast.walk(tree))


def python_files(folder: Path) -> list[Path]:
    """Python files below a folder, in order; `pip install ./papers` leaves copies in `build`."""
    return sorted(p for p in folder.rglob("*.py") if "build" not in p.relative_to(folder).parts)


@cache
def sources() -> dict[str, Path]:
    """Every module of the package, by its path there, and of the papers, by `papers/...`."""
    own = {path.relative_to(PACKAGE).as_posix(): path for path in python_files(PACKAGE)}
    return own | {path.relative_to(ROOT).as_posix(): path for path in python_files(PAPERS)}


@cache
def modules() -> dict[str, ast.Module]:
    """The same modules, parsed."""
    return {name: parsed(path) for name, path in sources().items()}


def statements(place: Path) -> int:
    """Number of statements of a module, or of those of a folder, without imports and docstrings."""
    files = python_files(place) if place.is_dir() else [place]
    return sum(_counts(node) for path in files for node in nodes(parsed(path)))


def statements_by_package() -> dict[str, int]:
    """Number of statements of every package of `src`, its single files as one, and other rooms."""
    single = sum(map(statements, PACKAGE.glob("*.py")))
    packages = {path.name: statements(path) for path in PACKAGE.iterdir() if path.is_dir()}
    packages = {f"src/{name}": count for name, count in sorted(packages.items()) if count}
    rooms = {room: statements(ROOT / room) for room in ROOMS if room != "src"}
    return {"src": single, **packages, **rooms}


def allowed_statements() -> dict[str, int]:
    """Number of statements that each package may have: what a change adds, it cuts elsewhere."""
    return tomllib.loads(ALLOWED.read_text(encoding="utf-8"))["statements"]


def _counts(node: ast.AST) -> bool:
    docstring = (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
    imported = isinstance(node, ast.Import | ast.ImportFrom)
    return isinstance(node, ast.stmt) and not docstring and not imported


def folders(found: dict[str, ast.Module]) -> dict[str, int]:
    """Number of modules in each folder; `__init__` is none."""
    return Counter(str(Path(name).parent) for name in found if Path(name).name != "__init__.py")


def definitions(found: dict[str, ast.Module]) -> Iterator[tuple[str, ast.AST]]:
    """Every class and function, with its module."""
    for name, tree in found.items():
        yield from ((name, node) for node in _walked(tree))


@cache
def _walked(tree: ast.Module) -> list[ast.AST]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in nodes(tree) if isinstance(node, kinds)]


def long_files() -> list[str]:
    """Files of more lines than a reader holds in mind."""
    sizes = {name: len(path.read_text().splitlines()) for name, path in sources().items()}
    return [f"{name}: {n}" for name, n in sizes.items() if n > LONG_FILE]


def long_functions(found: dict[str, ast.Module]) -> list[str]:
    """Functions of more lines than fit on a screen, their docstring included."""
    long = []
    for name, node in definitions(found):
        if isinstance(node, ast.ClassDef):
            continue
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > LONG_FUNCTION:
            long.append(f"{name}:{node.lineno} {node.name}: {lines}")
    return long


def unformatted() -> list[str]:
    """Places that the formatter leaves alone."""
    return [f"{name}:{n}" for name, path in sources().items()
            for n, line in enumerate(path.read_text().splitlines(), 1)
            if "# fmt: skip" in line or "# fmt: off" in line]  # fmt: skip


def repeated_classes(found: dict[str, ast.Module]) -> list[str]:
    """Class names that stand for several classes."""
    places = defaultdict(list)
    for name, tree in found.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    return [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Names that a module gives to classes, functions, parameters, fields and attributes."""
    for node in nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield node.lineno, node.name
            for field in node.body:
                targets = field.targets if isinstance(field, ast.Assign) else ()
                targets = (field.target,) if isinstance(field, ast.AnnAssign) else targets
                yield from ((t.lineno, t.id) for t in targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def participles(found: dict[str, ast.Module]) -> list[str]:
    """Names that are a bare participle; `left` is none in a module that has `right` as well."""
    places = []
    for module, tree in found.items():
        named = [(line, name.strip("_")) for line, name in names(tree)]
        sides = {"left"} if "right" in {name for _, name in named} else set[str]()
        banned = PARTICIPLES - sides
        places += [f"{module}:{line} {name}" for line, name in named if name in banned]
    return places


def untyped(found: dict[str, ast.Module], *packages: str) -> list[str]:
    """Places where a package says `Any`."""
    return [
        f"{name}:{node.lineno}"
        for name, tree in found.items()
        if name.split("/")[0] in packages
        for node in nodes(tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    ]


def many_parameters(found: dict[str, ast.Module]) -> list[str]:
    """Functions with more parameters than a reader of a call keeps apart."""
    return [
        f"{name}:{node.lineno} {node.name}"
        for name, node in definitions(found)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) > MOST_PARAMETERS
    ]


def comments() -> tuple[int, int]:
    """Number of whole-line comments of the package, without pragmas, and of its lines."""
    files = python_files(PACKAGE)
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    return sum(line.startswith("#") and not PRAGMA.match(line) for line in lines), len(lines)


def words(identifier: str) -> list[str]:
    """Words of an identifier, in small letters."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)]


def lines_of(file: Path) -> set[str]:
    """Lines of a committed list, without comments."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def forbidden(found: dict[str, ast.Module]) -> list[str]:
    """Identifiers of classes, functions and modules that hold a word of the committed list."""
    banned = lines_of(FORBIDDEN)
    left = [f"{name}: {Path(name).stem}" for name in found if banned & set(words(Path(name).stem))]
    for name, node in definitions(found):
        assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if banned & set(words(node.name)):
            left.append(f"{name}:{node.lineno} {node.name}")
    return left


def system_calls(found: dict[str, ast.Module]) -> list[str]:
    """Uses of what one operating system has and another has not, outside `vergence/system`."""
    banned, left = lines_of(SYSTEM), []
    for name, tree in found.items():
        if name.startswith("system/"):
            continue
        for node in nodes(tree):
            if isinstance(node, ast.Import):
                used = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                used = {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = {f"{node.value.id}.{node.attr}"}
            else:
                continue
            left += [f"{name}:{node.lineno} {each}" for each in sorted(used & banned)]
    return left


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one module, or of one that imports itself."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        left = list(graph[start])
        while left:
            at = left.pop()
            if at not in seen:
                seen.add(at)
                left += graph[at]
        reached[start] = seen
    own = {at: frozenset(b for b in reached[at] if at in reached[b]) for at in graph}
    return [set(circle) for circle in set(own.values()) if circle]


def trees(root: Path) -> dict[str, ast.Module]:
    """Every module of a package, parsed, by its full name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = parsed(path)
    return found


@cache
def imports(root: Path, *, lazy: bool = False) -> dict[str, set[str]]:
    """Modules that each module of a package imports at its top, under TYPE_CHECKING too.

    With `lazy`, those that its functions import count as well.
    """
    found = trees(root)
    walk = nodes if lazy else _outside_functions
    return {name: _imported(walk(tree), found.keys()) - {name} for name, tree in found.items()}


def _imported(nodes: Iterable[ast.AST], known: Collection[str]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            own = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= own & set(known)
            if own - set(known):
                found.add(node.module or "")
    return found & set(known)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Statements that run, or are read by a type checker, when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _outside_functions(child)


def import_circles() -> list[str]:
    """Groups of modules that import each other."""
    graph = imports(PACKAGE) | imports(PAPERS / "vergence_papers")
    # The package offers its public names to type checkers from everywhere; nothing runs.
    graph[PACKAGE.name] = set()
    return [", ".join(sorted(circle)) for circle in circles(graph)]


def package_imports(root: Path) -> dict[str, set[str]]:
    """Packages, and single files, right below a package, and which of them each imports.

    Imports inside functions count: whoever reads one package has to know the other.
    """
    graph: dict[str, set[str]] = defaultdict(set)
    for module, imported in imports(root, lazy=True).items():
        package = _package(module)
        if package:
            graph[package] |= {_package(name) for name in imported} - {package, ""}
    return dict(graph)


def _package(module: str) -> str:
    """Name of the package, or file, right below the root that a module is part of."""
    return module.split(".")[1] if "." in module else ""


def two_way_pairs(graph: dict[str, set[str]]) -> list[str]:
    """Pairs that import each other."""
    return [f"{a}, {b}" for a in sorted(graph) for b in sorted(graph[a]) if a < b and a in graph[b]]


def named_modules(tree: ast.AST, known: Collection[str]) -> set[str]:
    """Modules that strings name, as `vergence.cli.new:new`, or below the package `core.method`."""
    texts = {
        node.value.partition(":")[0]
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {name for text in texts for name in (text, f"{PACKAGE.name}.{text}") if name in known}


def public_modules(known: Collection[str]) -> set[str]:
    """Modules of the names in the reference of the API, those of every registry among them."""
    pages = (ROOT / "docs" / "reference").rglob("*.md")
    names = (name for page in pages for name in PUBLIC.findall(page.read_text(encoding="utf-8")))
    return {name.rpartition(".")[0] for name in names} & set(known)


def unreached() -> list[str]:
    """Modules that no path of a user reaches: no command, no public name, no registry."""
    graph = imports(PACKAGE, lazy=True)
    named = {name: named_modules(tree, graph.keys()) for name, tree in trees(PACKAGE).items()}
    root = PACKAGE.name
    # Type checkers read every public name there; a program imports those that it uses.
    graph = {name: named[name] | (set() if name == root else graph[name]) for name in graph}
    left = [root, f"{root}.__main__", *public_modules(graph.keys())]
    seen: set[str] = set()
    while left:
        at = left.pop()
        if at in graph and at not in seen:
            seen.add(at)
            left += [*graph[at], at.rpartition(".")[0]]
    copied = f"{root}.cli.templates."  # `vergence new` copies these
    return sorted(name for name in graph.keys() - seen if not name.startswith(copied))


def false_users() -> list[str]:
    """Modules whose docstring names a user that neither imports them nor names them in a string."""
    graph, parsed_modules = imports(PACKAGE, lazy=True), trees(PACKAGE)
    used = {a: graph[a] | named_modules(tree, graph.keys()) for a, tree in parsed_modules.items()}
    places = []
    for module, tree in parsed_modules.items():
        paragraph = USERS.search((ast.get_docstring(tree) or "").rstrip())
        for user in re.findall(r"`([^`]+)`", paragraph[1] if paragraph else ""):
            user = f"{PACKAGE.name}.{user}"
            inside = (name for name in used if name == user or name.startswith(f"{user}."))
            if not any(module in used[name] for name in inside):
                places.append(f"{module}: {user}")
    return places


def counts() -> dict[str, list[str]]:
    """What is counted, each with its places."""
    found, packages = modules(), package_imports(PACKAGE)
    return {
        "files over 800 lines": long_files(),
        "functions over 60 lines": long_functions(found),
        "places that the formatter skips": unformatted(),
        "import circles": import_circles(),
        "pairs of packages that import each other": two_way_pairs(packages),
        "packages on circles of imports": sorted(set().union(*circles(packages))),
        "modules that no user path reaches": unreached(),
        "modules that name a false user": false_users(),
        "class names used twice": repeated_classes(found),
        "identifiers with forbidden words": forbidden(found),
        "names that are a bare participle": participles(found),
        "Any in core, engine and privacy": untyped(found, "core", "engine", "privacy"),
        "functions with more than 8 parameters": many_parameters(found),
        "uses of one operating system": system_calls(found),
    }


def main() -> int:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print every place, too")
    asked = parser.parse_args()
    sizes = folders(modules())
    most = max(sizes, key=lambda folder: sizes[folder])
    print(f"largest folder: {most}, {sizes[most]} modules")
    found = {room: statements(ROOT / room) for room in ROOMS}
    shares = ", ".join(f"{room} {count:,}" for room, count in found.items())
    print(f"statements: {shares}, together {sum(found.values()):,}")
    many, lines = comments()
    print(f"whole-line comments: {many:,} on {lines:,} lines, {many / lines:.2%}")
    for what, places in counts().items():
        print(f"{what}: {len(places)}")
        for place in places if asked.list else ():
            print(f"    {place}")
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # `| head` has read enough
        sys.exit(main())
