"""`deploy stop` ends the process that holds a folder's lock, and no other that the file names.

Whoever may read the file can lock it, and what an earlier run left in it is an old number: -1 would
end everything that the caller runs.
"""

import subprocess
import sys

import pytest

from vergence.deployment.folders import runner

HOLD = """
import fcntl, sys
with open(sys.argv[1], "rb") as file:
    fcntl.lockf(file, fcntl.LOCK_SH)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX locks")
@pytest.mark.parametrize("told", [" -1", " 1", " abc", " 4194303", ""])
def test_the_system_says_who_holds_a_lock(tmp_path, told):
    path = tmp_path / ".lock"
    path.write_text(told)
    assert runner(tmp_path) is None
    command, pipe = [sys.executable, "-c", HOLD, str(path)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        found = runner(tmp_path)
        holder.communicate()
    assert found == holder.pid
