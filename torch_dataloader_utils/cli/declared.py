"""Parameters of commands, made from the declarations of the keywords of `create_dataloader`."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import Field
from inspect import Parameter
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from torch_dataloader_utils.cli.texts import value_of
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options import options_of
from torch_dataloader_utils.values import ByColumn, Maybe, OneOf

# The keywords that have an option of their own; --set takes all others.
OWN_OPTIONS = (
    "format",
    "columns",
    "filters",
    "batch_size",
    "shuffle",
    "shuffle_seed",
    "num_ranks",
    "rank",
    "sharding",
    "even",
    "last_batch",
    "count_rows",
    "num_workers",
    "worker_mode",
    "split_bytes",
    "nulls",
    "manifest",
    "on_error",
)
_PANEL = "Keywords of stream"
_METAVARS = (
    ("Sequence[str]", "A,B,..."),
    ("int | str", "BYTES"),
    ("int", "N"),
    ("PathLike", "FILE"),
    ("Callable", "NAME|MODULE:NAME"),
)


def declared() -> dict[str, Field[Any]]:
    """The declarations of the keywords that files or tables take."""
    return {**options_of("delta"), **options_of("iceberg"), **options_of("files")}


def parameters() -> list[Parameter]:
    """The parameters of a command for the keywords that have an option of their own."""
    known = declared()
    return [_parameter(known[name]) for name in OWN_OPTIONS]


def flag_of(name: str) -> str:
    """The option of a keyword."""
    return f"--{name.replace('_', '-')}"


def words(item: Field[Any]) -> list[str]:
    """The words that an option takes, if its declaration lists them."""
    check = item.metadata.get("check")
    check = check.check if isinstance(check, Maybe) else check
    if isinstance(check, (OneOf, ByColumn)):
        return [str(word) for word in check.allowed if word is not None]
    literals = re.findall(r"""['"](\w+)['"]""", str(item.type))
    return ["true", "false", *literals] if isinstance(item.default, bool) else literals


def _parameter(item: Field[Any]) -> Parameter:
    option = typer.Option(
        flag_of(item.name),
        help=item.metadata["doc"][:1].upper() + item.metadata["doc"][1:] + ".",
        metavar=_metavar(item),
        show_default=False if item.default is None else str(item.default).lower(),
        autocompletion=lambda incomplete: [word for word in words(item) if word.startswith(incomplete)],
        rich_help_panel=_PANEL,
    )
    return Parameter(item.name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


def _metavar(item: Field[Any]) -> str:
    listed = "|".join(words(item))
    return listed or next((name for part, name in _METAVARS if part in str(item.type)), "TEXT")


class BareFlags(TyperCommand):
    """A command whose options that take `true` may stand alone: `--shuffle` is `--shuffle true`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments that are left, after options."""
        return super().parse_args(ctx, completed(args))


def completed(args: list[str]) -> list[str]:
    """The arguments, with `true` after each option that takes it and has no value of its own."""
    known = {flag_of(name): item for name, item in declared().items() if isinstance(item.default, bool)}
    out = []
    for place, arg in enumerate(args):
        out.append(arg)
        if arg == "--":
            return [*out, *args[place + 1 :]]
        if arg in known and not _accepts(known[arg], args[place + 1 : place + 2]):
            out.append("true")
    return out


def _accepts(item: Field[Any], following: Collection[str]) -> bool:
    """Whether the argument that follows is a value of the option."""
    try:
        return any(item.metadata["check"](item.name, value_of(text, item)) is not None for text in following)
    except OptionError:
        return False
