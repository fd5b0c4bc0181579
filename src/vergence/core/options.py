"""Range checks of option records, by the annotations of their fields.

Used in most packages.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import operator
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from typing import Annotated, ClassVar, NamedTuple, ParamSpec, Self, TypeVar

from annotated_types import Ge, Gt, Interval, Le, Lt

from vergence.core.naming import registry_name, shown_integer
from vergence.errors import ConfigError, meant, nearest, printable

T = TypeVar("T")
"""Any type: what a function returns has the type of one of its arguments."""
P = ParamSpec("P")
"""The arguments of a function that another one wraps."""

Share = Annotated[float, Interval(ge=0, le=1)]
"""A number between 0 and 1."""
Positive = Annotated[int, Ge(1)]
Classes = Annotated[int, Ge(2)]


SIGNS = {Gt: ">", Ge: ">=", Lt: "<", Le: "<="}
HOLDS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


FUNCTIONS = {
    "optimizer": ", or in Python a class of torch.optim, as torch.optim.RMSprop",
    "schedule": ", or in Python a function of the share of rounds that are finished, as lambda "
    "done: 0.9 ** (20 * done)",
    "sampler": " (weights are given to Federation.from_arrays(..., weights=...))",
}
"""What else options take that are functions, too, and where objects of PyTorch belong."""

Bounds = tuple[tuple[str, float], ...]
"""Bounds of a number, each a sign and a limit, such as `(">=", 1)`."""


class Rule(NamedTuple):
    """Values that the annotation of a field allows.

    Attributes:
        bounds: bounds of a single number.
        literals: values that a `Literal` allows.
        places: bounds of each number of a tuple; None: a tuple is not allowed.
        repeated: whether the tuple may have any length; `places` then holds one entry, the bounds
            of every number.
        functions: whether a function is allowed, too.
    """

    bounds: Bounds
    literals: tuple[object, ...]
    places: tuple[Bounds, ...] | None
    repeated: bool
    functions: bool


@functools.cache
def _rules(record: type) -> dict[str, Rule]:
    hints = typing.get_type_hints(record, include_extras=True)
    return {field.name: _rule(hints[field.name]) for field in fields(record)}


def _rule(hint: object) -> Rule:
    bounds, literals, places, repeated, functions = Bounds(), (), None, False, False
    for kind, limits in _members(hint):
        parts = typing.get_args(kind)
        if typing.get_origin(kind) is tuple:
            repeated = ... in parts
            places = tuple(_rule(part).bounds for part in parts if part is not ...)
        elif typing.get_origin(kind) is typing.Literal:
            literals = parts
        elif typing.get_origin(kind) is Callable:
            functions = True
        else:
            bounds = tuple(dict.fromkeys(bounds + limits))
    return Rule(bounds, literals, places, repeated, functions)


def _members(hint: object, limits: Bounds = ()) -> Iterator[tuple[object, Bounds]]:
    """Yield the simple types in a type hint, each with its bounds; a union yields its members."""
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated:
        marks = [m for mark in parts[1:] for m in (mark if isinstance(mark, Interval) else [mark])]
        limits += tuple(
            (SIGNS[type(mark)], getattr(mark, type(mark).__name__.lower()))
            for mark in marks
            if type(mark) in SIGNS
        )
        yield from _members(parts[0], limits)
    elif typing.get_origin(hint) in (typing.Union, types.UnionType):
        for part in parts:
            yield from _members(part, limits)
    else:
        yield hint, limits


def option_texts(record: type) -> dict[str, str]:
    """Return the description of every option of a record, as one line, by the option's name.

    Descriptions are read from `Args` or `Attributes` in the docstring of the class or a base
    class. The command line prints them where it describes a method.
    """
    texts: dict[str, str] = {}
    # Bases first, so that the text of a class replaces that of its base.
    for kind in reversed(record.__mro__):
        text = inspect.cleandoc(vars(kind).get("__doc__") or "")
        for section in ("Args", "Attributes"):
            texts |= _listed(text.partition(f"\n{section}:\n")[2])
    return texts


def _listed(text: str) -> dict[str, str]:
    """Parse indented lines `name: text` into a mapping; a line without indent ends the list."""
    texts: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if line.strip() and not line.startswith(" "):
            break
        name, colon, text_of_line = line.strip().partition(": ")
        if line.startswith("    ") and not line.startswith("     ") and colon:
            last = name
            texts[last] = text_of_line
        elif last and line.strip():
            texts[last] += f" {line.strip()}"
    return texts


def check_ranges(record: object, name: str) -> None:
    """Check a dataclass instance against the bounds and literals in its fields' annotations.

    The numbers of a tuple are checked, too. `name` is the record's name in the error message.

    Raises:
        ConfigError: a value is not allowed; the message names the field, the value and what is
            allowed.
    """
    for field_name, rule in _rules(type(record)).items():
        value = getattr(record, field_name)
        several = isinstance(value, list | tuple)
        bounded = rule.bounds or any(rule.places or ())
        plain = value is not None and not (rule.functions and callable(value))
        checked = isinstance(value, str) or (plain and not bounded)
        if rule.literals and value not in rule.literals and checked:
            allowed = ", ".join(map(str, rule.literals))
            if rule.bounds:
                allowed += f", or a number {_limits(rule.bounds)}"
            raise ConfigError(
                f"{name}: {field_name} must be one of {allowed}{FUNCTIONS.get(field_name, '')}; "
                f"got {printable(repr(value)):.60}{meant(str(value), map(str, rule.literals))}"
            )
        if isinstance(value, str) and rule.bounds and not rule.literals:
            raise ConfigError(
                f"{name}: {field_name} must be a number {_limits(rule.bounds)}; got {value!r}"
            )
        places = rule.places or () if several else (rule.bounds,)
        if several and rule.repeated:
            places *= len(value)
        if any(places) and several and len(value) != len(places):
            raise ConfigError(f"{name}: {field_name} must be {len(places)} numbers; got {value}")
        for number, bounds in zip(value if several else (value,), places, strict=False):
            if isinstance(number, bool) or not isinstance(number, numbers.Real):
                continue
            # A larger one would not even be a float, and printing it could end in an error, too.
            if isinstance(number, int) and number.bit_length() > 63:
                raise ConfigError(
                    f"{name}: {field_name} must be at most 2^63 - 1 = {2**63 - 1}; got "
                    f"{shown_integer(number)}"
                )
            if not all(HOLDS[sign](float(number), float(bound)) for sign, bound in bounds):
                shown = value if several else f"{value:g}"
                raise ConfigError(f"{name}: {field_name} must be {_limits(bounds)}; got {shown}")


def _limits(bounds: Bounds) -> str:
    return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds)


class NamedOptions:
    """Base of option records: checks ranges, and suggests a similar name for an unknown option.

    Error messages name a record by the `label` of its class; default: the name of its module.

    Raises:
        TypeError: an option is unknown; the message names it.
        ConfigError: a number or a literal is not allowed by the field's annotation.
    """

    _label: str = ""
    renamed_hooks: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """Former names of methods that subclasses override, each with its present name."""

    def __init_subclass__(cls, label: str = "", **more: object) -> None:
        super().__init_subclass__(**more)
        cls._label = label or cls._label
        # An override under a former name would never be called, and the default used in silence.
        for former in cls.renamed_hooks.keys() & vars(cls):
            setattr(cls, now := cls.renamed_hooks[former], vars(cls)[former])
            warnings.warn(f"{cls.__name__}.{former} is called {now} now", FutureWarning, 2)

    def __new__(cls, *_: object, **options: object) -> Self:
        """Check the names of options before `__init__` runs.

        Python's own error for an unknown argument suggests no similar name.
        """
        _check_names(cls.__init__, cls.__name__, options)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_ranges(self, self._label or registry_name(self))


def named_arguments(**inside: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function: the error for an unknown argument suggests the most similar known name.

    Args:
        inside: names of the arguments that are option records, each with the record's class. If an
            option of a record is given as an argument, the error shows how to write it.
    """

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def checked(*args: P.args, **arguments: P.kwargs) -> T:
            _check_names(function, function.__name__, arguments, inside)
            return function(*args, **arguments)

        return checked

    return decorated


