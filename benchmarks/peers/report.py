"""The figures of a race in words and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contenders import PEERS


def title(table: str, rows: int, workers: int, shuffle: bool) -> str:
    """The name of a case."""
    what = f"{table}, B = {rows:,}"
    what += f", {workers} worker processes" if workers else ""
    return what + (", shuffled" if shuffle else "")


def label(name: str, versions: Mapping[str, str]) -> str:
    """A loader's name and version."""
    return " ".join(filter(None, (PEERS[name].label, versions.get(name))))


def table_of(figures: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """A Markdown table of one case, the fastest loader first."""
    lines = [
        "| loader | M rows/s | of LIMIT | CPU s per M rows | peak MiB | first batch, s | exact batches |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    good = {name: each for name, each in figures.items() if "error" not in each}
    for name, each in sorted(good.items(), key=lambda item: -item[1]["rate"]):
        if name == "limit":
            lines.append(f"| {label(name, versions)} | {each['rate'] / 1e6:.3g} | 1 | {each['cpu']:.3g} | | | |")
            continue
        part = "" if each["whole"] else "*"
        lines.append(
            f"| {label(name, versions)} | {each['rate'] / 1e6:.3g}{part} | {each.get('share', 0):.3g} | "
            f"{each['cpu']:.3g} | {each['peak']:.0f} | {each['first']:.2f} | {'yes' if each['exact'] else 'no'} |"
        )
    lines += [f"| {label(name, versions)} | {each['error']} |" for name, each in figures.items() if "error" in each]
    return "\n".join(lines) + "\n"
