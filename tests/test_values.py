"""Values: checked when they are made, frozen, equal by content, and whole after each way into a file and back."""

from __future__ import annotations

import copy
import inspect
import json
import os
import pickle
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import hydra.utils
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import torch_dataloader_utils
from tests.one_mesh import OneMesh
from torch_dataloader_utils import (
    Appended,
    Buckets,
    Cache,
    Delta,
    Files,
    Follow,
    Hive,
    Iceberg,
    Mesh,
    OptionError,
    Pack,
    Processes,
    Rotate,
    Shuffle,
    Strided,
    Sync,
    Transform,
    UnknownOptionError,
    Weights,
    Windows,
)
from torch_dataloader_utils.options.subset import Sample, Subsets
from torch_dataloader_utils.values import Value, a, maybe, names, one_of, setting, whole, word


class Thing(Value):
    """A value with a field of each kind."""

    size: int = setting(check=whole(1), doc="how large it is", kw_only=False)
    parts: Any = setting(default=None, doc="anything")
    columns: Any = setting(default=None, check=maybe(names), doc="names")
    mode: str = setting(default="slow", check=one_of("slow", "fast"), doc="how fast")
    token: str = setting(default="", doc="a password", secret=True)

    def check(self) -> None:
        if self.mode == "fast" and self.size == 1:
            raise OptionError("Thing: mode='fast' with size=1.")


class Holder(Value):
    """A value that holds another."""

    thing: Thing = setting(check=a(Thing), doc="what it holds", kw_only=False)
    name: str = setting(default="it", check=word, doc="its name")


# What JSON holds.
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
THINGS = st.builds(
    Thing,
    st.integers(2, 2**40),
    parts=PLAIN,
    columns=st.none() | st.just(["x", "y"]),
    mode=st.sampled_from(["slow", "fast"]),
)


@given(THINGS)
def test_a_value_is_whole_after_each_way_out_and_back(thing: Thing) -> None:
    text = json.dumps(thing.to_dict())
    for again in (
        Value.from_dict(json.loads(text)),
        Thing.from_dict({name: item for name, item in json.loads(text).items() if name != "kind"}),
        Thing.of(json.loads(text)),
        Thing.of(thing),
        pickle.loads(pickle.dumps(thing)),
        copy.deepcopy(thing),
        thing.replace(),
        eval(repr(thing), {"Thing": Thing}) if len(repr(thing)) < 200 else thing,
    ):
        assert again == thing
        assert hash(again) == hash(thing)
        assert type(again.parts) is type(thing.parts)
    held = Holder(thing)
    assert Value.from_dict(json.loads(json.dumps(held.to_dict()))) == held


def test_equal_content_is_equal_whatever_its_order_or_container() -> None:
    one, other = Thing(3, parts={"a": [1, 2], "b": {"c": 0}}), Thing(3, parts={"b": {"c": 0}, "a": (1, 2)})
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other, Thing(4)}) == 2
    assert one != Holder(one)
    assert one != 3


def test_containers_are_copied() -> None:
    parts, columns = {"a": [1, 2]}, ["x"]
    thing = Thing(3, parts=parts, columns=columns)
    parts["a"].append(3)
    columns.append("y")
    assert thing == Thing(3, parts={"a": [1, 2]}, columns=["x"])


def test_numbers_of_numpy_and_containers_of_omegaconf_become_pythons() -> None:
    config = OmegaConf.create({"parts": {"a": [1, 2]}, "columns": ["x", "y"], "size": 4})
    thing = Thing(np.int32(4), parts=config.parts, columns=config.columns)
    assert thing == Thing(4, parts={"a": [1, 2]}, columns=["x", "y"])
    assert (type(thing.size), type(thing.parts), type(thing.columns)) == (int, dict, tuple)
    assert Thing.of(config) == thing
    assert type(Thing(2, parts=[np.float32(0.5), np.bool_(True)]).parts[0]) is float


@pytest.mark.parametrize("convert", ["none", "partial", "all"])
def test_hydra_makes_values_and_omegaconf_leaves_them_alone(convert: str) -> None:
    """Instances of dataclasses would become configs, which is why values are none."""
    text = """
    _target_: tests.test_values.Holder
    thing: {_target_: tests.test_values.Thing, size: 4, parts: {a: [1, 2]}, columns: [x]}
    """
    expected = Holder(Thing(4, parts={"a": [1, 2]}, columns=["x"]))
    config = {**yaml.safe_load(text), "_convert_": convert}
    made = hydra.utils.instantiate(config)
    assert (type(made.thing), made) == (Thing, expected)
    again = hydra.utils.instantiate(
        {"_target_": "tests.test_values.Holder", "_convert_": convert}, thing=expected.thing
    )
    assert (type(again.thing), again) == (Thing, expected)
    written = {
        "_target_": "tests.test_values.Holder",
        "thing": {"kind": "thing", **config["thing"]},
        "_convert_": convert,
    }
    del written["thing"]["_target_"]
    assert hydra.utils.instantiate(written) == expected