OTHER_WORDS: Mapping[str, str] = types.MappingProxyType(
    {
        "n_rounds": "rounds",
        "num_rounds": "rounds",
        "num_workers": "workers",
        "callback": "on_round",
        "fraction": "cohort",
    }
)
"""Words of other libraries for an argument, with its name here."""
EXPLAINED: Mapping[str, str] = types.MappingProxyType(
    {
        "batch_size": "local=vergence.LocalTraining(batch=...)",
        "learning_rate": "local=vergence.LocalTraining(lr=...)",
        "callbacks": "on_round=..., a function of a RoundReport",
        "fraction_fit": "participation=vergence.Participation(cohort=...)",
        "transform": "task.with_transform(...), on the task that task_from returns",
        "augment": "task.with_transform(...), on the task that task_from returns",
    }
)
"""Words of other libraries for what is written in another way here."""


def _check_names(
    function: Callable[..., object],
    name: str,
    names: Collection[str],
    inside: Mapping[str, type] = types.MappingProxyType({}),
) -> None:
    if not names or (known := _names(function)) is None:
        return
    for key in names:
        if key not in known:
            homes = [
                f": write {argument}=vergence.{record.__name__}({key}=...)"
                for argument, record in inside.items()
                if key in (_names(record.__init__) or ())
            ]
            near = homes[0] if homes else nearest(OTHER_WORDS.get(key, key), known)
            near = f": write {EXPLAINED[key]}" if not homes and key in EXPLAINED else near
            raise TypeError(f"{name}() got an unexpected keyword argument '{key}'{near}")


def check_call(function: Callable[..., object], arguments: int, what: str) -> tuple[str, ...]:
    """Check that a user's function takes this number of arguments, and return their names.

    `what` says in the error how it is called. There are no names if the function states none.

    Raises:
        ConfigError: it is no function, needs more arguments, or takes fewer.
    """
    try:
        signature = inspect.signature(function)
        signature.bind(*[None] * arguments)
    except TypeError as error:
        raise ConfigError(
            f"{what}; got {getattr(function, '__name__', repr(function))} ({error})"
        ) from None
    # A function of C need not say what it takes.
    except ValueError:
        return ()
    return tuple(signature.parameters)


# Cached as records are made anew in every turn.
@functools.cache
def _names(function: Callable[..., object]) -> tuple[str, ...] | None:
    """Return the names of a function's arguments; None if it accepts any name (`**`)."""
    takes = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in takes.values()):
        return None
    return tuple(each for each in takes if each != "self")
