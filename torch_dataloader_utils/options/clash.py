"""What it is that options exclude each other: both sides, the reason, and what can be done instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torch_dataloader_utils.errors import DataLoaderUtilsError, OptionError, Remedy
from torch_dataloader_utils.printing import shown

if TYPE_CHECKING:
    from torch_dataloader_utils.options.keywords import Options

Ways: TypeAlias = Callable[["Options"], Sequence[Remedy]]


@dataclass(frozen=True)
class Half:
    """One side of a clash.

    Attributes:
        keyword: its option; "" for a fact that is no option.
        label: which of its values, or the fact, as the documentation says it.
        holds: whether options have it; a fact shows later, where it is known.
        text: how a message names it; None for the option with its value.
    """

    keyword: str
    label: str
    holds: Callable[[Options], bool] = lambda options: False
    text: str | Callable[[Options], str] | None = None

    def named(self, options: Options) -> str:
        """How a message about these options names it."""
        if self.text is None:
            return f"{self.keyword}={shown(options.given(self.keyword))}"
        return self.text if isinstance(self.text, str) else self.text(options)


@dataclass(frozen=True, kw_only=True)
class Clash:
    """Options that exclude another one.

    Attributes:
        halves: each of which excludes it.
        beside: the other one.
        why: the reason, as a clause.
        ways: what can be done instead, each of which works.
        told: the sentence.
        also: what else there is to say of these options.
        error: what is raised.
    """

    halves: tuple[Half, ...]
    beside: Half
    why: str
    ways: Sequence[Remedy] | Ways
    told: str = "{half} with {beside}: {why}."
    also: Callable[[Options], str] = lambda options: ""
    error: type[DataLoaderUtilsError] = OptionError

    def check(self, options: Options) -> None:
        """Check that the options do not have both sides.

        Raises:
            DataLoaderUtilsError: they do.
        """
        for half in self.halves if self.beside.holds(options) else ():
            if half.holds(options):
                ways = self.ways(options) if callable(self.ways) else self.ways
                raise self.between(half.named(options), self.beside.named(options), self.also(options), ways)

    def between(
        self, half: str, beside: str = "", also: str = "", ways: Sequence[Remedy] | None = None
    ) -> DataLoaderUtilsError:
        """The error of two sides that are named so."""
        text = self.told.format(half=half, beside=beside, why=f"{self.why}{also}")
        fixed = () if callable(self.ways) else self.ways
        return self.error(text, remedies=fixed if ways is None else ways)
