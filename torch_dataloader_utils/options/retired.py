"""Keywords that became fields of values: what a call with them is now, as text that can be pasted."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch_dataloader_utils.errors import UnknownOptionError
from torch_dataloader_utils.options.buckets import Buckets
from torch_dataloader_utils.options.cache import Cache
from torch_dataloader_utils.options.even import Sync
from torch_dataloader_utils.options.lists import Padded
from torch_dataloader_utils.options.mix import Weights
from torch_dataloader_utils.options.nulls import Fill
from torch_dataloader_utils.options.packing import Pack
from torch_dataloader_utils.options.ranks import Mesh
from torch_dataloader_utils.options.sharding import Rotate, settled
from torch_dataloader_utils.options.shuffle import Shuffle
from torch_dataloader_utils.options.sources import Appended, Follow
from torch_dataloader_utils.options.strings import Codes
from torch_dataloader_utils.options.subset import Sample, Subset
from torch_dataloader_utils.options.transform import Transform
from torch_dataloader_utils.options.workers import Processes
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.values import Value, kind_named

Given = Mapping[str, Any]


@dataclass(frozen=True)
class Retired:
    """Keywords that became fields of the value of another.

    Attributes:
        keyword: that one.
        fields: the name of each field, by the keyword that it was.
        now: from what a call gave of all of these, the text of the keyword now; unless that is given as a value.
        was: whether what is given as the keyword itself is a form that it had with these.
        beside: other keywords that the text takes up.
        also: fields that belong to another feature without these.
        replaces: whether a value that is given as the keyword takes up the fields; not if Python cannot write it.
    """

    keyword: str
    fields: Mapping[str, str]
    now: Callable[[Mapping[str, str], Given], str]
    was: Callable[[Any], bool] = lambda given: False
    beside: tuple[str, ...] = ()
    also: Collection[str] = ()
    replaces: bool = True

    def is_in(self, keywords: Given) -> bool:
        """Whether a call with these is as it was."""
        own = keywords.get(self.keyword)
        live = set(self.also) if own is None else set()
        return bool(keywords.keys() & (self.fields.keys() - live)) or self.was(own)

    def text(self, given: Given) -> str:
        """What a call with these is now."""
        own, fields = given.get(self.keyword), renamed(given, self.fields)
        if isinstance(own, Value) and self.replaces and own.fields.keys() >= fields.keys():
            return f"{self.keyword}={own.replace(**fields)!r}"
        return self.now(self.fields, given)


def value(kind: str, first: str | None, fields: Given) -> str:
    """The text of a value: only its first field, if that says all.

    Args:
        kind: the class.
        first: the text of its first field; None if it is not given.
        fields: the others, by name.
    """
    texts = [f"{name}={shown(field)}" for name, field in fields.items()]
    return first if first is not None and not texts else f"{kind}({', '.join(filter(None, [first, *texts]))})"


def renamed(given: Given, names: Mapping[str, str]) -> dict[str, Any]:
    """The given ones of these keywords, by the names of the fields that they have become."""
    return {field: given[name] for name, field in names.items() if name in given}


def _cache(names: Mapping[str, str], given: Given) -> str:
    folder = shown(given["cache_dir"]) if "cache_dir" in given else "'folder'"
    return f"cache={value('Cache', folder, renamed(given, {'cache_bytes': 'max_bytes'}))}"


def _buckets(names: Mapping[str, str], given: Given) -> str:
    tokens = shown(given["batch_tokens"]) if "batch_tokens" in given else "16384"
    return f"batch_tokens={value('Buckets', tokens, renamed(given, names))}"


def _lists_columns(given: Any) -> bool:
    """Whether it is a `pack` whose length another keyword had."""
    return isinstance(given, (list, tuple))


def _pack(names: Mapping[str, str], given: Given) -> str:
    pack = given.get("pack")
    columns = {"columns": list(pack)} if isinstance(pack, (list, tuple)) else {}
    fields = {name: field for name, field in renamed(given, names).items() if name and field is not None}
    if isinstance(pack, Pack):
        return f"pack={pack.replace(**fields)!r}"
    length = fields.pop("length", 2048 if pack is None or columns else pack)
    return f"pack={value('Pack', shown(length), {**columns, **fields})}"


def _lists(names: Mapping[str, str], given: Given) -> str:
    own, values, multiple = given.get("lists"), given.get("pad_values") or {}, given.get("pad_multiple", 1)
    if not values and multiple == 1:
        return f"lists={shown('ragged' if own is None else own)}"
    padded = (own if isinstance(own, Padded) else Padded()).replace(multiple=multiple)
    every = "padded" if padded == Padded() else padded
    if not values and not isinstance(own, Mapping):
        return f"lists={every!r}"
    rest = own if isinstance(own, Mapping) else {"*": every}
    forms = {key: every if form == "padded" else form for key, form in rest.items()}
    return f"lists={shown({**forms, **{name: padded.replace(value=item) for name, item in values.items()}})}"


def _sync(names: Mapping[str, str], given: Given) -> str:
    return f"even=Sync({shown(given['sync_every'])})"


def _processes(names: Mapping[str, str], given: Given) -> str:
    if given.keys() == {"persistent_workers"} and given["persistent_workers"] is True:
        return "the default, because worker processes persist: leave it out"
    if given.get("worker_mode") in ("thread", "threads"):
        return f"worker_mode={shown(given['worker_mode'])}: threads have neither"
    fields = renamed(given, names)
    persistent = {} if fields.get("persistent", True) is True else {"persistent": fields["persistent"]}
    rest = {name: field for name, field in fields.items() if name == "context" and field is not None}
    text = value("Processes", None, {**persistent, **rest})
    return f"worker_mode={text if persistent or rest else shown('processes')}"


def _transform(names: Mapping[str, str], given: Given) -> str:
    function, fields = given.get("transform"), renamed(given, names)
    if isinstance(function, Transform):
        made = function.given()
        function, fields = made.pop("function"), {**made, **fields}
    name = getattr(function, "__name__", "")
    text = "function" if function is None else name if name.isidentifier() else shown(function)
    return f"transform={value('Transform', text, fields)}"


def _weights(names: Mapping[str, str], given: Given) -> str:
    values = shown(given["weights"]) if given.get("weights") is not None else None
    return f"weights={value('Weights', values, renamed(given, names))}"


def _filled(given: Any) -> bool:
    """Whether it is a `nulls` whose values `fill_values` had."""
    words = given.values() if isinstance(given, Mapping) and "kind" not in given else [given]
    return any(isinstance(word, str) and word == "fill" for word in words)  # what else was given may be an array


def _nulls(names: Mapping[str, str], given: Given) -> str:
    nulls, values = given.get("nulls", "fill"), given.get("fill_values") or {}
    by_column = {name: Fill(item) for name, item in values.items() if item is not None}
    if nulls in ("fill", "error"):
        return f"nulls={Fill((by_column and dict(values)) or 0)!r}"
    rest = nulls if isinstance(nulls, Mapping) else {"*": nulls}
    kept = {name: Fill(0) if leaf == "fill" else leaf for name, leaf in rest.items()}
    return f"nulls={shown({**kept, **by_column})}"


def _codes(names: Mapping[str, str], given: Given) -> str:
    strings, values = given.get("strings", "codes"), given["vocabulary"] or {}
    if not isinstance(strings, Mapping):
        return f"strings={Codes(values or None)!r}"
    return f"strings={shown({**strings, **{name: Codes(items) for name, items in values.items()}})}"


def _subset(names: Mapping[str, str], given: Given) -> str:
    fields = renamed(given, {name: field for name, field in names.items() if name != "subsets"})
    sample = given.get("fraction")
    if not {"subset", "subsets"} & given.keys():
        text = value("Sample", shown(1.0 if sample is None else sample), fields)
        return f"fraction={sample.replace(**fields) if isinstance(sample, Value) else text}"
    of = given.get("subsets") or {given["subset"]: 0.8, "val" if given["subset"] != "val" else "train": 0.2}
    texts = [shown(of), *(f"{name}={shown(field)}" for name, field in fields.items())]
    beside = "" if sample is None else f", fraction={shown(sample)}"
    return f"subset=Subsets({', '.join(texts)})[{given.get('subset', next(iter(of)))!r}]{beside}"


_UNITS = {"shard_batches": "batch", "split_batches": "split_batch"}


def _policy(given: Any) -> bool:
    """Whether it is a `sharding` that named its policy so."""
    return isinstance(given, Mapping) and "policy" in given


def _sharding(names: Mapping[str, str], given: Given) -> str:
    own = given.get("sharding")
    inner = dict(given["sharding"]) if _policy(own) else {}
    policy = inner.pop("policy", own)
    fields = {**inner, **{name: item for name, item in given.items() if name != "sharding"}}
    in_turn, rotates = fields.keys() & _UNITS.keys(), fields.keys() & Rotate.fields.keys()
    if rotates or (policy == "rotate" and not in_turn):
        rotate = {name: fields[name] for name in Rotate.fields if fields.get(name) not in (None, False)}
        texts = [shown(item) if name == "total_shards" else f"{name}={shown(item)}" for name, item in rotate.items()]
        return f"sharding=Rotate({', '.join(texts)})" if texts else "sharding='rotate'"
    if in_turn or policy == "strided":
        unit = next((word for name, word in _UNITS.items() if fields.get(name)), None)
        return f"sharding=Strided({unit!r})" if unit else "sharding='strided'"
    if isinstance(policy, str):
        return f"sharding={shown({'kind': policy, **inner} if inner else policy)}"
    name = getattr(policy, "__name__", type(policy).__name__)
    made = ", ".join(f"{field}={shown(item)}" for field, item in inner.items())
    return f"sharding={name}({made})" if isinstance(policy, type) else f"sharding={name}"


def _of_tables(names: Mapping[str, str], given: Given) -> str:
    fields = {name: field for name, field in renamed(given, names).items() if field is not None}
    if given.get("follow") or fields.keys() & {"poll", "wait"}:
        own = {name: field for name, field in fields.items() if name != "until"}
        return f"follow={value('Follow', None, own)}" if own else "follow=True"
    return f"appended={value('Appended', None, fields)}"


def _strict(names: Mapping[str, str], given: Given) -> str:
    if not given["strict_types"]:
        return "the default: leave it out"
    return "warnings.simplefilter('error', UnsupportedTypeWarning): leave it out"


def _shuffle(names: Mapping[str, str], given: Given) -> str:
    own, rows = given.get("shuffle", True), given.get("shuffle_buffer_size")
    scope = "nearby" if rows is not None and not own else own if isinstance(own, str) and own != "rows" else None
    fields = renamed(given, {**names, "shuffle_buffer_size": "window_rows"})
    if rows is not None:  # a window then had no size in bytes
        fields.pop("window_bytes", None)
    return f"shuffle={value('Shuffle', None if scope is None else shown(scope), fields)}"


def _ranks(names: Mapping[str, str], given: Given) -> str:
    meant = {name: item for name, item in given.items() if item is not None}
    if meant.keys() & {"device_mesh", "dp_mesh_dims"}:
        dims = {} if "dp_mesh_dims" not in meant else {"dims": meant["dp_mesh_dims"]}
        return f"ranks={value('Mesh', 'mesh', dims)}"
    return f"ranks={next((names[name] for name in names if name in meant), None)}"


RETIRED = (
    Retired("strict_types", {"strict_types": ""}, _strict),
    Retired("strings", {"vocabulary": "values"}, _codes),
    Retired("nulls", {"fill_values": "value"}, _nulls, _filled),
    Retired(
        "subset",
        {"subsets": "of", "subset_by": "by", "subset_unit": "unit", "subset_seed": "seed"},
        _subset,
        lambda given: isinstance(given, str),
        beside=("fraction",),
    ),
    Retired("cache", {"cache_dir": "folder", "cache_bytes": "max_bytes"}, _cache),
    Retired("batch_tokens", {"length_column": "by", "long_rows": "long"}, _buckets),
    Retired(
        "pack",
        {
            "pack_length": "length",
            "pack_method": "method",
            "pack_long": "long",
            "pad_values": "pad",
            "pad_multiple": "",  # sequences have one length
        },
        _pack,
        _lists_columns,
        also=("pad_values", "pad_multiple"),
    ),
    Retired("lists", {"pad_values": "", "pad_multiple": "multiple"}, _lists),
    Retired(
        "transform",
        {"transform_rows": "rows", "transform_schema": "schema", "transform_format": "format"},
        _transform,
        replaces=False,
    ),
    Retired("weights", {"temperature": "temperature", "weights_unit": "at", "max_repeats": "max_repeats"}, _weights),
    Retired("sharding", {name: name for name in Rotate.fields}, _sharding, _policy),
    Retired("sharding", _UNITS, _sharding),
    Retired(
        "shuffle",
        {"shuffle_bytes": "window_bytes", "shuffle_open_splits": "open_splits"},
        _shuffle,
        beside=("shuffle_buffer_size",),
    ),
    Retired(
        "ranks",
        {"device_mesh": "mesh", "dp_mesh_dims": "dims", "process_group": "group", "accelerator": "accelerator"},
        _ranks,
        replaces=False,
    ),
    Retired("even", {"sync_every": "every"}, _sync),
    Retired(
        "follow",
        {
            "poll_seconds": "poll",
            "wait_seconds": "wait",
            "start_snapshot_id": "after",
            "end_snapshot_id": "until",
            "replay": "replay",
            "non_appends": "non_appends",
        },
        _of_tables,
    ),
    Retired("worker_mode", {"persistent_workers": "persistent", "multiprocessing_context": "context"}, _processes),
)


# The values that a dict given to a keyword always is.
_KINDS: Mapping[str, type[Value]] = {
    "appended": Appended,
    "batch_tokens": Buckets,
    "cache": Cache,
    "even": Sync,
    "follow": Follow,
    "fraction": Sample,
    "pack": Pack,
    "ranks": Mesh,
    "shuffle": Shuffle,
    "subset": Subset,
    "transform": Transform,
    "worker_mode": Processes,
}


def _made(keyword: str, given: Any) -> Any:
    """What was given as a keyword, with a dict as the value that it is."""
    if not isinstance(given, Mapping) or "_target_" in given:
        return given
    if keyword == "sharding":
        return settled(keyword, given)
    named = keyword == "weights" and str(given.get("kind", "")).lower() == "weights"
    kind = Weights if named else _KINDS.get(keyword)
    return given if kind is None else kind.from_dict(given)


def check_retired(keywords: Given, *, as_yaml: bool = False) -> None:
    """Check that no keyword is one that became the field of a value.

    Args:
        keywords: of a call, or of a config.
        as_yaml: whether they are told as YAML.

    Raises:
        UnknownOptionError: some are; a line for each feature says what they are now.
    """
    lines, left = [], dict(keywords)
    for feature in RETIRED:
        if feature.is_in(left):
            names = (feature.keyword, *feature.fields, *feature.beside)
            given = {name: left[name] for name in left if name in names}
            left = {name: left[name] for name in left if name not in feature.fields}
            old = [f"{name}: {_yaml(item)}" if as_yaml else f"{name}={shown(item)}" for name, item in given.items()]
            now = feature.text({name: _made(name, item) for name, item in given.items()})
            told = in_yaml(now) if as_yaml else now
            lines.append(printable(f"{', '.join(old)} {'is' if len(given) == 1 else 'are'} now {told}"))
    if lines:
        raise UnknownOptionError("\n".join(lines))


_BY_COLUMN = frozenset(("lists", "nulls", "strings"))  # a dict given to them is one of columns


def in_yaml(text: str) -> str:
    """The keywords that a text of Python gives as lines of YAML; a text of another form as it is."""
    try:
        call = ast.parse(f"dict({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        found = {str(item.arg): _plain(item.value) for item in call.keywords}
    except (SyntaxError, ValueError, KeyError):
        return text
    for name in _BY_COLUMN & found.keys():
        found[name] = {"*": found[name]} if "kind" in found[name] else found[name]
    return "\n".join(f"{name}: {_yaml(item)}" for name, item in found.items())


def _plain(node: ast.expr) -> Any:
    """What an expression of Python is in a config: a value as a dict, a name as a text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        first = {next(iter(kind_named(node.func.id).fields)): _plain(item) for item in node.args}
        fields = {str(item.arg): _plain(item.value) for item in node.keywords}
        return {"kind": node.func.id.lower(), **first, **fields}
    if isinstance(node, ast.Subscript):  # one of Subsets
        sides = _plain(node.value)
        of = sides.pop("shares")
        return {**sides, "kind": "subset", "name": _plain(node.slice), "of": of}
    if isinstance(node, ast.Dict):
        return {_plain(key): _plain(item) for key, item in zip(node.keys, node.values, strict=True) if key is not None}
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_plain(item) for item in node.elts]
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _yaml(item: Any) -> str:
    return json.dumps(item, ensure_ascii=False, default=str)
