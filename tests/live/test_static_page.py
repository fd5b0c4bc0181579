"""`vergence web` before there is a page: methods without a shared model, and why npm failed."""

import pytest

from tests.adaptation.test_adapted_run import EYES
from tests.cli.commands import run, vergence
from tests.refusals import refuses
from vergence.errors import ConfigError
from vergence.live import static_page

# As npm 11 writes them, without the stack.
NO_PACKAGE = """npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/onnxruntime-web - Not found
npm error 404
npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug-0.log
"""
NO_ROOM = """npm error code ENOSPC
npm error syscall write
npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug-0.log
"""


def test_a_run_of_personal_models_is_refused_before_anything_is_written(tmp_path):
    text = EYES.replace('method     = "fedavg"', 'method     = "fedrep"')
    personal = run(tmp_path, text)
    said = vergence("web", personal, "--out", tmp_path / "page")
    said.complains(2, "'fedrep'", "such as fedavg")
    assert "--person" not in said.err
    assert not (tmp_path / "page").exists()


@pytest.mark.parametrize(
    ("lines", "reason"), [(NO_PACKAGE, "404 Not Found"), (NO_ROOM, "ENOSPC"), ("", "status 1")]
)
def test_the_refusal_says_why_npm_failed(tmp_path, monkeypatch, lines, reason):
    """A program in place of npm, which is as quiet as npm is with --silent."""
    monkeypatch.setenv("VERGENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "lines").write_text(lines)
    npm = tmp_path / "npm"
    quiet = 'case "$*" in *--silent*) exit 1;; esac'
    npm.write_text(f"#!/bin/sh\n{quiet}\ncat {tmp_path / 'lines'} >&2\nexit 1\n")
    npm.chmod(0o700)
    with refuses("setting", "npm", reason, "--runtime", kind=ConfigError):
        static_page.runtime_files(None, static_page.SERVED)
