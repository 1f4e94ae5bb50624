"""What became of failing calls whose remedies were followed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.remedies.calls import CALLS, Failing, read
from tests.remedies.messages import PACKAGE, messages
from torch_dataloader_utils.errors import DataLoaderUtilsError, Remedy


@dataclass(frozen=True)
class Outcome:
    """What a call raised, and what it raised after each remedy.

    Attributes:
        error: of the call as it is.
        after: each remedy, the keywords that it gave, and the error of the call with them.
    """

    error: DataLoaderUtilsError | None
    after: list[tuple[Remedy, dict[str, Any], DataLoaderUtilsError | None]] = field(default_factory=list)


def outcomes(data: Path) -> dict[str, Outcome]:
    """The outcome of each failing call, by its name."""
    return {name: _followed(failing, data) for name, failing in CALLS.items()}


@contextmanager
def created() -> Iterator[set[tuple[str, int]]]:
    """The modules and lines in which errors with remedies are created meanwhile."""
    places: set[tuple[str, int]] = set()
    init = DataLoaderUtilsError.__init__

    def noted(self: DataLoaderUtilsError, *args: object, **keywords: Any) -> None:
        if keywords.get("remedies"):
            frame = sys._getframe(1)
            places.add((frame.f_code.co_filename, frame.f_lineno))
        init(self, *args, **keywords)

    with patch.object(DataLoaderUtilsError, "__init__", noted):
        yield places


def unmet(places: set[tuple[str, int]]) -> list[str]:
    """The places of errors with remedies that were not created in these lines."""
    lines: dict[str, set[int]] = {}
    for file, line in places:
        lines.setdefault(Path(file).relative_to(PACKAGE).with_suffix("").as_posix(), set()).add(line)
    return [
        message.place
        for message in messages()
        if message.has_remedies and not lines.get(message.place.partition(":")[0], set()) & set(message.lines)
    ]


def figures(found: Mapping[str, Outcome], places: set[tuple[str, int]]) -> str:
    """How many messages there are, how many remedies were followed, and how many calls then got further."""
    every = list(messages())
    after = [error for outcome in found.values() for _, _, error in outcome.after]
    with_data = sum(message.has_remedies for message in every)
    met = with_data - len(unmet(places))
    return (
        f"{len(every)} errors are created in the package; {sum(m.advises or m.has_remedies for m in every)} say what "
        f"is to be done, {with_data} of them as data. {len(found)} failing calls met {met} of "
        f"these {with_data}; {len(after)} remedies were followed, and {after.count(None)} calls then got further."
    )


def _followed(failing: Failing, data: Path) -> Outcome:
    error = _failure(failing, data, failing.keywords)
    changed = [(remedy, remedy.applied(failing.keywords)) for remedy in (error.remedies if error else ())]
    return Outcome(error, [(remedy, words, _failure(failing, data, words)) for remedy, words in changed])


def _failure(failing: Failing, data: Path, keywords: Mapping[str, Any]) -> DataLoaderUtilsError | None:
    """What the call raises with these keywords."""
    try:
        (failing.call or read)(str(data / failing.path), **keywords)
    except DataLoaderUtilsError as error:
        return error
    return None
