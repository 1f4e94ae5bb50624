"""A keyword that does not exist: what the error says to use in its place."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

import torch_dataloader_utils
from tests.one_mesh import OneMesh
from torch_dataloader_utils import (
    Buckets,
    Cache,
    CombinedDataset,
    Fill,
    Follow,
    IcebergDataset,
    Mesh,
    Pack,
    Padded,
    Processes,
    Rotate,
    Sample,
    Shuffle,
    Strided,
    StructuredDataset,
    Subsets,
    Sync,
    Transform,
    UnknownOptionError,
    Weights,
    combine,
)
from torch_dataloader_utils.options import Call, option_defaults, parse_call, parse_options
from torch_dataloader_utils.options.keywords import _HINTS, _OF_COMBINE, _SYNONYMS
from torch_dataloader_utils.options.retired import check_retired

KNOWN = sorted(option_defaults())
MESH, ACCELERATOR = OneMesh(("dp",)), SimpleNamespace(num_processes=2, process_index=1)


def error_of(name: str) -> str:
    with pytest.raises(UnknownOptionError) as caught:
        parse_options({name: 1})
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("split", "path='data/train/'"),
        ("take", "use limit=n"),
        ("frac", "fraction=0.1 for a sample"),
        ("test_size", "use subset=Subsets({'train': 0.9, 'val': 0.1})['train'], or"),
        ("streaming", "always streamed"),
        ("transforms", "use transform."),
        ("drop_remainder", "last_batch='drop'"),
        ("drop_last", "torch's DataLoader; use last_batch='drop'"),
        ("num_proc", "use num_workers."),
        ("buffer_size", "use shuffle_buffer_size."),
        ("packing", "use pack=2048, which packs documents"),
        ("pad_to_multiple_of", "use lists=Padded(multiple=8)."),
        ("padding_value", "use lists='padded', which fills up labels with -100"),
        ("epochs", "one loop over the loader"),
        ("progress_bar", "show_progress=True"),
        ("aws_access_key_id", "storage_options="),
        ("sep", "format_options="),
    ],
)
def test_words_of_other_libraries_get_a_sentence(name: str, words: str) -> None:
    message = error_of(name)
    assert message.startswith(f"unknown option {name!r}: ")
    assert words in message
    assert "did you mean" not in message


@pytest.mark.parametrize("name", ["batch_bytes", "num_rows", "split_size", "dir", "lines", "sample", "ranking"])
def test_a_word_of_another_meaning_gets_no_guess(name: str) -> None:
    assert error_of(name) == (
        f"unknown option {name!r}: see help(StructuredDataset.create_dataloader) for all options."
    )


RETIRED_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"cache_dir": "x"}, "cache_dir='x' is now cache='x'"),
    ({"subset": "train"}, "subset='train' is now subset=Subsets({'train': 0.8, 'val': 0.2})['train']"),
    (
        {"subsets": {"a": 1, "b": 2}, "subset": "b", "subset_by": "user", "subset_unit": "row", "subset_seed": 3},
        "subsets={'a': 1, 'b': 2}, subset='b', subset_by='user', subset_unit='row', subset_seed=3 are now "
        "subset=Subsets({'a': 1, 'b': 2}, by='user', unit='row', seed=3)['b']",
    ),
    (
        {"subsets": {"a": 1, "b": 2}, "fraction": 0.5},
        "subsets={'a': 1, 'b': 2}, fraction=0.5 are now subset=Subsets({'a': 1, 'b': 2})['a'], fraction=0.5",
    ),
    (
        {"fraction": 0.5, "subset_unit": "file"},
        "fraction=0.5, subset_unit='file' are now fraction=Sample(0.5, unit='file')",
    ),
    ({"subset_seed": 3}, "subset_seed=3 is now fraction=Sample(1.0, seed=3)"),
    (
        {"fraction": Sample(0.5, by="id"), "subset_seed": 3},
        "fraction=Sample(0.5, by=['id']), subset_seed=3 are now fraction=Sample(0.5, by=['id'], seed=3)",
    ),
    (
        {"subset": Subsets({"a": 1, "b": 2})["b"], "subset_by": "user"},
        "subset=Subsets({'a': 1, 'b': 2})['b'], subset_by='user' are now "
        "subset=Subsets({'a': 1, 'b': 2}, by=['user'])['b']",
    ),
    (
        {"cache_dir": "x", "cache_bytes": "50GiB"},
        "cache_dir='x', cache_bytes='50GiB' are now cache=Cache('x', max_bytes='50GiB')",
    ),
    (
        {"batch_tokens": 64, "length_column": "ids", "long_rows": "drop"},
        "batch_tokens=64, length_column='ids', long_rows='drop' are now "
        "batch_tokens=Buckets(64, by='ids', long='drop')",
    ),
    ({"long_rows": "drop"}, "long_rows='drop' is now batch_tokens=Buckets(16384, long='drop')"),
    (
        {"batch_tokens": Buckets(64, by="ids"), "long_rows": "drop"},
        "batch_tokens=Buckets(64, by='ids'), long_rows='drop' are now batch_tokens=Buckets(64, by='ids', long='drop')",
    ),
    ({"pack_length": 64}, "pack_length=64 is now pack=64"),
    ({"pack": ["ids"]}, "pack=['ids'] is now pack=Pack(2048, columns=['ids'])"),
    (
        {"pack": ["input_ids"], "pack_length": 2048, "pad_values": {"labels": -100}},
        "pack=['input_ids'], pack_length=2048, pad_values={'labels': -100} are now "
        "pack=Pack(2048, columns=['input_ids'], pad={'labels': -100})",
    ),
    (
        {"pack": None, "pack_length": 8, "pack_method": "wrap", "pad_values": None},
        "pack=None, pack_length=8, pack_method='wrap', pad_values=None are now pack=Pack(8, method='wrap')",
    ),
    (
        {"pack": 8, "pack_long": "drop", "pad_values": {"ids": 1}},
        "pack=8, pack_long='drop', pad_values={'ids': 1} are now pack=Pack(8, long='drop', pad={'ids': 1})",
    ),
    (
        {"pack": Pack(8, columns=["ids"]), "pad_values": {"ids": 1}},
        "pack=Pack(8, columns=['ids']), pad_values={'ids': 1} are now pack=Pack(8, columns=['ids'], pad={'ids': 1})",
    ),
    (
        {"pack": {"length": 8}, "pad_values": {"ids": 1}},
        "pack={'length': 8}, pad_values={'ids': 1} are now pack=Pack(8, pad={'ids': 1})",
    ),
    ({"pack": 8, "pad_values": None}, "pack=8, pad_values=None are now pack=8"),
    ({"pack": 8, "pad_multiple": 8}, "pack=8, pad_multiple=8 are now pack=8"),
    (
        {"pack": Pack(8), "pad_multiple": 8, "pad_values": {"ids": 1}},
        "pack=Pack(8), pad_multiple=8, pad_values={'ids': 1} are now pack=Pack(8, pad={'ids': 1})",
    ),
    (
        {"lists": "padded", "pad_values": {"labels": -100}, "pad_multiple": 8},
        "lists='padded', pad_values={'labels': -100}, pad_multiple=8 are now "
        "lists={'*': Padded(multiple=8), 'labels': Padded(-100, multiple=8)}",
    ),
    (
        {"pack": None, "pad_values": {"labels": -100}},
        "pad_values={'labels': -100} is now lists={'*': 'padded', 'labels': Padded(-100)}",
    ),
    ({"lists": "padded", "pad_multiple": 8}, "lists='padded', pad_multiple=8 are now lists=Padded(multiple=8)"),
    ({"pad_multiple": 8}, "pad_multiple=8 is now lists=Padded(multiple=8)"),
    ({"pad_values": None, "pad_multiple": 1}, "pad_values=None, pad_multiple=1 are now lists='ragged'"),
    ({"lists": "padded", "pad_values": {}}, "lists='padded', pad_values={} are now lists='padded'"),
    (
        {"lists": Padded(-1), "pad_multiple": 8},
        "lists=Padded(-1), pad_multiple=8 are now lists=Padded(-1, multiple=8)",
    ),
    (
        {"lists": {"ids": "padded", "tags": "nested"}, "pad_values": {"labels": -100}, "pad_multiple": 8},
        "lists={'ids': 'padded', 'tags': 'nested'}, pad_values={'labels': -100}, pad_multiple=8 are now "
        "lists={'ids': Padded(multiple=8), 'tags': 'nested', 'labels': Padded(-100, multiple=8)}",
    ),
    (
        {"shuffle": True, "shuffle_bytes": "64MiB"},
        "shuffle=True, shuffle_bytes='64MiB' are now shuffle=Shuffle(window_bytes='64MiB')",
    ),
    (
        {"shuffle": "all", "shuffle_bytes": "64MiB"},
        "shuffle='all', shuffle_bytes='64MiB' are now shuffle=Shuffle('all', window_bytes='64MiB')",
    ),
    (
        {"shuffle": True, "shuffle_buffer_size": 8, "shuffle_open_splits": 3},
        "shuffle=True, shuffle_buffer_size=8, shuffle_open_splits=3 are now "
        "shuffle=Shuffle(open_splits=3, window_rows=8)",
    ),
    (
        {"shuffle": False, "shuffle_buffer_size": 8, "shuffle_open_splits": 3},
        "shuffle=False, shuffle_buffer_size=8, shuffle_open_splits=3 are now "
        "shuffle=Shuffle('nearby', open_splits=3, window_rows=8)",
    ),
    ({"shuffle_open_splits": 3}, "shuffle_open_splits=3 is now shuffle=Shuffle(open_splits=3)"),
    (
        {"shuffle": Shuffle("all"), "shuffle_bytes": 100},
        "shuffle=Shuffle('all'), shuffle_bytes=100 are now shuffle=Shuffle('all', window_bytes=100)",
    ),
    ({"total_shards": 6}, "total_shards=6 is now sharding=Rotate(6)"),
    (
        {"sharding": "rotate", "total_shards": 6, "full_rotation": True},
        "sharding='rotate', total_shards=6, full_rotation=True are now sharding=Rotate(6, full_rotation=True)",
    ),
    ({"stick_to_shard": False}, "stick_to_shard=False is now sharding='rotate'"),
    ({"stick_to_shard": True}, "stick_to_shard=True is now sharding=Rotate(stick_to_shard=True)"),
    (
        {"sharding": Rotate(6), "full_rotation": True},
        "sharding=Rotate(6), full_rotation=True are now sharding=Rotate(6, full_rotation=True)",
    ),
    (
        {"sharding": "strided", "shard_batches": True},
        "sharding='strided', shard_batches=True are now sharding=Strided('batch')",
    ),
    (
        {"sharding": Strided(), "split_batches": True},
        "sharding=Strided(), split_batches=True are now sharding=Strided('split_batch')",
    ),
    ({"split_batches": False}, "split_batches=False is now sharding='strided'"),
    (
        {"sharding": {"policy": "rotate", "total_shards": 6}},
        "sharding={'policy': 'rotate', 'total_shards': 6} is now sharding=Rotate(6)",
    ),
    (
        {"sharding": {"policy": "strided", "split_batches": True}},
        "sharding={'policy': 'strided', 'split_batches': True} is now sharding=Strided('split_batch')",
    ),
    (
        {"sharding": {"policy": "mine", "by": 4}},
        "sharding={'policy': 'mine', 'by': 4} is now sharding={'kind': 'mine', 'by': 4}",
    ),
    ({"sharding": {"policy": "auto"}}, "sharding={'policy': 'auto'} is now sharding='auto'"),
    ({"temperature": 2.0}, "temperature=2.0 is now weights=Weights(temperature=2.0)"),
    (
        {"weights": [(0, [1, 2]), (500, [2, 1])], "weights_unit": "row"},
        "weights=[(0, [1, 2]), (500, [2, 1])], weights_unit='row' are now "
        "weights=Weights([(0, [1, 2]), (500, [2, 1])], at='row')",
    ),
    (
        {"start_snapshot_id": 7, "end_snapshot_id": 9, "non_appends": "ignore"},
        "start_snapshot_id=7, end_snapshot_id=9, non_appends='ignore' are now "
        "appended=Appended(after=7, until=9, non_appends='ignore')",
    ),
    (
        {"follow": True, "poll_seconds": 1, "replay": 0.5},
        "follow=True, poll_seconds=1, replay=0.5 are now follow=Follow(poll=1, replay=0.5)",
    ),
    ({"wait_seconds": 0}, "wait_seconds=0 is now follow=Follow(wait=0)"),
    ({"even": "sync", "sync_every": 4}, "even='sync', sync_every=4 are now even=Sync(4)"),
    (
        {"worker_mode": "process", "num_workers": 2, "multiprocessing_context": "fork"},
        "worker_mode='process', multiprocessing_context='fork' are now worker_mode=Processes(context='fork')",
    ),
    (
        {"worker_mode": "process", "num_workers": 2, "persistent_workers": False},
        "worker_mode='process', persistent_workers=False are now worker_mode=Processes(persistent=False)",
    ),
    (
        {"transform": print, "transform_rows": "any", "transform_format": "numpy"},
        f"transform={print!r}, transform_rows='any', transform_format='numpy' are now "
        "transform=Transform(print, rows='any', format='numpy')",
    ),
    (
        {"device_mesh": MESH, "dp_mesh_dims": ["dp"]},
        f"device_mesh={MESH!r}, dp_mesh_dims=['dp'] are now ranks=Mesh(mesh, dims=['dp'])",
    ),
    ({"dp_mesh_dims": ()}, "dp_mesh_dims=() is now ranks=Mesh(mesh, dims=())"),
    ({"device_mesh": MESH}, f"device_mesh={MESH!r} is now ranks=mesh"),
    (
        {"ranks": Mesh(MESH), "dp_mesh_dims": ["dp"]},
        f"ranks=Mesh({MESH!r}), dp_mesh_dims=['dp'] are now ranks=Mesh(mesh, dims=['dp'])",
    ),
    ({"process_group": ACCELERATOR}, f"process_group={ACCELERATOR!r} is now ranks=group"),
    (
        {"accelerator": ACCELERATOR, "process_group": None},
        f"accelerator={ACCELERATOR!r}, process_group=None are now ranks=accelerator",
    ),
    ({"process_group": None}, "process_group=None is now ranks=None"),
    ({"fill_values": {"a": 0}}, "fill_values={'a': 0} is now nulls=Fill({'a': 0})"),
    (
        {"nulls": "fill", "fill_values": {"a": 0}},
        "nulls='fill', fill_values={'a': 0} are now nulls=Fill({'a': 0})",
    ),
    (
        {"nulls": {"a": "fill", "b": "mask"}, "fill_values": {"a": 7}},
        "nulls={'a': 'fill', 'b': 'mask'}, fill_values={'a': 7} are now nulls={'a': Fill(7), 'b': 'mask'}",
    ),
    (
        {"nulls": "drop", "fill_values": {"a": 7}},
        "nulls='drop', fill_values={'a': 7} are now nulls={'*': 'drop', 'a': Fill(7)}",
    ),
    (
        {"nulls": Fill(0), "fill_values": {"a": 7}},
        "nulls=Fill(0), fill_values={'a': 7} are now nulls=Fill({'a': 7})",
    ),
    ({"nulls": "fill"}, "nulls='fill' is now nulls=Fill(0)"),
    ({"nulls": {"a": "fill"}}, "nulls={'a': 'fill'} is now nulls={'a': Fill(0)}"),
    ({"vocabulary": {"a": ["x"]}}, "vocabulary={'a': ['x']} is now strings=Codes({'a': ['x']})"),
    (
        {"strings": "codes", "vocabulary": {"a": ["x"]}},
        "strings='codes', vocabulary={'a': ['x']} are now strings=Codes({'a': ['x']})",
    ),
    (
        {"strings": {"a": "codes", "b": "bytes"}, "vocabulary": {"a": ["x"]}},
        "strings={'a': 'codes', 'b': 'bytes'}, vocabulary={'a': ['x']} are now "
        "strings={'a': Codes(['x']), 'b': 'bytes'}",
    ),
    ({"cache_bytes": 2**30}, "cache_bytes=1073741824 is now cache=Cache('folder', max_bytes=1073741824)"),
]


@pytest.mark.parametrize(("given", "now"), RETIRED_CALLS)
def test_a_retired_keyword_says_what_the_call_is_now(given: dict[str, Any], now: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        parse_options({"batch_size": 10, **given}, call := call_with(now))
    assert str(caught.value) == now
    text = now.partition(" now ")[2]
    names = {name: getattr(torch_dataloader_utils, name) for name in torch_dataloader_utils.__all__}
    names |= {"mesh": MESH, "group": ACCELERATOR, "accelerator": ACCELERATOR}
    rest = {name: item for name, item in given.items() if name == "num_workers"}
    keywords = {**eval(f"dict({text})", names), **rest}
    parse_call(call, "db.t", keywords) if call == "iceberg" else parse_options(keywords, call)


# Calls whose other keyword was given as a dict.
BESIDE_DICTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"batch_tokens": {"tokens": 64}, "long_rows": "drop"}, {"batch_tokens": Buckets(64, long="drop")}),
    ({"cache": {"folder": "x"}, "cache_bytes": "50GiB"}, {"cache": Cache("x", max_bytes="50GiB")}),
    ({"even": {"kind": "sync"}, "sync_every": 4}, {"even": Sync(4)}),
    ({"follow": {"poll": 3}, "replay": 0.5}, {"follow": Follow(3, replay=0.5)}),
    ({"fraction": {"share": 0.5}, "subset_unit": "file"}, {"fraction": Sample(0.5, unit="file")}),
    ({"pack": {"length": 8}, "pack_long": "drop"}, {"pack": Pack(8, long="drop")}),
    ({"sharding": {"kind": "rotate"}, "total_shards": 6}, {"sharding": Rotate(6)}),
    ({"sharding": {"kind": "Strided"}, "shard_batches": True}, {"sharding": Strided("batch")}),
    ({"shuffle": {"scope": "all"}, "shuffle_bytes": 100}, {"shuffle": Shuffle("all", window_bytes=100)}),
    (
        {"subset": {"name": "b", "of": {"a": 1, "b": 2}}, "subset_by": "user"},
        {"subset": Subsets({"a": 1, "b": 2}, by="user")["b"]},
    ),
    (
        {"nulls": {"a": {"kind": "fill", "value": 1}}, "fill_values": {"b": 2}},
        {"nulls": {"a": Fill(1), "b": Fill(2)}},
    ),
    (
        {"weights": {"kind": "weights", "values": [1, 2]}, "max_repeats": 2},
        {"weights": Weights([1, 2], max_repeats=2)},
    ),
    (
        {"worker_mode": {"kind": "processes"}, "multiprocessing_context": "fork", "num_workers": 2},
        {"worker_mode": Processes(context="fork"), "num_workers": 2},
    ),
]


def told(given: dict[str, Any], *, as_yaml: bool) -> str:
    """What a call with these is said to be now."""
    with pytest.raises(UnknownOptionError) as caught:
        check_retired(given, as_yaml=as_yaml)
    return re.split(" (?:is|are) now ", str(caught.value), maxsplit=1)[1]


def options_given(keywords: dict[str, Any], call: Call) -> Any:
    return parse_call(call, "db.t", keywords) if call == "iceberg" else parse_options(keywords, call)


@pytest.mark.parametrize(("given", "now"), BESIDE_DICTS)
def test_what_is_said_beside_a_dict_can_be_pasted(given: dict[str, Any], now: dict[str, Any]) -> None:
    names = {name: getattr(torch_dataloader_utils, name) for name in torch_dataloader_utils.__all__}
    workers = {name: item for name, item in given.items() if name == "num_workers"}
    call = call_with(f"{next(iter(now))}=")
    expected = options_given(now, call)
    assert options_given({**eval(f"dict({told(given, as_yaml=False)})", names), **workers}, call) == expected
    assert options_given({**yaml.safe_load(told(given, as_yaml=True)), **workers}, call) == expected


def test_a_function_that_is_beside_keeps_its_name() -> None:
    for transform in ({"function": print, "format": "numpy"}, Transform(print, format="numpy")):
        said = told({"transform": transform, "transform_rows": "any"}, as_yaml=False)
        assert said == "transform=Transform(print, format='numpy', rows='any')"


OBJECTS = re.compile("mesh|group|accelerator|print")


@pytest.mark.parametrize(("given", "now"), [pair for pair in RETIRED_CALLS if not OBJECTS.search(pair[1])])
def test_what_a_config_is_now_is_said_as_yaml(given: dict[str, Any], now: str) -> None:
    names = {name: getattr(torch_dataloader_utils, name) for name in torch_dataloader_utils.__all__}
    workers = {name: item for name, item in given.items() if name == "num_workers"}
    python, call = eval(f"dict({now.partition(' now ')[2]})", names), call_with(now)
    loaded = yaml.safe_load(told(given, as_yaml=True))
    assert options_given({**loaded, **workers}, call) == options_given({**python, **workers}, call)
    assert loaded == json.loads(json.dumps(loaded))


def call_with(now: str) -> Call:
    """The call that takes what a retired keyword has become."""
    words = {"weights=": "combine", "appended=": "iceberg", "follow=": "iceberg"}
    return next((call for word, call in words.items() if word in now), "files")  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("given", "now"),
    [
        (True, "warnings.simplefilter('error', UnsupportedTypeWarning): leave it out"),
        (False, "the default: leave it out"),
    ],
)
def test_strict_types_is_a_warning_now(given: bool, now: str) -> None:
    with pytest.raises(UnknownOptionError) as caught:
        parse_options({"strict_types": given})
    assert str(caught.value) == f"strict_types={given} is now {now}"


def spelled(sentence: str) -> list[dict[str, Any]]:
    """The keywords that a sentence spells with a value, those of each alternative together."""
    names = {name: getattr(torch_dataloader_utils, name) for name in torch_dataloader_utils.__all__} | {"n": 2}
    return [
        {keyword: eval(_expression(part[begin:]), names) for keyword, begin in _keywords(part)}
        for part in sentence.replace("{...}", "{}").replace("[...]", "[2, 1]").split(" or ")
    ]


def _keywords(text: str) -> list[tuple[str, int]]:
    """The keywords of a text that are no fields of a value, and where their values begin."""
    found = [(match[1], match.end()) for match in re.finditer(r"(\w+)=(?=[\w'{\[])", text)]
    return [(name, end) for name, end in found if text[:end].count("(") == text[:end].count(")") or "combine(" in text]


def _expression(text: str) -> str:
    """The expression that a text begins with."""
    for end in range(1, len(text) + 1):
        with contextlib.suppress(SyntaxError):
            ast.parse(text[:end], mode="eval")
            if re.match(r"[,.:;)]*(\s|$)", text[end:]):
                return text[:end]
    raise AssertionError(text)


SENTENCES = {**_HINTS, **_OF_COMBINE, **{name: f"use {option}." for name, option in _SYNONYMS.items()}}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_is_to_be_used_exists_and_takes_the_value_that_is_spelled(name: str) -> None:
    sentence = SENTENCES[name]
    options = {*KNOWN, *option_defaults("combine"), "path"}
    for keywords in spelled(sentence):
        of_combine = keywords.keys() - option_defaults() - {"path"}
        parse_options(
            {key: value for key, value in keywords.items() if key != "path"}, "combine" if of_combine else "files"
        )
    named = set(re.findall(r"\w+", sentence)) & options
    assert named or re.search(r"leave it out|loader\.|dataset\.|batch\[", sentence)


@given(st.data())
def test_one_wrong_letter_is_corrected(data: st.DataObject) -> None:
    right = data.draw(st.sampled_from([name for name in KNOWN if len(name) >= 7]))
    place = data.draw(st.integers(1, len(right) - 1))
    letter = data.draw(st.sampled_from(["", "x", f"{right[place]}x"]))
    wrong = right[:place] + letter + right[place + 1 :]
    assume(wrong not in KNOWN)
    assert f"did you mean {right!r}?" in error_of(wrong)


@pytest.mark.parametrize(("name", "option"), [("batch", "batch_size"), ("prefetch", "prefetch_bytes")])
def test_the_first_words_of_an_option_are_completed(name: str, option: str) -> None:
    assert f"did you mean {option!r}?" in error_of(name)


def test_the_table_holds_no_option() -> None:
    options = {*KNOWN, *option_defaults("iceberg"), "path"}
    assert not options & {*_HINTS, *_SYNONYMS}
    assert not option_defaults("combine").keys() & {*_OF_COMBINE}


def test_options_of_tables_and_of_files_name_each_other() -> None:
    with pytest.raises(UnknownOptionError, match=r"IcebergDataset.create_dataloader"):
        parse_options({"snapshot_id": 1})
    with pytest.raises(UnknownOptionError, match="option for files"):
        parse_call("iceberg", "db.t", {"partitioning": None})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("probabilities", "use weights, whose shares are exact."),
        ("stopping_strategy", "use stop='first'"),
        ("epoch_size", "use rows_per_epoch"),
        ("shufle", "did you mean 'shuffle'?"),
        ("num_rows", "see help(combine) for all options."),
    ],
)
def test_combine_speaks_of_its_own_keywords(name: str, words: str) -> None:
    with pytest.raises(UnknownOptionError, match=re.escape(f"unknown option {name!r}: {words}")):
        combine(["data/"], **{name: 1})


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (StructuredDataset, "StructuredDataset.create_dataloader(path, ...)"),
        (IcebergDataset, "IcebergDataset.create_dataloader(table, ...)"),
        (CombinedDataset, "combine(datasets, ...)"),
    ],
)
def test_a_class_that_is_called_names_the_function_that_makes_it(kind: Any, call: str) -> None:
    with pytest.raises(UnknownOptionError, match=re.escape(f"{kind.__name__}(...): use {call}.")):
        kind("data/", batch_size=8)
