"""What a command reads: files or a table, and the keywords of their loader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch_dataloader_utils.cli.declared import OWN_OPTIONS, declared, flag_of
from torch_dataloader_utils.cli.texts import config_of, pairs, plain, value_of
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.options.retired import check_retired
from torch_dataloader_utils.values import Value

_PROPERTIES = ("storage_options", "catalog_config")
Call = Literal["files", "iceberg", "delta"]
_KINDS: Mapping[Call, str] = {"files": "Files", "iceberg": "Iceberg", "delta": "Delta"}
DATASETS: Mapping[Call, str] = {"files": "StructuredDataset", "iceberg": "IcebergDataset", "delta": "DeltaDataset"}


@dataclass(frozen=True)
class Data:
    """Files or a table, and the keywords of its loader.

    Attributes:
        call: the call that makes its loader.
        where: the path, the paths or the table.
        keywords: those given; may hold credentials, so never printed.
        rank: the one that was named; None: of several ranks, the first stands for all.
    """

    call: Call
    where: str | list[str]
    keywords: Mapping[str, Any] = field(repr=False)
    rank: int | None = None

    def open(self, **others: Any) -> tuple[Any, Any]:
        """A loader and its dataset; `others` are keywords that replace those given.

        Arrow batches hold rows as they are stored, so `pack` and `sequences` have no effect on them, and they are on no
        device.
        """
        import torch_dataloader_utils as package

        unused = ("device", "pack", "sequences") if others.get("output_format") == "arrow" else ()
        dataset: Any = getattr(package, DATASETS[self.call])
        loader: tuple[Any, Any] = dataset.create_dataloader(self.where, **{**self.but(*unused).keywords, **others})
        return loader

    def but(self, *names: str, **others: Any) -> Data:
        """The same data without these keywords, and with others."""
        kept = {name: value for name, value in self.keywords.items() if name not in names}
        return replace(self, keywords={**kept, **others})


def data_of(given: Mapping[str, Any]) -> Data:
    """The data that a command line names; its options replace the keywords of the config file.

    Args:
        given: the command's parameters by name, keywords as text.

    Raises:
        OptionError: no data or several are named, or a text is no value of its option.
    """
    config = _loader(config_of(given["config"])) if given["config"] else {}
    check_retired(config, as_yaml=True)
    config = {name: _built(name, value) for name, value in config.items()}
    target = _target(str(config.pop("_target_", "")))
    source, config = _source(config)
    target = target or source
    path, table = config.pop("path", None), config.pop("table", None)
    where: dict[Call, Any] = {
        "files": list(given["paths"] or ()) or path,
        "iceberg": given["table"] or (None if target == "delta" else table),
        "delta": given["delta"] or (table if target == "delta" else None),
    }
    call = _one_of(where, target)
    named = where[call]
    options = _options(given)
    rank = options.get("rank", config.get("rank"))
    named = named[0] if isinstance(named, list) and len(named) == 1 else named
    return Data(call, named, _joined(config, options), rank)


def _source(config: Mapping[str, Any]) -> tuple[Call | None, dict[str, Any]]:
    """The call that reads a config's `source`, and the config with the fields of the source as keywords of the call."""
    if "source" not in config:
        return None, dict(config)
    from torch_dataloader_utils.api.stream import source_of  # imports torch

    rest = {name: value for name, value in config.items() if name != "source"}
    source = source_of(config["source"])
    call = next((call for call, kind in _KINDS.items() if type(source).__name__ == kind), None)
    if call is None or not isinstance(source, Value) or rest.keys() & source.fields:
        raise OptionError(
            "source: expected a path, or a dict with kind: files, iceberg or delta, and no path or table."
        )
    given = source.given()
    if "catalog" in given:
        given["catalog_config"] = given.pop("catalog")  # as the options of commands call it
    return call, {**rest, **given}


