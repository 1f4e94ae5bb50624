"""Changes bytes and JSON values at random, as damage and malice would."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

_EXTREMES = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
]
_EXTREMES += [2**64 - 1, 2**64 - 2, 2**24, 10**9]
_LONGEST_RUN = 40

Change = Callable[[Random, bytes, Sequence[bytes]], bytes]


def mutated(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """The content with one to a few changes; parts of `others` may be spliced in."""
    for _ in range(draw.choice([1, 1, 1, 1, 2, 4])):
        content = draw.choice(_CHANGES)(draw, content, others)
    return content


def _at(draw: Random, content: bytes) -> int:
    """A place; often near an end, where headers and footers are."""
    size, near = len(content), min(len(content), 400)
    return draw.choice([draw.randrange(size + 1), draw.randrange(near + 1), size - draw.randrange(near + 1)])


def _put(content: bytes, at: int, new: bytes, over: int | None = None) -> bytes:
    """The content with `new` in place of the `over` bytes at `at`; by default as many as `new` has."""
    return content[:at] + new + content[at + (len(new) if over is None else over) :]


def _flip(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = _at(draw, content)
    return _put(content, at, bytes(byte ^ 1 << draw.randrange(8) for byte in content[at : at + 1]))


def _run(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    run = draw.randrange(1, _LONGEST_RUN)
    return _put(content, _at(draw, content), draw.choice([draw.randbytes(run), b"\0" * run, b"\xff" * run]))


def _cut(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return _put(content, _at(draw, content), b"", draw.randrange(1, _LONGEST_RUN))


def _insert(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    start = _at(draw, content)
    new = draw.choice([draw.randbytes(draw.randrange(1, 9)), content[start : start + draw.randrange(1, _LONGEST_RUN)]])
    return _put(content, _at(draw, content), new, 0)


def _truncate(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return content[: _at(draw, content)]


def _splice(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    other = draw.choice(others)
    kept, start = _at(draw, content), _at(draw, other)
    return content[:kept] + other[start : draw.choice([start + draw.randrange(200), len(other)])]


def _number(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    width = draw.choice([1, 2, 4, 8])
    value = draw.choice([*_EXTREMES, len(content), draw.randrange(100)]) % (1 << 8 * width)
    return _put(content, _at(draw, content), value.to_bytes(width, draw.choice(["little", "big"])))


def _varint(draw: Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = _at(draw, content)
    stop = at
    while stop < len(content) and content[stop] & 0x80:
        stop += 1
    return _put(content, at, varint(draw.choice([*_EXTREMES, draw.randrange(300)])), stop + 1 - at)


_CHANGES: list[Change] = [
    _flip,
    _flip,
    _flip,
    _flip,
    _flip,
    _flip,
    _run,
    _cut,
    _insert,
    _truncate,
    _splice,
    _number,
    _number,
    _varint,
]


def varint(value: int) -> bytes:
    """The number in groups of seven bits, as thrift, protobuf and Avro write it."""
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


# ------------------------------------------------------------------------------------------------------ JSON values

_STRANGE: list[Any] = [
    None, True, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, -0.0, float("nan"), float("inf"),
    "", "a", "\0", "\ud800", "x" * 5000, "../..", "9" * 500, "2024-01-01", [], {}, [[]], [None],
    {"a": {"b": []}}, [1] * 300,
]  # fmt: skip


def nested(depth: int) -> Any:
    """A list in a list, so deep."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def mutated_value(draw: Random, value: Any) -> Any:
    """A copy of a JSON value with one to three of its parts deleted, renamed, duplicated, moved or replaced."""
    value = deepcopy(value)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        places = list(_places(value))
        if not places:
            return deepcopy(draw.choice(_STRANGE))
        holder, key = draw.choice(places)
        draw.choice([_replace, _replace, _replace, _delete, _exchange, _rename, _nudge])(draw, holder, key, places)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) in the value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _replace(draw: Random, holder: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    holder[key] = nested(300) if draw.randrange(40) == 0 else deepcopy(draw.choice(_STRANGE))


def _delete(draw: Random, holder: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    del holder[key]


def _exchange(draw: Random, holder: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    other, name = draw.choice(places)
    holder[key] = deepcopy(other[name])


def _rename(draw: Random, holder: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    if isinstance(holder, dict):
        holder[draw.choice(["", "x", f"{key}s"])] = holder.pop(key)
    else:
        holder.append(holder[key])


def _nudge(draw: Random, holder: Any, key: Any, places: list[tuple[Any, Any]]) -> None:
    value = holder[key]
    if isinstance(value, bool | None):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = draw.choice([value + 1, value - 1, -value, value * 2, *_EXTREMES])
    elif isinstance(value, bytes):
        holder[key] = mutated(draw, value, [value])
    elif isinstance(value, str) and value:
        at = draw.randrange(len(value))
        holder[key] = value[:at] + draw.choice(["", "0", "-", "%", "/", "\0"]) + value[at + 1 :]
