"""Imports of optional libraries: each comes with an extra, and is loaded where it is used.

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
        doing: the feature that needs it, as the beginning of a sentence.
        extra: the optional dependency group (extra) of vergence that installs the module.

    Raises:
        ConfigError: the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(f"{doing} needs {package}: pip install 'vergence[{extra}]'") from None
