"""A Python as on a system without POSIX, as far as Linux can play one: this folder on PYTHONPATH.

Code of vergence, and no other, finds the modules and names gone that Windows lacks, and is told
that it is there. Nothing can be forked. Texts that are read or written without an encoding are
errors, since that of Windows is another one.
"""

import builtins
import os
import socket
import sys
import warnings
from pathlib import Path
from types import ModuleType

NAMES = Path(__file__).parents[3] / "tools" / "system_names.txt"
KEPT = {"ctypes", "filelock", "psutil", "signal", "msvcrt", "os.kill", "os.getppid"}
"""Windows has these, or a library for it."""
GONE = {line for line in NAMES.read_text("utf-8").split("\n") if line and line[0] != "#"} - KEPT
GONE |= {"os.O_NOFOLLOW", "os.setpgid", "mmap.MAP_SHARED", "multiprocessing.context.ForkContext"}
GONE |= {f"signal.{name}" for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2")}
OTHER = {"sys.platform": "win32", "os.name": "nt"}


class Seen(ModuleType):
    """A module as vergence sees it."""

    def __init__(self, real):
        super().__init__(real.__name__)
        object.__setattr__(self, "real", real)

    def __getattr__(self, name):
        whole = f"{self.__name__}.{name}"
        if whole in GONE:
            raise AttributeError(f"this system has no {whole}")
        return OTHER.get(whole) or getattr(self.real, name)

    def __setattr__(self, name, value):
        setattr(self.real, name, value)


seen = {each.__name__: Seen(each) for each in (sys, os, socket)}
imported = builtins.__import__


def importing(name, globals=None, locals=None, fromlist=(), level=0):
    asker = (globals or {}).get("__name__", "")
    package = (globals or {}).get("__package__") or asker
    if package.partition(".")[0] != "vergence":
        return imported(name, globals, locals, fromlist, level)
    if name in GONE or GONE & {f"{name}.{each}" for each in fromlist or ()}:
        raise ImportError(f"this system has no {name}")
    if name not in seen and name in ("signal", "mmap", "stat", "multiprocessing"):
        seen[name] = Seen(imported(name))
    return seen.get(name) or imported(name, globals, locals, fromlist, level)


builtins.__import__ = importing
del os.fork, os.forkpty
warnings.filterwarnings("ignore", category=EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module=r"vergence\b")