def _joined(config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of both; single properties of a store or catalog are added to those of the config."""
    both = [name for name in _PROPERTIES if isinstance(config.get(name), Mapping)]
    added = {name: {**config[name], **options[name]} for name in both if isinstance(options.get(name), Mapping)}
    keywords = {**config, **options, **added}
    if keywords.get("num_ranks") is not None:
        keywords.setdefault("rank", 0)
    return keywords


def _loader(config: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a config, which may be the value of its only key, such as `loader`."""
    inner, known = next(iter(config.values()), None), {"source", *declared()}
    return dict(inner) if len(config) == 1 and isinstance(inner, Mapping) and not config.keys() & known else config


def _built(name: str, value: Any) -> Any:
    """A value of a config, with this package's transforms and values built where a `_target_` names them.

    Raises:
        OptionError: it names anything else; or the whole config is that of a combination.
    """
    if name == "_target_" and str(value).endswith(".combine"):
        raise OptionError(
            "the config builds a combination, which no command reads: name one of its datasets; or call describe(), "
            "plan() and plan_page() on the loader that combine returns."
        )
    if isinstance(value, list):
        return [_built(name, item) for item in value]
    if not isinstance(value, Mapping):
        return value
    inner = {key: _built(name, item) for key, item in value.items()}
    if (target := inner.pop("_target_", None)) is None:
        return inner
    inner.pop("_convert_", None)  # Hydra's
    import torch_dataloader_utils as package
    from torch_dataloader_utils import transforms  # imports torch

    module, _, made = str(target).rpartition(".")
    makers = {package.__name__: package, transforms.__name__: transforms}
    maker = getattr(makers.get(module), made, None)
    is_value = isinstance(maker, type) and issubclass(maker, Value)
    if not is_value and (module != transforms.__name__ or made not in transforms.__all__):
        raise OptionError(
            f"{name}: _target_={target!r}: a command builds only {', '.join(transforms.__all__)} of "
            f"{transforms.__name__}, and values of the package. Leave {name} out, or build the loader with Hydra."
        )
    try:
        return maker(*inner.pop("_args_", ()), **inner)  # type: ignore[misc]
    except TypeError as error:
        raise OptionError(f"{name}: {made}: {error}.") from error


def _target(path: str) -> Call | None:
    """The call that a config's `_target_` names, such as `torch_dataloader_utils.DeltaDataset.create_dataloader`."""
    named = path.split(".")[-2:][0]
    return next((call for call, dataset in DATASETS.items() if dataset == named), None)


def _one_of(where: Mapping[Call, Any], target: Call | None) -> Call:
    named = [call for call, value in where.items() if value]
    if len(named) != 1 or target not in (None, *named):
        raise OptionError(
            "expected one of PATH (files), --table (an Iceberg table) and --delta (a Delta table), here or in --config."
        )
    return named[0]


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords given by options."""
    known = declared()
    texts = {name: given[name] for name in OWN_OPTIONS if given[name] is not None}
    for name, text in pairs(given["set_"], "--set").items():
        key = name.replace("-", "_")
        if key in texts:
            raise OptionError(f"{flag_of(key)} and --set {key}=... were both given: pass one.")
        texts[key] = text
    values = {name: value_of(text, known[name]) if name in known else plain(text, name) for name, text in texts.items()}
    storage = {
        name: plain(text, "--storage-option")
        for name, text in pairs(given["storage_option"], "--storage-option").items()
    }
    properties = {**({"storage_options": storage} if storage else {}), **_catalog(given)}
    for name in properties.keys() & values.keys():
        raise OptionError(f"{name} was given by --set and by its own option: pass one.")
    return values | properties


def _catalog(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword `catalog_config`, from its options."""
    path: Path | None = given["catalog_config"]
    properties = [text if "=" in text else f"name={text}" for text in given["catalog"]]
    catalog = {**(config_of(path) if path else {}), **pairs(properties, "--catalog")}
    return {"catalog_config": catalog} if catalog else {}
