"""The part of a state that identifies its data: digests and short texts, without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch_dataloader_utils.checkpoint.state_dict import COUNTS, UNKNOWN, digests_of, short
from torch_dataloader_utils.filters.arrow import identity_of
from torch_dataloader_utils.options import Options
from torch_dataloader_utils.planner import digest
from torch_dataloader_utils.planning.splits import UNKNOWN as ABSENT
from torch_dataloader_utils.planning.splits import Splits
from torch_dataloader_utils.schemas.merge import kept_schema
from torch_dataloader_utils.sources.skipped import skipped_names
from torch_dataloader_utils.sources.source import Source

_BUCKETS = "buckets"
SKIPPED = "skipped"  # the files that are left out: they explain another list of files


def counts_are_known(source: Source) -> bool:
    """Whether the rows that each split delivers are known without reading."""
    return source.exact and source.splits.uncounted is None


def fingerprint(source: Source, options: Options) -> dict[str, list[str]]:
    """For each component of what is read, a digest and a short text."""
    files, splits, scan = source.files, source.splits, source.scan
    rows = sum(file.info.record_count or 0 for file in files)
    names = _relative([(file.info.part, file.info.path) for file in files])
    named = [f"{name} {file.info.file_size} {file.info.record_count}" for name, file in zip(names, files, strict=True)]
    schema = [f"{item.name}: {item.type}" for item in kept_schema(scan.output_schema)]
    predicate = identity_of(scan.predicate)
    nulls = options.convert.nulls
    nulls = dict(sorted(nulls.items())) if isinstance(nulls, Mapping) else nulls
    order = options.shuffle
    mixed = [] if options.mixing is None else [", mixed by rows"]
    known = "known" if counts_are_known(source) else UNKNOWN
    components: dict[str, tuple[Sequence[str], str]] = {
        "files": (named, f"{len(files)} files, {rows} rows"),
        "schema": (schema, f"{len(schema)} columns: {short(', '.join(schema))}"),
        "filters": ([predicate], short(predicate)),
        "nulls": ([str(nulls)], short(str(nulls))),
        "origin": ([source.origin], short(source.origin) or "files"),
        "mixing": ([str(source.parts), *mixed], f"{len(source.parts)} dataset(s){''.join(mixed)}"),
        "splits": (list(_split_texts(splits)), f"{len(splits)} splits"),
        "shuffle": ([str(order.shuffle)], str(order.shuffle)),
        "shuffle_seed": ([str(order.shuffle_seed)], str(order.shuffle_seed)),
        COUNTS: ([known], known),
    }
    for name, text in (("subset", source.subset), ("pack", options.pack.text), (_BUCKETS, options.buckets)):
        components[name] = ([text] if text else [], short(text))
    skipped = [_unsigned(file.relative or file.path, file.path) for file in source.skipped]
    components[SKIPPED] = (skipped, short(skipped_names(source.skipped)) if skipped else "")
    return {name: [digest_of(parts), text] for name, (parts, text) in components.items()}


def digest_of(parts: Sequence[str]) -> str:
    """The digest of a component."""
    return f"{digest(parts):016x}"


# Components that states did not have at first unless there was something to tell.
_NOTHING = dict.fromkeys(("subset", "pack", _BUCKETS, SKIPPED), digest_of([]))


def _split_texts(splits: Splits) -> Iterator[str]:
    """The part, rows and segments of each split, as `str` of its values has them; from columns, as there are many."""
    parts = [file.info.part for file in splits.files]
    columns = (splits.file, splits.start, splits.stop, splits.first, splits.last)
    for file, start, stop, first, last in zip(*(column.tolist() for column in columns), strict=True):
        rows = None if start == ABSENT else f"Rows(start={start}, stop={stop}, step=1, block=1, phase=0)"
        yield f"{parts[file]} {rows} {None if first == ABSENT else (first, last)}"


def different_data(
    saved: Mapping[str, list[str]],
    here: Mapping[str, list[str]],
    versions: tuple[int, int],
    *,
    between_windows: bool = False,
) -> str | None:
    """A text that lists how a state's data differs from the data here; None if it is the same.

    Args:
        saved: the fingerprint in the state.
        here: the fingerprint of what this loader reads.
        versions: of the plan algorithm: in the state, and here.
        between_windows: whether no window has been begun, so that its rows may be cut into other batches by length.
    """
    was, now = ({**_NOTHING, **digests_of(data)} for data in (saved, here))
    same_files = was.get("files") == now.get("files")
    if between_windows and _NOTHING[_BUCKETS] not in (was[_BUCKETS], now[_BUCKETS]):
        now[_BUCKETS] = was[_BUCKETS]
    lines = [
        f"  {name}: {_shown(saved.get(name))} in the state, {_shown(here.get(name))} here"
        for name in {**here, **saved}
        if was.get(name) != now.get(name) and not (same_files and name == SKIPPED)
    ]
    if versions[0] != versions[1]:
        lines.insert(0, f"  plan version: {versions[0]} in the state, {versions[1]} here")
    if not lines:
        return None
    if was == {**now, _BUCKETS: was[_BUCKETS]} and versions[0] == versions[1]:
        lines.append("Some rows of a window that is sorted by length were delivered, in batches of the state's budget.")
    return "\n".join(
        [
            "the state was taken on different data or options:",
            *lines,
            "Give the loader the data and options of the state, or start the epoch again, or load with strict=False, "
            "which applies the number of batches to the current data.",
        ]
    )


def _shown(component: Sequence[str] | None) -> str:
    return (
        "nothing" if component is None or component[0] == digest_of([]) else f"{component[1]} (digest {component[0]})"
    )


def _relative(paths: Sequence[tuple[int, str]]) -> list[str]:
    """The paths of each dataset's files below their common directory, without the query of a URL."""
    shared: dict[int, list[str]] = {}
    parts = [(part, _unsigned(path, path).split("/")) for part, path in paths]
    for part, names in parts:
        kept = shared.setdefault(part, names[:-1])
        same = next((i for i, (a, b) in enumerate(zip(kept, names[:-1], strict=False)) if a != b), None)
        shared[part] = kept[: min(len(kept), len(names) - 1) if same is None else same]
    return [f"{part} {'/'.join(names[len(shared[part]) :])}" for part, names in parts]


def _unsigned(name: str, path: str) -> str:
    """A file's name, without the query if its path is a URL: another signature is the same file."""
    return name.split("?")[0] if "://" in path else name
