"""Codes of errors: each that is raised has a line on the page of exit codes, and each is raised."""

import ast
import pickle

from tools import house
from vergence import errors
from vergence.errors import CODES, ConfigError, DataError, VergenceError

CLASSES = {
    kind.code
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, VergenceError)
}


def raised() -> set[str]:
    """Codes that calls in the package give as words."""
    found = set()
    for tree in house.modules().values():
        for call in (node for node in house.nodes(tree) if isinstance(node, ast.Call)):
            named = isinstance(call.func, ast.Name) and call.func.id.endswith("Error")
            words = [k.value for k in call.keywords if k.arg == "code"] if named else []
            found |= {word.value for word in words if isinstance(word, ast.Constant)}
    return found


def test_codes_that_are_raised_are_those_that_are_described():
    assert raised() | CLASSES == set(CODES)


def test_a_code_says_more_than_the_class_and_outlives_another_process():
    assert (DataError("x").code, ConfigError("x").code) == ("data", "setting")
    found = pickle.loads(pickle.dumps(DataError("x", code="file-missing")))
    assert (found.code, str(found), found.exit_code) == ("file-missing", "x", 3)


def test_another_message_keeps_class_and_code_of_an_error_whose_class_takes_the_message_alone():
    class Mine(DataError):
        def __init__(self, text):
            super().__init__(f"mine: {text}")

    error = Mine("x")
    error.code = "bad-value"
    other = error.reworded("anna: x")
    assert (type(other), other.code, str(other)) == (Mine, "bad-value", "mine: anna: x")
