"""Turns a function of data into a command: its parameters, its warnings, its exit code."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.text import Text

from torch_dataloader_utils.cli.data import Data, data_of
from torch_dataloader_utils.cli.declared import BareFlags, parameters
from torch_dataloader_utils.cli.output import BAD, NULLS_HINT, Output, Result
from torch_dataloader_utils.errors import DataLoaderUtilsError, NullValueError
from torch_dataloader_utils.redaction import printable, redacted_error, remember_secrets

FAILED, BAD_INPUT = 1, 2  # exit codes: the data or the plan fails a check; bad usage or bad input

Run: TypeAlias = Callable[..., Result]

_DATA, _OUTPUT = "Data", "Output"

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH]...", help="A folder, a glob, a file or a URL, or several of these.", show_default=False
    ),
]
TableName = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="An Iceberg table instead of PATH.", rich_help_panel=_DATA),
]
DeltaPath = Annotated[
    str | None,
    typer.Option("--delta", metavar="PATH", help="A Delta table instead of PATH.", rich_help_panel=_DATA),
]
Catalog = Annotated[
    list[str],
    typer.Option(
        "--catalog",
        metavar="NAME|KEY=VALUE",
        help="The catalog of --table: its name for pyiceberg, or a property.",
        rich_help_panel=_DATA,
    ),
]
CatalogConfig = Annotated[
    Path | None,
    typer.Option(
        "--catalog-config", metavar="FILE", help="A YAML or JSON file of such properties.", rich_help_panel=_DATA
    ),
]
StorageOption = Annotated[
    list[str],
    typer.Option("--storage-option", metavar="KEY=VALUE", help="An option of the path's store.", rich_help_panel=_DATA),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="A YAML or JSON file of keywords, and of the path.", rich_help_panel=_DATA
    ),
]
Set = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other keyword; its value is text, or a number, list or dict as in YAML.",
        rich_help_panel=_DATA,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=_OUTPUT)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=_OUTPUT)]


def _shared(
    paths: Paths = None,
    *,
    table: TableName = None,
    delta: DeltaPath = None,
    catalog: Catalog = [],  # noqa: B006 - typer copies it
    catalog_config: CatalogConfig = None,
    storage_option: StorageOption = [],  # noqa: B006
    config: Config = None,
    set_: Set = [],  # noqa: B006
    json: Json = False,
    debug: Debug = False,
) -> None:
    """The parameters of all commands."""


def add_command(app: typer.Typer, run: Callable[..., Run]) -> None:
    """Add a command. Its name, help and further parameters are those of `run`, which returns what is to be run.

    `run` is called with the further parameters; the result is called with `(data, output)`.
    """
    own = list(inspect.signature(run, eval_str=True).parameters.values())
    first, *others = inspect.signature(_shared, eval_str=True).parameters.values()
    keyword_only = [item.replace(kind=Parameter.KEYWORD_ONLY) for item in own]

    @wraps(run)
    def call(**given: Any) -> None:
        command = run(**{item.name: given.pop(item.name) for item in own})
        raise typer.Exit(_exit_code(command, given))

    signature = inspect.Signature([first, *keyword_only, *parameters(), *others])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: item.annotation for name, item in signature.parameters.items()}
    app.command(cls=BareFlags, no_args_is_help=True)(call)


def _exit_code(command: Callable[[Data, Output], Result], given: dict[str, Any]) -> int:
    """The exit code of a command, after its result or its error was printed."""
    output = Output(given["json"])
    try:
        data = data_of(given)
        remember_secrets(data.where, data.keywords.get("storage_options"), data.keywords.get("catalog_config"))
        result = command(data, output)
        output.result(result)
    except (BrokenPipeError, typer.Exit):
        raise
    except Exception as error:  # noqa: BLE001 - of the user's functions, too; --debug shows where
        return _reported(redacted_error(error) or error, output, debug=given["debug"])
    return FAILED if result.failed else 0


def _reported(error: BaseException, output: Output, *, debug: bool) -> int:
    """The exit code for bad input, after the error was printed."""
    if debug:
        sys.stderr.write(printable("".join(traceback.format_exception(error))))
    expected = isinstance(error, DataLoaderUtilsError)
    kind, hint = ("", "") if expected else (f"{type(error).__name__}: ", "\n--debug shows where.")
    if isinstance(error, NullValueError):
        hint = f"\n{NULLS_HINT}"
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    output.notes.line(Text.assemble(("error: ", BAD), printable(f"{kind}{error}{notes}"), hint))
    return BAD_INPUT
