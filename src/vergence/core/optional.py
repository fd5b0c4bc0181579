"""Imports of optional libraries: each belongs to an extra of vergence, and is loaded when used.

Used by `data.io.hdf5_files`, `data.zero_shot.semantics`, `model_tools.onnx_export` and
`privacy.dp.accounting`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from vergence.errors import ConfigError


def import_optional(module: str, doing: str, extra: str) -> ModuleType:
    """Return a module of an optional library.

    Args:
        module: the module to import.
        doing: the feature that needs the module; the error message begins with it.
        extra: the optional dependency group (extra) of vergence that installs the module.

    Raises:
        ConfigError: the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(f"{doing} needs {package}: pip install 'vergence[{extra}]'") from None
