"""The house itself: modules import each other in no circle."""

import ast
from pathlib import Path

import vergence

ROOT = Path(vergence.__file__).parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def modules(root: Path) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def outside_functions(node: ast.AST):
    """The statements that run, or are read by a type checker, when a module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from outside_functions(child)


def imports(path: Path, known) -> set[str]:
    """The modules, of those known, that a file imports at its top: under TYPE_CHECKING too."""
    found = set()
    for node in outside_functions(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            own = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= own & set(known)
            if own - set(known):
                found.add(node.module)
    return found & set(known)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Strongly connected components of more than one module, or of one that imports itself."""
    reached = {}
    for start in graph:
        seen, left = set(), list(graph[start])
        while left:
            at = left.pop()
            if at not in seen:
                seen.add(at)
                left += graph[at]
        reached[start] = seen
    own = {at: frozenset(b for b in reached[at] if at in reached[b]) for at in graph}
    return [set(circle) for circle in set(own.values()) if circle]


def graph_of(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    return {name: imports(path, known) - {name} for name, path in known.items()}


def test_no_modules_import_each_other_in_a_circle():
    graph = graph_of(ROOT)
    # The package offers its public names to type checkers from everywhere; nothing runs.
    graph["vergence"] = set()
    found = circles(graph)
    print(f"{len(found)} circles among {len(graph)} modules")
    assert len(graph) > 400
    assert len(found) == 0, [sorted(circle) for circle in found]


def test_a_circle_is_found_under_type_checking_and_not_inside_a_function(tmp_path):
    files = {
        "one": "from pkg import two\n",
        "two": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.one import x\n",
        "three": "def lazy():\n    from pkg import four\n",
        "four": "import pkg.three\n",
    }
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    for name, text in files.items():
        (tmp_path / "pkg" / f"{name}.py").write_text(text)
    assert circles(graph_of(tmp_path / "pkg")) == [{"pkg.one", "pkg.two"}]
