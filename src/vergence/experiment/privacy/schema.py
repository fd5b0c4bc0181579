"""The tables `privacy` and `poison` of experiment files.

Used by `api.from_objects` and `experiment.schema`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vergence.core.federation import Federation
from vergence.data.noise import Noise
from vergence.errors import ConfigError, nearest
from vergence.experiment.code_names import parse
from vergence.experiment.registry import find
from vergence.experiment.table_binding import as_table, record_from_table
from vergence.privacy.config import DpSgd, Privacy, SecureAggregationConfig, UserLevelConfig
from vergence.privacy.dp.mask_budget import MaskBudget
from vergence.privacy.hooks import Protection
from vergence.privacy.poisoning.data import DataPoison, GazeOffset
from vergence.privacy.poisoning.updates import Poison
from vergence.privacy.robust.base import RobustRule
from vergence.privacy.split.defense import BottleneckCut, NoPeekCut, PixelCut, SplitDefense
from vergence.privacy.split.output_range import OutputRange
from vergence.privacy.split.split_guard import SplitGuardConfig
from vergence.results.run_files import POISONED

ON_DATA = {"gaze_offset": GazeOffset, "noisy_data": Noise}
RECORDS: dict[str, type] = {
    "user": UserLevelConfig,
    "solver": DpSgd,
    "mask": MaskBudget,
    "output_range": OutputRange,
    "split_guard": SplitGuardConfig,
}
CUTS: dict[str, type[SplitDefense]] = {
    "bottleneck": BottleneckCut,
    "nopeek": NoPeekCut,
    "pixel_dp": PixelCut,
}
PRIVATE = ("dp", "epsilon", "differential", "dp_sgd", "dpsgd", "noise", "delta")
"""Unknown keys that users may try for differential privacy; the error message gives a hint."""
ATTACKS = ("sign_flip", "scaling", "alie", "min_max", "min_sum", *ON_DATA)


def build_privacy(table: Any) -> Privacy:
    """Build the protections of a run from the table `privacy`; an empty table gives none.

    Raises:
        ConfigError: a key is unknown, or a value is wrong.
    """
    rest = as_table(table, "privacy")
    known = ("robust", "aggregation", "cut", "own", *RECORDS)
    if unknown := next((key for key in rest if key not in known), None):
        meant = nearest(unknown, known)
        if unknown.lower() in PRIVATE:
            meant = (
                "; differential privacy is privacy.user = { epsilon = 8 } for whole people, or "
                "privacy.solver = { epsilon = 8 } for single samples (DP-SGD)"
            )
        raise ConfigError(f"privacy: unknown key '{unknown}'{meant}")
    parts = {
        key: record_from_table(record, rest[key], f"privacy.{key}")
        for key, record in RECORDS.items()
        if key in rest
    }
    if "cut" in rest:
        # The defence at the cut, given by a table with its name.
        options = as_table(rest["cut"], "privacy.cut")
        name = options.get("name")
        if name not in CUTS:
            raise ConfigError(f"privacy.cut: no defence named {name!r}{nearest(str(name), CUTS)}")
        parts["cut"] = record_from_table(CUTS[name], options, f"privacy.cut ({name})")
    if "own" in rest:
        if not isinstance(rest["own"], list):
            raise ConfigError(f"privacy.own must be a list of tables, got {rest['own']!r}")
        parts["own"] = tuple(build_own_protection(entry) for entry in rest["own"])
    rule = build_rule(rest["robust"]) if "robust" in rest else None
    return Privacy(rule, build_aggregation(rest.get("aggregation")), **parts)


def build_aggregation(value: Any) -> SecureAggregationConfig | None:
    """Build the options of secure aggregation from the value of `privacy.aggregation`.

    `"secure"` gives the defaults. None and `"plain"` give None: no secure aggregation.
    """
    if isinstance(value, str):
        if value not in ("secure", "plain"):
            raise ConfigError(
                'privacy: aggregation must be "secure", "plain", or a table such as '
                f'{{ name = "additive" }}; got {value!r}'
            )
        return SecureAggregationConfig() if value == "secure" else None
    return (
        None
        if value is None
        else record_from_table(SecureAggregationConfig, value, "privacy.aggregation")
    )


def build_rule(value: Any) -> RobustRule:
    """Build a robust aggregation rule from its name, or from a table with `name` and options."""
    if isinstance(value, RobustRule):
        raise ConfigError(
            "privacy.robust in a table is a rule's name, or a table with a name and its options; "
            f"for an object write privacy=vergence.privacy.Privacy(robust=...); got {value!r}"
        )
    options = {"name": value} if isinstance(value, str) else as_table(value, "privacy.robust")
    if "name" not in options:
        raise ConfigError("privacy.robust is a rule's name, or a table with a name")
    name = options.pop("name")
    return record_from_table(
        find("privacy.robust", name, RobustRule), options, f"privacy.robust ({name})"
    )


def build_own_protection(table: Any) -> Protection:
    """Build a user's own protection from a table with its options; `name` names its code.

    Raises:
        ConfigError: there is no such code, or an option does not fit.
        UntrustedCode: this command may not run the code.
    """
    options = as_table(table, "privacy.own")
    name = options.pop("name", None)
    if not isinstance(name, str) or parse(name) is None:
        raise ConfigError(
            "privacy.own: name a Python file or a class of yours, such as "
            f'{{ name = "rounding.py" }} or {{ name = "package.module:Class" }}; got {name!r}'
        )
    return record_from_table(
        find("privacy.own", name, Protection), options, f"privacy.own ({name})"
    )


def build_poison(table: Any) -> Poison | DataPoison:
    """Build the attack of malicious clients from the table `poison`.

    It is an attack on updates (`Poison`) or on training data (`DataPoison`).
    """
    options = as_table(table, "poison")
    attack = options.get("attack", Poison.attack)
    if attack not in ATTACKS:
        raise ConfigError(f"poison: no attack named {attack!r}{nearest(str(attack), ATTACKS)}")
    if attack not in ON_DATA:
        return record_from_table(Poison, options, "poison")
    where = f"poison ({attack})"
    common = {key: options.pop(key) for key in ("attack", "share", "seed") if key in options}
    # `DataPoison` chooses the clients by `share`, and the noise applies to all of these.
    fixed = {"share": 1.0, "seed": common.get("seed", 0)} if attack == "noisy_data" else {}
    change = record_from_table(ON_DATA[attack], options, where, **fixed)
    return record_from_table(DataPoison, common, where, change=change)


def apply_poison(federation: Federation, poison: Poison | DataPoison) -> Federation:
    """Return the federation, whose field `about` then names the malicious clients.

    For an attack on data, these clients' training data are changed. If nobody is malicious, the
    federation is unchanged.
    """
    federation.refuse_many("choosing who lies")
    if not (attackers := poison.malicious_clients(federation.clients)):
        return federation
    changed = poison.apply(federation) if isinstance(poison, DataPoison) else federation
    attack = f"{poison.attack} by {len(attackers)} of {len(federation.clients)} people, on purpose"
    return replace(changed, about={**changed.about, POISONED: f"{attack}: {', '.join(attackers)}"})
