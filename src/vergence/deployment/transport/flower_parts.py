"""Internal parts of Flower that a deployment replaces, and a check that they exist.

A deployment runs Flower's own programs with a few parts replaced: admission control and connection
limits of the SuperLink, and the check of the code that a node accepts. These names are not part of
Flower's public interface, and are known only for one minor version.

Used by `deployment.launcher` and `deployment.transport.flower_processes`.
"""

# Flower is an extra.
# pyright: reportMissingImports=false
from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from vergence.errors import ConfigError

# Minor version of Flower whose parts these are: the next one may rename them without notice.
FLOWER = "1.41"
PARTS: Mapping[str, tuple[str, ...]] = {
    "flwr.superlink.extensions": ("get_middleware",),
    "flwr.superlink.main": ("_get_middleware",),
    "flwr.superlink.routers.fleet.node_auth": ("SYSTEM_TIME_TOLERANCE",),
    "flwr.superlink.cli.flower_superlink": ("uvicorn", "flower_superlink"),
    "flwr.supernode.start_client_internal": ("http_request_response", "time"),
    "flwr.supernode.fleet_http_connection": (
        "NodeAuthHttpInterceptor",
        "HEARTBEAT_DEFAULT_INTERVAL",
    ),
    "flwr.supercore.heartbeat": ("HEARTBEAT_DEFAULT_INTERVAL",),
    "flwr.supercore.constant": ("PULL_INITIAL_BACKOFF", "PULL_BACKOFF_CAP", "TaskType"),
    "flwr.supercore.runtime": ("RuntimeHttpClient",),
    "flwr.supercore.control": ("ControlHttpClient",),
    "flwr.superlink.runtime": ("run_serverapp",),
    "flwr.supernode.runtime.run_clientapp": ("run_clientapp",),
    "flwr.cli.build": ("build_fab_from_files",),
}
"""Names in Flower that are replaced or used, by module."""


def check_flower() -> None:
    """Check that Flower is installed in the version whose internal parts are known.

    Raises:
        ConfigError: the check fails; the message names both versions and the first part that is
            missing.
    """
    if find_spec("flwr") is None:
        raise ConfigError("deployments need Flower: pip install 'vergence[deploy]'")
    if (installed := version("flwr")).split(".")[:2] != FLOWER.split("."):
        lacks = first_missing()
        part = f", which has no {lacks}" if lacks else ""
        raise ConfigError(
            f"deployments replace parts of Flower {FLOWER}, and Flower {installed} is installed"
            f"{part}: pip install 'flwr=={FLOWER}.*'"
        )


def first_missing() -> str | None:
    """Return the first name of `PARTS` that the installed Flower lacks; None if it has all."""
    for module, names in PARTS.items():
        try:
            imported = importlib.import_module(module)
        except ImportError:
            return module
        for name in names:
            if not hasattr(imported, name):
                return f"{module}.{name}"
    return None


def replace_part(module: str, name: str, new: Any) -> Any:
    """Replace an object in a module of Flower by `new`; return the old object.

    Raises:
        ConfigError: the module of Flower has no such name.
    """
    imported = importlib.import_module(module)
    # Without this check a renamed part would stay unreplaced, and with it a gate stay open.
    if name not in PARTS.get(module, ()) or not hasattr(imported, name):
        raise ConfigError(f"Flower {version('flwr')} has no {module}.{name} to be replaced")
    old = getattr(imported, name)
    setattr(imported, name, new)
    return old
