"""How the splits of several datasets are merged: what weights need, and in words."""

from __future__ import annotations

from collections.abc import Sequence

from torch_dataloader_utils.errors import CountsRequiredError
from torch_dataloader_utils.planning.parts import part_rows
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.reading.combined import CombinedScan
from torch_dataloader_utils.sources.source import Source


def check_weighable(labelled: Sequence[tuple[str, bool]]) -> None:
    """Check that the rows of each dataset are known, where weights follow from them.

    Args:
        labelled: each dataset's label, and whether the rows of its splits are known.

    Raises:
        CountsRequiredError: those of one are known only after reading.
    """
    for label, counted in labelled:
        if not counted:
            raise CountsRequiredError(
                f"a combination without weights shares its weight by number of rows, but that of {label} is known only "
                "after reading: pass weights= to each combination, or count_rows=True for the dataset."
            )


def subset_in_words(source: Source) -> str:
    """Which rows `subset`, `fraction` and `limit` choose, of each dataset by its name; "" for all."""
    if source.group is None or not source.subset:
        return source.subset
    texts = [facts.subset or "all rows" for facts in source.group.facts]
    return "; ".join(f"{name}: {text}" for name, text in zip(names_of(source), texts, strict=True))


def names_of(source: Source) -> list[str]:
    """The datasets' names, or else their numbers, as text."""
    names = list(map(repr, source.scan.names)) if isinstance(source.scan, CombinedScan) else []
    return names or [str(number) for number in range(len(source.parts))]


def splits_in_words(source: Source, windows: int | None) -> str:
    """How the splits of several datasets are merged; "" for a single dataset.

    Args:
        source: of the combination.
        windows: into how many a rank's rows are cut where they are shuffled within windows; None: they are not.
    """
    group, splits = source.group, source.splits
    if group is None or len(source.parts) == 1:
        return ""
    rows = part_rows(splits, len(source.parts))
    unknown = {splits.files[file].info.part for file in splits.file[~splits.counted].tolist()}
    weights = [part.weight for part in source.parts if part.weight is not None]
    total = sum(weights or ([] if unknown else rows))
    texts = []
    for part, (name, facts) in enumerate(zip(names_of(source), group.facts, strict=True)):
        share = f"{(weights or rows)[part] / total:.1%} " if total else ""
        count = plural(rows[part], source.unit.planned) + ("" if facts.exact else " before filters")
        texts.append(f"{share}{name} ({'rows known only after reading' if part in unknown else count})")
    how = "by weight, until one of them ends" if weights else "in proportion to their size"
    return f"splits are merged {how}: {', '.join(texts)}{_unseen(windows) if weights else ''}"


def _unseen(windows: int | None) -> str:
    """Where the weights by which splits are merged do not show."""
    if windows == 1:
        return "; each rank shuffles all its rows in one window, in which weights do not show"
    if windows is not None:
        return "; rows are shuffled within windows, in which weights do not show"
    return ""
