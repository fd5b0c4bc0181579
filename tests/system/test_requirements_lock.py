"""`requirements.lock` holds every dependency, at the versions that tests run with, with hashes."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import lock

ENTRY = re.compile(r"^(\w.*?)==(\S+)(?: ; [^\\]+)? \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.M)
TEXT = lock.LOCK.read_text(encoding="utf-8")
GPU = lock.GPU_LOCK.read_text(encoding="utf-8")


def entries(text):
    """Package -> its version and hashes."""
    return {
        canonicalize_name(name): (version, re.findall(r"sha256:([0-9a-f]{64})(?= |\n)", hashes))
        for name, version, hashes in ENTRY.findall(text)
    }


def test_every_line_is_a_package_with_hashes():
    for text in (TEXT, GPU):
        found = entries(text)
        assert all(hashes for _, hashes in found.values())
        rest = ENTRY.sub("", text)
        assert all(line.startswith(("#", "-r ")) for line in rest.splitlines())
    assert not any(lock.GPU.match(f"{name}==") for name in entries(TEXT))


def test_every_dependency_is_in_it_at_the_version_of_the_constraints():
    project = tomllib.loads((lock.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in lock.EXTRAS:
        wanted += project["optional-dependencies"][extra]
    found = entries(TEXT)
    for text in wanted:
        requirement = Requirement(text)
        version, _ = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text
    pinned = (lock.ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    known = dict(line.split("==") for line in pinned if "==" in line and line[0] != "#")
    known = {canonicalize_name(name): version for name, version in known.items()}
    assert {n: v for n, (v, _) in found.items() if n in known} == {
        name: known[name] for name in found if name in known
    }
    assert len(found) > 90


def test_both_builds_of_pytorch_are_known():
    """The build for CPUs has another hash than that of the same version at PyPI."""
    version, hashes = entries(TEXT)["torch"]
    assert version == "2.13.0"
    assert hashes[0] == lock.CPU_BUILDS["torch"]
    assert len(hashes) > 10