def test_a_value_cannot_be_changed() -> None:
    thing = Thing(3)
    for change in (lambda: setattr(thing, "size", 4), lambda: delattr(thing, "size"), lambda: setattr(thing, "new", 4)):
        with pytest.raises(AttributeError, match="cannot be changed"):
            change()
    assert thing == Thing(3)
    assert thing.replace(size=4) == Thing(4)
    assert thing == Thing(3)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Thing(), OptionError, r"Thing: size is missing, how large it is: Thing\(size, parts=None"),
        (lambda: Thing(0), OptionError, "Thing: size=0: expected a whole number of at least 1"),
        (lambda: Thing(3, mode="quick"), OptionError, "Thing: mode='quick': expected one of 'slow', 'fast'"),
        (lambda: Thing(1, mode="fast"), OptionError, "mode='fast' with size=1"),
        (lambda: Thing(1).replace(mode="fast"), OptionError, "mode='fast' with size=1"),
        (lambda: Thing(3, 4), UnknownOptionError, r"Thing\(3, 4\): expected at most 1 value\(s\) by position \(size\)"),
        (lambda: Thing(3, size=4), UnknownOptionError, "size was given twice"),
        (lambda: Thing(3, colums=["x"]), UnknownOptionError, "no field 'colums'.*Did you mean columns"),
        (lambda: Thing(3).replace(sise=4), UnknownOptionError, "no field 'sise'.*Did you mean size"),
        (lambda: Holder({"sise": 3}), UnknownOptionError, "Thing has no field 'sise'"),
        (lambda: Holder({"kind": "holder", "thing": 3}), OptionError, "kind='holder': expected 'thing'"),
        (lambda: Holder({"kind": 3}), OptionError, "kind=3: expected 'thing'"),
        (lambda: Value.from_dict({"kind": "think"}), OptionError, "kind='think': expected 'thing'"),
        (lambda: Thing.from_dict({1: 2}), UnknownOptionError, "Thing has no field 1"),
        (lambda: Value.from_dict({"size": 3}), OptionError, "kind='Value'"),
        (lambda: Thing(3, parts=[len]).to_dict(), OptionError, "Thing: parts is .*len.*cannot hold"),
        (lambda: Thing(3, parts={1: 2}).to_dict(), OptionError, "Thing: parts is {1: 2}"),
        (lambda: Thing(3, parts=Fraction(1, 2)).to_dict(), OptionError, "cannot hold"),
        (lambda: Thing(3, parts=float("nan")).to_dict(), OptionError, "cannot hold"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_can(
    make: Callable[[], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


def test_a_first_field_stands_for_the_value() -> None:
    assert Thing.of(3) == Thing(3)
    assert Holder(3) == Holder(thing=Thing(3)) == Holder({"size": 3}) == Holder({"kind": "THING", "size": 3})


def test_a_repr_has_neither_defaults_nor_secrets() -> None:
    assert repr(Thing(3)) == "Thing(3)"
    assert repr(Thing(3, columns=["x"], mode="fast")) == "Thing(3, columns=['x'], mode='fast')"
    assert repr(Holder(Thing(3), name="a")) == "Holder(Thing(3), name='a')"
    assert repr(Thing(3, token="hunter2", parts="s3://me:hunter2@bucket")) == "Thing(3, parts='s3://bucket')"
    assert Thing(3, token="hunter2").to_dict() == {"kind": "thing", "size": 3, "token": "hunter2"}


def test_a_number_of_another_type_is_the_default_too() -> None:
    assert repr(Weights(temperature=1)) == "Weights()"
    assert Weights(temperature=1) == Weights()
    assert Weights(temperature=1).given() == {}


def test_signatures_and_type_checkers_see_the_fields() -> None:
    assert str(inspect.signature(Thing)) == "(size, *, parts=None, columns=None, mode='slow', token='')"
    match Thing(3, mode="fast"):
        case Thing(size=size, mode="fast"):
            assert size == 3
        case _:
            pytest.fail("a value is matched by its fields")


VALUES: Mapping[str, type[Value]] = {
    name: kind
    for name in torch_dataloader_utils.__all__
    if isinstance(kind := getattr(torch_dataloader_utils, name), type) and issubclass(kind, Value)
}
SAMPLES: Mapping[type[Value], Value] = {
    Appended: Appended(7, until=9, replay=0.5),
    Delta: Delta("table/", version=3),
    Files: Files(["a/", "b.csv"], format="csv", partitioning=None),
    Follow: Follow(1, wait=0, replay=0.5),
    Hive: Hive("s3://b/t", schema={"year": "int16"}),
    Iceberg: Iceberg("db.t", ref="audit", follow=Follow(1), metadata_columns=["_file"]),
    Windows: Windows(24, order="at", by=["id"], pad={"x": 0}, gap="1h"),
    Buckets: Buckets(64, by="ids", long="drop"),
    Pack: Pack(2048, columns=["ids", "labels"], long="drop", pad={"labels": -100}),
    Cache: Cache("folder", max_bytes="1GiB"),
    Processes: Processes(False, context="fork"),
    torch_dataloader_utils.Codes: torch_dataloader_utils.Codes({"city": ["Oslo", "Lima"]}, unknown=-1),
    torch_dataloader_utils.Fill: torch_dataloader_utils.Fill({"age": 0, "c*": "none"}),
    torch_dataloader_utils.Padded: torch_dataloader_utils.Padded(-100, multiple=8),
    Sample: Sample(0.5, unit="file", seed=3),
    Subsets: Subsets({"train": 0.8, "val": 0.2}, by=["user"], seed=3),
    Rotate: Rotate(8, full_rotation=True),
    Shuffle: Shuffle("nearby", window_rows=100, open_splits=2),
    Strided: Strided("batch"),
    Mesh: Mesh(OneMesh(), dims=["data"]),
    Sync: Sync(4),
    Transform: Transform(len, rows="any", format="numpy"),
    Weights: Weights([(0, [1, 2]), (500, [2, 1])], at="row"),
}


@pytest.mark.parametrize("name", VALUES)
def test_each_value_of_the_package_keeps_the_rules(name: str) -> None:
    kind, sample = VALUES[name], SAMPLES[VALUES[name]]
    assert kind.__doc__
    assert all(field.doc and f"{field.name}: {field.doc}." in kind.__doc__ for field in kind.fields.values())
    assert [field.name for field in kind.fields.values() if field.by_position] == list(kind.fields)[:1]
    if kind in (Transform, Mesh):
        with pytest.raises(OptionError, match=rf"{name}: {next(iter(kind.fields))} is .*cannot hold"):
            sample.to_dict()
        assert pickle.loads(pickle.dumps(sample)) == sample
        return
    assert Value.from_dict(json.loads(json.dumps(sample.to_dict()))) == sample
    assert eval(repr(sample), {each.__name__: each for each in SAMPLES}) == pickle.loads(pickle.dumps(sample)) == sample


@pytest.mark.parametrize(
    "module", ["torch.utils.data", "pyarrow", "pyarrow.dataset", "fractions", "typing", "multiprocessing"]
)
def test_no_value_has_the_name_of_something_that_is_imported_beside_it(module: str) -> None:
    taken = dir(__import__(module, fromlist=["x"]))
    assert not [name for name in VALUES if name in taken]


def test_a_cache_is_a_folder_and_a_size() -> None:
    assert Cache("x") == Cache.of("x") == Cache.of({"folder": "x"})
    assert Cache("x").max_bytes == 10 * 2**30
    assert Cache("x", max_bytes="1GiB") == Cache("x", max_bytes=2**30) != Cache("x")
    assert Cache(os.curdir).folder == "."
    with pytest.raises(OptionError, match="Cache: max_bytes='1MiB': expected at least 16 MiB"):
        Cache("x", max_bytes="1MiB")
    with pytest.raises(OptionError, match="Cache: folder=3: expected a path"):
        Cache(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Files(3), "path=3: expected a path or URL, or a list of these"),
        (lambda: Files(["a", ""]), "path='': expected a path or URL"),
        (lambda: Iceberg("db.t", as_of="yesterday"), "as_of='yesterday': expected ISO form"),
        (lambda: Iceberg("db.t", as_of="2025-01-01"), "has no time zone"),
        (lambda: Delta("t", as_of=1.5), "as_of=1.5: expected a datetime"),
        (lambda: Delta("t", as_of=10**18), "expected a time between the years 1 and 9999"),
    ],
)
def test_paths_and_times_of_sources_are_checked_when_they_are_made(make: Callable[[], Value], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        make()
