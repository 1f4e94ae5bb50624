"""`tdu stats`: statistics of the columns, and a spec for `tdu fit`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import GOOD, Output, Result, Screen
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.plan_page.page import write_page
from torch_dataloader_utils.preprocess.sources import known_rows
from torch_dataloader_utils.preprocess.statistics import Statistics, statistics
from torch_dataloader_utils.preprocess.statistics_text import NUMBERS, remark_lines, table, title


def run(data: Data, output: Output, *, footers: bool, html: Path | None, spec: Path | None) -> Result:
    """The statistics; with `html` and `spec`, also as a page and as a file of YAML."""
    if footers and spec is not None:
        raise OptionError("--spec needs what only rows tell: leave --footers out.")
    with output.warnings_of_package():
        _, dataset = data.but("transform", num_ranks=1, rank=0).open(output_format="arrow")
        with output.progress(known_rows(dataset) or 1) as begin:
            found = statistics(dataset, footers=footers, on_rows=partial(begin, "counting values"))
    if html is not None:
        output.notes.line(f"wrote {found.write_html(html)}", GOOD)
    if spec is not None:
        output.notes.line(
            f"wrote {write_page(spec, found.spec_yaml, '--spec', 'spec.yaml')}: change it, then tdu fit --spec {spec}",
            GOOD,
        )
    return Result(found.to_dict(), partial(show, found))


def show(found: Statistics, screen: Screen) -> None:
    """Print the table, the remarks and the spec."""
    screen.line(title(found), "bold")
    header, *rows = table(found)
    screen.table(header, rows, numbers=NUMBERS)
    if remarks := remark_lines(found):
        screen.line()
        screen.warnings(remarks)
    if found.spec:
        screen.heading("A spec to begin with")
        screen.line(found.spec_text)
