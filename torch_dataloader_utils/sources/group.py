"""What a combination was made of, so that another one can take its datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import MixOptions
from torch_dataloader_utils.options.weights import WeightTree
from torch_dataloader_utils.printing import listed, shown
from torch_dataloader_utils.sources.skipped import SkippedFile

Names: TypeAlias = Sequence[str | int]  # of the datasets: as given, or their numbers


def labels(names: Names) -> list[str]:
    """The datasets' names in messages."""
    return [f"dataset {name!r}" for name in names]


def for_each(option: str, value: Any, names: Names, missing: float | None = None) -> tuple[float, ...] | None:
    """The value of an option for each dataset; None if the option was not given.

    Args:
        option: its keyword.
        value: a number for each, in a list or by name.
        names: of the datasets.
        missing: the number of a dataset that a dict does not name; None if it must name all.

    Raises:
        OptionError: the value is not one for these datasets.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        if len(value) != len(names):
            raise OptionError(
                f"{option}={shown(value)} for {len(names)} dataset(s): expected a positive number for each."
            )
        if any(isinstance(name, str) for name in names):
            raise OptionError(
                f"{option}={shown(value)} in a list, but datasets is a dict, whose order has no meaning: pass a number "
                f"for each name, {option}={{{names[0]!r}: ...}}."
            )
        return tuple(value)
    if any(isinstance(name, int) for name in names):
        raise OptionError(f"{option}={shown(value)} by name, but datasets is a list: pass a dict of datasets.")
    unknown = [name for name in value if name not in names]
    without = [name for name in names if missing is None and name not in value]
    faults = [f"{_names(unknown)} {'is not a dataset' if len(unknown) == 1 else 'are not datasets'}"] if unknown else []
    faults += [f"{_names(without)} {'has' if len(without) == 1 else 'have'} none"] if without else []
    if faults:
        whose = "each" if missing is None else "some"
        raise OptionError(
            f"{option}={shown(value)}: expected a number for {whose} of {_names(names)}, but {' and '.join(faults)}."
        )
    return tuple(value.get(name, missing) for name in names)


def _names(names: Collection[Any]) -> str:
    return listed(names, show=repr)


@dataclass(frozen=True)
class MemberFacts:
    """What a combined source does not say of one of its datasets by itself.

    Attributes:
        exact: whether its planned row counts are those delivered.
        subset: which of its rows are chosen; "" for all.
        skipped: its damaged files that are left out.
        counts_rows, limited: see `Source`.
    """

    exact: bool = True
    subset: str = ""
    skipped: tuple[SkippedFile, ...] = ()
    counts_rows: bool = False
    limited: bool = False


@dataclass(frozen=True)
class Group:
    """A combination.

    Attributes:
        names: of its members.
        members: a dataset, or a combination.
        mix: how they are mixed.
    """

    names: Names
    members: tuple[MemberFacts | Group, ...]
    mix: MixOptions

    @property
    def is_flat(self) -> bool:
        """Whether all members are datasets."""
        return not any(isinstance(member, Group) for member in self.members)

    @property
    def paths(self) -> Names:
        """The names of the datasets; with combinations among the members, those of all on the way: "text/web"."""
        return self.names if self.is_flat else tuple("/".join(map(str, path)) for path, _ in self.leaves())

    @property
    def facts(self) -> tuple[MemberFacts, ...]:
        """The facts of each dataset."""
        return tuple(facts for _, facts in self.leaves())

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of datasets of each member."""
        return tuple(len(member.facts) if isinstance(member, Group) else 1 for member in self.members)

    def leaves(self) -> Iterator[tuple[tuple[str | int, ...], MemberFacts]]:
        """The names on the way to each dataset, with its own, and its facts."""
        for name, member in zip(self.names, self.members, strict=True):
            if isinstance(member, MemberFacts):
                yield (name,), member
            else:
                yield from (((name, *path), facts) for path, facts in member.leaves())


def weight_trees(group: Group) -> list[WeightTree]:
    """How the group's weight is shared among its datasets; several of them if it changes.

    Raises:
        OptionError: the weights are not for its members.
    """
    members = tuple(weight_trees(member)[0] if isinstance(member, Group) else None for member in group.members)
    each = [group.mix.weights] if group.mix.phases is None else [weights for _, weights in group.mix.phases]
    return [WeightTree(members, for_each("weights", given, group.names), group.mix.temperature) for given in each]


def repeats(group: Group, value: Any) -> tuple[float, ...] | None:
    """The value of `repeat` for each dataset; a combination's is that of all its datasets.

    Args:
        group: the combination.
        value: a number for each member, in a list or by name; a name may be the path of a dataset, too.

    Raises:
        OptionError: the value is not one for these datasets.
    """
    if group.is_flat or not isinstance(value, Mapping):
        each = for_each("repeat", value, group.names, missing=1.0)
        if each is None:
            return None
        return tuple(number for number, size in zip(each, group.sizes, strict=True) for _ in range(size))
    paths = [list(map(str, path)) for path, _ in group.leaves()]  # a name may itself have a slash
    above = [["/".join(path[:end]) for end in range(len(path), 0, -1)] for path in paths]
    known = dict.fromkeys(name for names in above for name in reversed(names))
    wrong = [name for name in value if name not in known]
    if wrong:
        raise OptionError(
            f"repeat={shown(value)}: expected names among {', '.join(map(repr, known))}; "
            f"{', '.join(map(repr, wrong))} {'is' if len(wrong) == 1 else 'are'} none of them."
        )
    return tuple(next((value[name] for name in names if name in value), 1.0) for names in above)
