"""Hooks of mkdocs: pages from outside docs, notebooks as pages, folders in the navigation.

* ARCHITECTURE, CONTRIBUTING, CHANGELOG, RELEASE and SECURITY of the repository are pages of the
  site. A link from a page to any other file outside docs leads to a copy of that file.
* Pages of papers, `papers/PAPER/results`, and the pictures beside them are a section of the site.
  Its search leaves them out: hundreds of tables of numbers would bury the pages that explain.
* A notebook becomes a page by nbconvert, with the outputs that are stored in it: nothing is run. It
  is a page of Markdown, so that its links are checked as those of other pages are.
* An entry of the navigation that ends in * stands for the pages of a folder that have no entry.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("ARCHITECTURE", "CONTRIBUTING", "CHANGELOG", "RELEASE", "SECURITY")
TOP = {f"{name}.md": f"{name.lower()}.md" for name in NAMES}
"""Pages of the repository's root, with their names in the site."""
COPIES = "files"
PAPERS = re.compile(r"papers/(README\.md$|\w+/results/)")
"""What the site shows of papers, under the names that it has in the repository."""
LINK = re.compile(r"\[((?:[^\]\n]|\n(?!\n))*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```[ \t]*$|(?<!\[)`[^`\n]+`)", re.MULTILINE | re.DOTALL)
"""Code, in which nothing is a link; code that begins the text of a link is part of the link."""
IMAGE = re.compile(r"\]\((\w+\.(?:png|svg|jpg))\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of folders into the navigation."""
    named = set(_leaves(config.nav))
    config.nav = _expanded(config.nav, Path(config.docs_dir), named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the root and of notebooks, and the files that pages link to."""
    for name, uri in TOP.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text("utf-8")))
    for path in sorted((ROOT / "papers").rglob("*")):
        uri = path.relative_to(ROOT).as_posix()
        if path.is_file() and PAPERS.match(uri):
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        _add_notebook(files, config, notebook)
    wanted = {target for file in files.documentation_pages() for target in _outside(file)}
    for target in sorted(wanted):
        if (ROOT / target).is_file():
            uri = f"{COPIES}/{target}"
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links that leave docs to where the site has what they lead to; hide results of papers.

    The theme's search leaves out a page whose front matter says so.
    """
    if page.file.src_uri.startswith("papers/") and "/results/" in page.file.src_uri:
        page.meta["search"] = {"exclude": True}
    return linked(markdown, page.file.src_uri)


def linked(markdown: str, uri: str) -> str:
    """The text of a page with its links as the site must have them."""
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda m: _moved(m[1], m[2], uri), part) for part in parts[::2]]
    return "".join(parts)


def _moved(text: str, link: str, uri: str) -> str:
    """A link as the page with this name in the site must have it; of a folder, its text alone."""
    if "://" in link or link.startswith(("#", "mailto:")):
        return f"[{text}]({link})"
    target, hash_, anchor = link.partition("#")
    inside = _target(target, uri)
    here = posixpath.dirname(uri) or "."
    if (ROOT / inside / "README.md").is_file():
        inside += "/README.md"
    if (ROOT / inside).is_dir():
        return text
    if inside.startswith("docs/"):
        moved = inside.removeprefix("docs/").removesuffix(".ipynb")
        moved += ".md" if inside.endswith(".ipynb") else ""
    elif inside in TOP:
        moved = TOP[inside]
    elif PAPERS.match(inside):
        moved = inside
    elif inside == "README.md":
        moved = "index.md"
    else:
        moved = f"{COPIES}/{inside}"
        hash_ = anchor = ""
    return f"[{text}]({posixpath.relpath(moved, here)}{hash_}{anchor})"


def _target(link: str, uri: str) -> str:
    """The path, below the repository, that a link on a page of the site leads to."""
    top = next((name for name, own in TOP.items() if own == uri), None)
    place = top or (uri if PAPERS.match(uri) else f"docs/{uri}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))


def _outside(file: File) -> set[str]:
    """Files outside docs that a page links to."""
    found = set()
    for part in FENCE.split(file.content_string)[::2]:
        for _, link in LINK.findall(part):
            target = link.partition("#")[0]
            if target and "://" not in link and not link.startswith("mailto:"):
                inside = _target(target, file.src_uri)
                if not (inside.startswith("docs/") or inside in TOP or PAPERS.match(inside)):
                    found.add(inside)
    return found


def _add_notebook(files: Files, config: MkDocsConfig, notebook: File) -> None:
    text, resources = MarkdownExporter().from_filename(str(notebook.abs_src_path))
    uri = notebook.src_uri.removesuffix(".ipynb")
    named = {name: f"{posixpath.basename(uri)}_{name}" for name in resources["outputs"]}
    text = IMAGE.sub(lambda m: f"]({named.get(m[1], m[1])})", text)
    files.append(File.generated(config, f"{uri}.md", content=text))
    for name, data in resources["outputs"].items():
        place = f"{posixpath.dirname(uri)}/{named[name]}"
        files.append(File.generated(config, place, content=data))


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [leaf for each in inner for leaf in _leaves(each)]


def _expanded(nav: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(inner, docs, named) for title, inner in nav.items()}
    if not isinstance(nav, list):
        return nav
    found = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/*"):
            home = ROOT if PAPERS.match(entry) else docs
            folder = home / entry.removesuffix("/*")
            pages = sorted([*folder.glob("*.md"), *folder.glob("*.ipynb")])
            uris = [f"{page.relative_to(home).parent.as_posix()}/{page.stem}.md" for page in pages]
            found += [uri for uri in uris if uri not in named]
        else:
            found.append(_expanded(entry, docs, named))
    return found
