"""The commands. What they run is imported when they run, so that `--help` needs neither torch nor pyarrow."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from torch_dataloader_utils.cli.command import Run, add_command

app = typer.Typer(
    name="tdu",
    help="Look at data and at the plan that torch_dataloader_utils makes of it, before and without training.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine, 1 the data or the plan fails a check, 2 bad usage or bad input.",
)


def _version(value: bool) -> None:
    if value:
        from torch_dataloader_utils import __version__

        typer.echo(f"tdu (torch-dataloader-utils) {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


Epoch = Annotated[int, typer.Option("--epoch", "-e", min=0, metavar="N", help="The epoch.")]


def _later(module: str, **options: Any) -> Run:
    """The command in a module of this package, with its options, imported when it is called."""
    return lambda data, output: import_module(f"torch_dataloader_utils.cli.{module}").run(data, output, **options)


def schema() -> Run:
    """Show the columns: their Arrow types, what a batch has of them, and their nulls."""
    return _later("schema")


def describe(epoch: Epoch = 0) -> Run:
    """Show what the data hold and what each rank gets, as dataset.describe() does."""
    return _later("describe", epoch=epoch)


def plan(
    epoch: Epoch = 0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the plan as an interactive page.")
    ] = None,
) -> Run:
    """Show rows, steps and padding of each rank and worker, and the splits of each file."""
    return _later("plan", epoch=epoch, html=html)


def head(
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, metavar="N", help="How many rows.")] = 10,
    batch: Annotated[
        bool, typer.Option("--batch", help="Show the first batch as training gets it: dtypes and shapes.")
    ] = False,
    epoch: Epoch = 0,
) -> Run:
    """Show the first rows in the order of batches, after filters and columns."""
    return _later("head", rows=rows, batch=batch, epoch=epoch)


def verify(
    epoch: Epoch = 0,
    read: Annotated[bool, typer.Option("--read", help="Read the data, and count the rows that arrive.")] = False,
    id_column: Annotated[
        str | None, typer.Option("--id-column", metavar="NAME", help="With --read: the column that identifies rows.")
    ] = None,
) -> Run:
    """Check that all ranks and workers together read every row exactly once."""
    return _later("verify", epoch=epoch, read=read, id_column=id_column)


def bench(
    seconds: Annotated[float, typer.Option("--seconds", min=1, metavar="S", help="About how long to measure.")] = 20,
    step_ms: Annotated[
        float, typer.Option("--step-ms", min=0, metavar="MS", help="The duration of a training step, simulated.")
    ] = 0,
) -> Run:
    """Measure rows/s, find what limits them, and try other settings and row groups."""
    return _later("bench", seconds=seconds, step_seconds=step_ms / 1000)


def index(
    check: Annotated[
        bool, typer.Option("--check", help="Compare an existing manifest with the files; write nothing.")
    ] = False,
) -> Run:
    """Write a manifest: the list of files and their footers, which jobs then load at once."""
    return _later("index", check=check)


def stats(
    footers: Annotated[
        bool, typer.Option("--footers", help="Show what the footers of Parquet files say; read no rows.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the statistics as a page with histograms.")
    ] = None,
    spec: Annotated[
        Path | None, typer.Option("--spec", metavar="FILE", help="Write the proposed spec as YAML, for tdu fit.")
    ] = None,
) -> Run:
    """Show what each column holds: nulls, distinct values, range, mean, quantiles, a histogram, and a proposed spec."""
    return _later("stats", footers=footers, html=html, spec=spec)


def fit(
    out: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The JSON file to write.")],
    spec: Annotated[
        Path | None,
        typer.Option("--spec", metavar="FILE", help="A YAML or JSON file: a transform or a list, by column."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", metavar="float32|float64", help="With --spec: the dtype of numbers, float32 if left out."
        ),
    ] = None,
    update: Annotated[
        str | None,
        typer.Option("--update", metavar="FILE", help="A saved Preprocess, updated by rows that are new to it."),
    ] = None,
    only_ids: Annotated[
        bool, typer.Option("--only-ids", help="With --update: vocabularies grow, learned numbers stay.")
    ] = False,
    quantiles: Annotated[
        str,
        typer.Option(
            "--quantiles",
            metavar="SHARE|exact",
            help="The rank error of quantiles, as a share of rows, that calls for a second scan; 0.001 if left out.",
        ),
    ] = "0.001",
) -> Run:
    """Fit a Preprocess on the rows, or update a saved one by further rows, and save it."""
    how = {"dtype": dtype, "update": update, "only_ids": only_ids, "quantiles": quantiles}
    return _later("fit", out=out, spec=spec, **how)


for command in (schema, stats, fit, describe, plan, head, verify, bench, index):
    add_command(app, command)
