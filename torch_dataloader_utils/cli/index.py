"""`tdu index`: writes a manifest, or compares one with the files that are there now."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import GOOD, Output, Result, Screen
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import ReadOptions, parse_options
from torch_dataloader_utils.printing import in_bytes, plural
from torch_dataloader_utils.redaction import redacted
from torch_dataloader_utils.sources.manifest_changes import ManifestChanges, manifest_changes, rewrite_manifest

_SHOWN = 20  # paths of each kind of change


def run(data: Data, output: Output, *, check: bool) -> Result:
    """The manifest that was written; or with `check`, how the files differ from it."""
    read = parse_options(data.but("device").keywords).read if data.call == "files" else ReadOptions()
    if read.manifest is None:
        raise OptionError("index needs PATH and --manifest FILE. (Tables need none: they have metadata.)")
    with output.warnings_of_package():
        return _checked(data, str(read.manifest), read) if check else _written(data, str(read.manifest), read)


def _written(data: Data, manifest: str, read: ReadOptions) -> Result:
    inspected, size = rewrite_manifest(data.where, manifest, read)
    layouts = [file.layout for file in inspected.files]
    values = {
        "manifest": redacted(manifest),
        "bytes": size,
        "format": inspected.format,
        "files": len(layouts),
        "segments": sum(len(layout.segments) for layout in layouts),
        "rows": sum(layout.row_count or 0 for layout in layouts) if all(layout.known for layout in layouts) else None,
    }
    said = f"wrote {values['manifest']}: {plural(len(layouts), 'file')}, {in_bytes(size)}"
    return Result(values, lambda screen: screen.line(said, GOOD))


def _checked(data: Data, manifest: str, read: ReadOptions) -> Result:
    changes = manifest_changes(data.where, manifest, read)
    values = {"manifest": redacted(manifest), "stale": changes.any, **asdict(changes)}
    return Result(values, partial(_show, changes, redacted(manifest)), failed=changes.any)


def _show(changes: ManifestChanges, manifest: str, screen: Screen) -> None:
    if not changes.any:
        screen.line(f"{manifest} is up to date: {plural(changes.files, 'file')}", GOOD)
        return
    for name in ("added", "removed", "changed"):
        paths = getattr(changes, name)
        for path in paths[:_SHOWN]:
            screen.line(f"{name}  {path}")
        if len(paths) > _SHOWN:
            screen.line(f"{name}  ... and {len(paths) - _SHOWN:,} more")
    screen.warnings(
        [f"The files are no longer those of {manifest}: run this command without --check to write it again."]
    )
