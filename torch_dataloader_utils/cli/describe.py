"""`tdu describe`: what `dataset.describe()` says."""

from __future__ import annotations

from functools import partial

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import Output, Result, Screen
from torch_dataloader_utils.loader.description import Description, Facts, FactTable, Sentences


def run(data: Data, output: Output, *, epoch: int) -> Result:
    """The description."""
    shown: list[str] = []
    with output.warnings_of_package(lambda: shown):
        _, dataset = data.but("device").open()
        description = dataset.describe(epoch)
        shown += [] if output.as_json else map(str, description.warnings)
    return Result(description.to_dict(), partial(show, description))


def show(description: Description, screen: Screen) -> None:
    """Print the description's sections."""
    for number, section in enumerate(description.sections):
        if section.title:
            (screen.heading if number else partial(screen.line, style="bold"))(section.title)
        if isinstance(section, Facts):
            screen.facts(section.items)
        elif isinstance(section, FactTable):
            screen.table(section.header, section.rows, numbers=numeric(section))
        elif isinstance(section, Sentences):
            screen.warnings(section.items)


def numeric(table: FactTable) -> list[str]:
    """The names of the columns that hold numbers."""
    return [name for place, name in enumerate(table.header) if any(isinstance(row[place], int) for row in table.rows)]
