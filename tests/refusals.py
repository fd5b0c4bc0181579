"""What a refusal is matched by: its class, its code, and nouns of its line, not its wording."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vergence.errors import CODES, DataError, VergenceError


@contextmanager
def refuses(code: str, *nouns: str, kind: type[VergenceError] = DataError) -> Iterator[None]:
    """Expect one line of this class and code which names each noun: a file, row, value, option."""
    assert code in CODES
    with pytest.raises(kind) as caught:
        yield
    line = str(caught.value)
    assert caught.value.code == code, (caught.value.code, line)
    assert "\n" not in line
    for noun in nouns:
        assert noun in line, (noun, line)
