"""A saved `Preprocess`, read and checked; nothing in it is executed.

Kinds of transforms are looked up among those that the program has defined, their options pass the checks of their
constructors, and a file beside the JSON is read only if its size and digest are those that were saved.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import SavedPreprocessError
from torch_dataloader_utils.preprocess.counted import Counted
from torch_dataloader_utils.preprocess.digest import digest_of
from torch_dataloader_utils.preprocess.encoding import decoded, python_type
from torch_dataloader_utils.preprocess.fit_state import ABSENT, EARLIER, FitState, NoFitState, StateParts
from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary
from torch_dataloader_utils.preprocess.kinds import ColumnKind, ColumnType
from torch_dataloader_utils.preprocess.one_value import checked
from torch_dataloader_utils.preprocess.own import OwnTransform
from torch_dataloader_utils.preprocess.saving import FORMAT, MOST_JSON, VERSION, checksum_of, digest_of_bytes
from torch_dataloader_utils.preprocess.spec import OutputSpec, check_kinds
from torch_dataloader_utils.preprocess.target import SeenRows, TargetEncode, class_names
from torch_dataloader_utils.preprocess.transforms import (
    ColumnTransform,
    Cross,
    Drop,
    IdTransform,
    Impute,
    NumberTransform,
)
from torch_dataloader_utils.preprocess.zones import zone_named
from torch_dataloader_utils.printing import in_bytes, shown
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.values import kind_named, one_of, whole, word

_NO_LINKS = (ColumnTransform, NumberTransform, IdTransform, OwnTransform, Drop)  # kinds that nothing is made of
_AGAIN = "Undo the change, or fit it again and save that"


class Loading:
    """Reads one; whatever is wrong with it is an error that names the file and the remedy.

    Args:
        path: of the JSON file.
        options: `storage_options` of its store, if it needs any.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path, self._options = path, options
        self._storage, self._place = None, os.path.expanduser(path)
        if "://" in path:  # the local disk is read without pyarrow, which the storage needs
            from torch_dataloader_utils.storage import open_storage

            self._storage, self._place = open_storage(path, options)

    def read(self) -> tuple[list[FittedOutput], dict[str, Any]]:
        """The outputs, and the content of the JSON.

        Raises:
            SavedPreprocessError: the file is missing, damaged, edited, newer or none that was saved.
        """
        content = self._content()
        try:
            if content.get("checksum") != checksum_of(content):
                raise self._error(f"it was changed after it was saved: its checksum does not match. {_AGAIN}")
            outputs = self._outputs(content)
            if digest_of(outputs, content["options"]["dtype"]) != content["digest"]:
                raise self._error(f"it was changed after it was saved: its digest does not match. {_AGAIN}")
        except SavedPreprocessError:
            raise
        except Exception as error:  # whatever a file leads to that `save` did not write
            raise self._error(f"it does not hold what was saved ({type(error).__name__}: {error}). {_AGAIN}") from error
        return outputs, content

    def state(self, outputs: Sequence[FittedOutput], content: Mapping[str, Any]) -> FitState:
        """What was counted for the outputs that were read; nothing of it is read yet."""
        saved = content.get("state", {"absent": EARLIER})
        if "absent" in saved:
            return NoFitState(saved["absent"])
        return SavedFitState(self._path, self._options, outputs, content)

    def _error(self, problem: str) -> SavedPreprocessError:
        return SavedPreprocessError(f"{printable(self._path)}: {problem}.")

    def _content(self) -> dict[str, Any]:
        data = self._bytes(self._place, MOST_JSON)
        if data is None:
            raise self._error("there is no such file. Preprocess.save(path) writes one")
        if len(data) > MOST_JSON:
            raise self._error(
                f"it is none, as it has more than {in_bytes(MOST_JSON)}. Preprocess.save(path) writes one"
            )
        try:
            content = json.loads(data, parse_constant=_refused)
        except (ValueError, RecursionError) as error:
            raise self._error(
                f"it is not a saved Preprocess, or is damaged: it is not JSON ({type(error).__name__}: {error}). Save "
                "it again, or copy it again from where it was saved"
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise self._error("it is not a saved Preprocess. Preprocess.save(path) writes one")
        version = content.get("version")
        if type(version) is not int or version < 1:
            raise self._error(f"it is damaged: it has no version. {_AGAIN}")
        if version > VERSION:
            raise self._error(
                f"a newer torch-dataloader-utils saved it (format {version}; this one reads up to {VERSION}). Install "
                "a newer one"
            )
        return content

    def _bytes(self, place: str, most: int) -> bytes | None:
        """The bytes of a file, up to one more than `most`; None if there is no file."""
        try:
            if self._storage is None:
                with Path(place).open("rb") as file:
                    return file.read(most + 1)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._error(
                f"it cannot be read ({type(error).__name__}: {error}). Give the path of a file"
            ) from error
        from torch_dataloader_utils.storage import Naming

        stored = self._storage.look(place)
        if stored is None or stored.folder:
            return None
        with Naming(place), self._storage.open(place) as source:
            data: bytes = source.read(most + 1)
            return data

    def _outputs(self, content: Mapping[str, Any]) -> list[FittedOutput]:
        dtype = one_of("float32", "float64")("dtype", content["options"]["dtype"])
        inputs = {column: _column_type(text) for column, text in content["inputs"].items()}
        outputs = [self._output(saved, inputs, dtype, content["files"]) for saved in content["outputs"]]
        names = [name for each in outputs for name in each.names]
        if not names or len(set(names)) < len(names):
            raise ValueError("two outputs have one name, or there is none")
        rows = content["fitted_on"]["rows"]
        if type(rows) is not int or rows < 0:
            raise ValueError(f"{rows!r} rows")
        for seen in content["fitted_on"].get("files", ()):
            SeenRows.from_json(seen)
        _check_growth(content)
        return outputs

    def _output(
        self, saved: Mapping[str, Any], inputs: Mapping[str, ColumnType], dtype: str, files: Mapping[str, Any]
    ) -> FittedOutput:
        chain = tuple(self._transform(link) for link in saved["chain"])
        output = OutputSpec(saved["name"], tuple(saved["columns"]), chain)
        crossed = bool(chain) and isinstance(chain[-1], Cross)
        for name in (output.name, *output.columns):
            word("name", name)
        if not chain or (len(output.columns) > 1) != crossed or not output.columns:
            raise ValueError("an output without a column or a transform")
        if any(link.ends for link in chain[:-1]):
            raise ValueError(f"output {output.name!r} goes on behind its end")
        inputs = {**inputs, **{column: _column_type(text) for column, text in saved.get("types", {}).items()}}
        types = tuple(inputs[column] for column in output.columns)
        check_kinds(output, [type_.kind for type_ in types])
        fitted = tuple(self._fitted(link, each, files) for link, each in zip(chain, saved["fitted"], strict=True))
        made = FittedOutput(output, types, fitted, dtype, tuple(inputs[column] for column in output.by))
        _check_fitted(made)
        return made

    def _transform(self, saved: Mapping[str, Any]) -> ColumnTransform:
        given = {name: decoded(value) for name, value in saved.items() if name not in ("kind", "of")}
        if "of" in saved:
            given["of"] = self._transform(saved["of"])
        kind = saved["kind"]
        try:
            known = kind_named(kind)
        except KeyError as error:
            raise self._error(
                f"this program has no transform {shown(kind)}. Import the module that defines it before, or install "
                "the version of torch-dataloader-utils that saved it"
            ) from error
        if known in _NO_LINKS:
            raise ValueError(f"nothing is made by {kind!r}")
        return ColumnTransform.from_dict({"kind": kind, **given})

    def _fitted(self, link: ColumnTransform, saved: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        made = {
            name: value if name == "own" else decoded(value) for name, value in saved.items() if name != "vocabulary"
        }
        if "vocabulary" in saved:
            made |= _encoded(saved["vocabulary"], self._vocabulary(saved["vocabulary"], files))
        link.check_fitted(made)
        return made

    def _vocabulary(self, saved: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        if "file" in saved:
            return self._in_file(saved["file"], saved["type"], files)
        type_, values = saved["type"], decoded(saved["values"])
        expected, zone = python_type(type_), _column_type(type_).zone
        if expected is None or any(type(value) is not expected for value in values):
            raise ValueError(f"a vocabulary holds other values than {type_}")
        if expected is int:
            check = whole(0, 2**64 - 1) if type_ == "uint64" else whole(-(2**63))
            values = [check("a value", value) for value in values]
        if expected is datetime and any((value.utcoffset() is None) != (zone is None) for value in values):
            raise ValueError("a vocabulary holds times with and without a zone")
        if zone is not None:
            values = [value.astimezone(zone_named(zone)) for value in values]
        vocabulary = Vocabulary(type_, values)
        if len(set(vocabulary.keys)) < len(values):
            raise ValueError("a vocabulary holds a value twice")
        made: dict[str, Any] = {"vocabulary": vocabulary}
        if "encoding" in saved:
            made["encoding"] = np.array(saved["encoding"], np.float64)
        if "counts" not in saved:
            return made
        counts = saved["counts"]
        if len(counts) != len(values) or any(type(count) is not int or count < 0 for count in counts):
            raise ValueError("a vocabulary has other counts than values")
        return {**made, "counts": np.array(counts, np.int64)}

    def beside(self, name: str, files: Mapping[str, Any]) -> bytes:
        """The bytes of a file beside the JSON, if they are those that were saved.

        Raises:
            SavedPreprocessError: it is missing, or another one.
        """
        size, digest = files[name]
        if type(size) is not int or not name.endswith(".parquet") or set(name) & set("\\/:\0"):
            raise ValueError(f"{name!r} is no name of a file beside it")
        path = posixpath if self._storage is not None else os.path
        data = self._bytes(path.join(path.dirname(self._place), name), size)
        if data is None:
            raise self._error(f"the file {name!r} is missing beside it: copy it there, too, or save it again")
        if len(data) != size or digest_of_bytes(data) != digest:
            raise self._error(
                f"the file {name!r} beside it is not the one that was saved with it: copy that one there, or save it "
                "again"
            )
        return data

    def _in_file(self, name: str, type_: str, files: Mapping[str, Any]) -> dict[str, Any]:
        """The vocabulary in a file beside the JSON."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(pa.BufferReader(self.beside(name, files)))
        values = table.column("value").combine_chunks()
        if str(values.type) != type_ or values.null_count or len(values.unique()) < len(values):
            raise ValueError(f"the vocabulary in {name!r} holds a null, or a value twice, or is of another type")
        if not np.array_equal(table.column("id").to_numpy(), np.arange(len(table))):
            raise ValueError(f"the vocabulary in {name!r} is in another order")
        found: dict[str, Any] = {"vocabulary": Vocabulary(type_, array=values)}
        if "encoding" in table.column_names:
            found["encoding"] = table.column("encoding").combine_chunks().flatten().to_numpy()
        if "count" not in table.column_names:
            return found
        counts = table.column("count").to_numpy()
        if counts.dtype != np.int64 or (counts < 0).any():
            raise ValueError(f"the vocabulary in {name!r} has counts that are none")
        return {**found, "counts": counts}


class SavedFitState(FitState):
    """What was saved; read if an update asks for it.

    Args:
        path: of the JSON file.
        options: `storage_options` of its store, if it needs any; they are never pickled.
        outputs: as they were saved.
        content: of the JSON.
    """

    def __init__(
        self, path: str, options: Mapping[str, Any], outputs: Sequence[FittedOutput], content: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self._path, self._options, self._outputs = path, options, outputs
        self._content = {name: content[name] for name in ("state", "files", "digest")}
        self._plain = [saved.get("counted") for saved in content["outputs"]]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_options": {}}

    def __deepcopy__(self, memo: object) -> SavedFitState:
        return self

    def read(self, *, whole: bool = True) -> tuple[Counted | None, ...]:
        """See `FitState`."""
        from torch_dataloader_utils.preprocess.state_file import read_counted

        with self._naming():
            return read_counted(self._outputs, self._plain, self._data() if whole else None, whole=whole)

    def parts(self) -> StateParts:
        """See `FitState`."""
        with self._naming():
            return StateParts(self._plain, self._data())

    def _data(self) -> bytes | None:
        name = self._content["state"]["file"]
        return None if name is None else Loading(self._path, self._options).beside(name, self._content["files"])

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """A context in which whatever a file leads to that `save` did not write is an error that names it."""
        try:
            yield
        except SavedPreprocessError:
            raise
        except Exception as error:
            raise SavedPreprocessError(
                f"{printable(self._path)}: what was counted is damaged ({type(error).__name__}: {error}). Load it from "
                "where it was saved, or fit all rows anew and save that."
            ) from error


def _check_growth(content: Mapping[str, Any]) -> None:
    """Check what is said of updates, and where what they go on from is.

    Raises:
        ValueError: `save` never writes this.
    """
    generation, parents = content.get("generation", 0), content.get("parents", [])
    if type(generation) is not int or generation < 0 or not isinstance(parents, list) or len(parents) > generation:
        raise ValueError("an update without a digest before it")
    if not all(isinstance(each, str) and re.fullmatch("[0-9a-f]{32}", each) for each in parents):
        raise ValueError("a digest before an update is none")
    state = content.get("state", {"absent": EARLIER})
    known = state.get("absent") in ABSENT if "absent" in state else state["file"] in (None, *content["files"])
    if not known:
        raise ValueError("what was counted is nowhere")


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _check_fitted(each: FittedOutput) -> None:
    """Check that what was learned is of the kind of the column; other checks are those of each link alone."""
    last, kind, learned = each.last, each.kinds[0].values, each.fitted[-1]
    if "vocabulary" in learned:
        vocabulary = learned["vocabulary"]
        expected = "number" if isinstance(last, Cross) else kind
        if _column_type(vocabulary.type).kind != ColumnKind(expected):
            raise ValueError(f"values of {kind} are looked up in a vocabulary of {vocabulary.type}")
        null = learned.get("null", 0)
        if null is None or null > len(vocabulary):
            raise ValueError("null has no such place in the vocabulary")
        if "null" in learned and (each.categories is None or each.categories.nulls == "missing"):
            raise ValueError("null cannot be a category")
    if isinstance(last, TargetEncode):
        shape, outputs = learned["encoding"].shape, len(class_names(each.output.name, learned["classes"]))
        if shape != (len(learned["vocabulary"]) + 2, 1 + last.folds, outputs):
            raise ValueError(f"a target encoding has the shape {shape}")
    for link, fitted in zip(each.output.chain, each.fitted, strict=True):
        if isinstance(link, Impute):
            value = link.fill_of(fitted)
            if each.output.numeric:
                float(value)
            else:
                checked(each.types[0], each.output.columns[0], ids=False)(value)
    for name in (getattr(last, "zone", None), *(type_.zone for type_ in each.inputs.values())):
        if name is not None:
            zone_named(name)


def _encoded(saved: Mapping[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """What was read of a vocabulary, with what its values, unseen ones and null become, if a target was encoded.

    Raises:
        ValueError: they are not as many.
    """
    if "encoding" not in made:
        return made
    others, folds = np.array(saved["others"], np.float64), saved["folds"]
    if type(folds) is not int or others.ndim != 3 or others.shape[:2] != (2, 1 + folds):
        raise ValueError("a target encoding has no rows for unseen values and null")
    values = made["encoding"].reshape(len(made["vocabulary"]), *others.shape[1:])
    return {**made, "encoding": np.concatenate([values, others])}


def _column_type(text: str) -> ColumnType:
    """The type of a column with this name.

    Raises:
        ValueError: it is none that is saved.
    """
    nested, values = "", text
    if text.startswith(("list<item: ", "large_list<item: ", "fixed_size_list<item: ")):
        nested = "fixed" if text.startswith("fixed") else "list"
        values = text.partition("<item: ")[2].rpartition(">")[0]
    unit, _, rest = values.partition(", tz=")
    zone = rest.removesuffix("]") or None
    kind = _KINDS.get(values) if zone is None else "zoned" if f"{unit}]" in _KINDS else None
    if kind is None:
        raise ValueError(f"the type {text!r}")
    return ColumnType(text, ColumnKind(kind, nested), zone)


_KINDS = {
    "int64": "number",
    "double": "number",
    "bool": "number",
    "uint64": "number",
    "string": "text",
    "large_string": "text",
    "binary": "bytes",
    "large_binary": "bytes",
    "date32[day]": "date",
    "time64[us]": "time",
    "timestamp[us]": "timestamp",
    "timestamp[s]": "timestamp",
    "timestamp[ms]": "timestamp",
    "timestamp[ns]": "timestamp",
    "null": "other",
}
