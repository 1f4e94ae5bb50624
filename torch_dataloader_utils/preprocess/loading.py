"""A saved `Preprocess`, read and checked; nothing in it is executed.

Kinds of transforms are looked up among those that the program has defined, their options pass the checks of their
constructors, and a file beside the JSON is read only if its size and digest are those that were saved.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import DataLoaderUtilsError, SavedPreprocessError
from torch_dataloader_utils.preprocess.encoding import decoded
from torch_dataloader_utils.preprocess.fitted import FittedOutput, Vocabulary
from torch_dataloader_utils.preprocess.kinds import ColumnKind, ColumnType
from torch_dataloader_utils.preprocess.saving import FORMAT, VERSION, digest_of_bytes
from torch_dataloader_utils.preprocess.spec import OutputSpec, check_kinds
from torch_dataloader_utils.preprocess.target import SeenRows
from torch_dataloader_utils.preprocess.transforms import ColumnTransform, Cross
from torch_dataloader_utils.printing import in_bytes
from torch_dataloader_utils.redaction import printable
from torch_dataloader_utils.values import one_of

_MOST_JSON = 64 << 20  # bytes
_WRONG = (DataLoaderUtilsError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)


class Loading:
    """Reads one; whatever is wrong with it is an error that names the file and the remedy.

    Args:
        path: of the JSON file.
        options: `storage_options` of its store, if it needs any.
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path, self._options = path, options

    def read(self) -> tuple[list[FittedOutput], dict[str, Any]]:
        """The outputs, and the content of the JSON.

        Raises:
            SavedPreprocessError: the file is missing, damaged, edited, newer or none that was saved.
        """
        content = self._content()
        try:
            return self._outputs(content), content
        except SavedPreprocessError:
            raise
        except _WRONG as error:
            raise self._error(
                f"it does not hold what was saved ({type(error).__name__}: {error}). Undo the edit, or save it again"
            ) from error

    def check_digests(self, found: Mapping[str, str], saved: Mapping[str, Any]) -> None:
        """Check that what was read is what was saved.

        Raises:
            SavedPreprocessError: it was edited.
        """
        if found != {name: text for name, text in saved.items() if name.endswith("digest")}:
            raise self._error(
                "it was edited after it was saved: its digest does not match. Fit it again, and save that"
            )

    def _error(self, problem: str) -> SavedPreprocessError:
        return SavedPreprocessError(f"{printable(self._path)}: {problem}.")

    def _content(self) -> dict[str, Any]:
        data = self._bytes(self._path, _MOST_JSON)
        if data is None:
            raise self._error("there is no such file. Preprocess.save(path) writes one")
        if len(data) > _MOST_JSON:
            raise self._error(f"it has more than {in_bytes(_MOST_JSON)}: it is no saved Preprocess")
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self._error("it is no saved Preprocess, or is damaged: it is not JSON") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise self._error("it is no saved Preprocess. Preprocess.save(path) writes one")
        version = content.get("version")
        if type(version) is not int or version < 1:
            raise self._error("it is damaged: it has no version")
        if version > VERSION:
            raise self._error(
                f"a newer torch-dataloader-utils saved it (format {version}; this one reads up to {VERSION}). Install "
                "a newer one"
            )
        return content

    def _bytes(self, path: str, most: int) -> bytes | None:
        """The bytes of a file, up to one more than `most`; None if there is no file."""
        if "://" not in path:  # without pyarrow, which the storage needs
            try:
                with Path(path).open("rb") as file:
                    return file.read(most + 1)
            except FileNotFoundError:
                return None
        from torch_dataloader_utils.storage import Naming, open_storage

        storage, place = open_storage(path, self._options)
        stored = storage.look(place)
        if stored is None or stored.folder:
            return None
        with Naming(place), storage.open(place) as source:
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
        if "files" in content["fitted_on"]:
            SeenRows.from_json(content["fitted_on"]["files"])
        return outputs

    def _output(
        self, saved: Mapping[str, Any], inputs: Mapping[str, ColumnType], dtype: str, files: Mapping[str, Any]
    ) -> FittedOutput:
        chain = tuple(self._transform(link) for link in saved["chain"])
        output = OutputSpec(saved["name"], tuple(saved["columns"]), chain)
        crossed = bool(chain) and isinstance(chain[-1], Cross)
        if not isinstance(output.name, str) or not chain or (len(output.columns) > 1) != crossed or not output.columns:
            raise ValueError("an output without a name, a column or a transform")
        if any(link.ends for link in chain[:-1]):
            raise ValueError(f"output {output.name!r} goes on behind its end")
        types = tuple(inputs[column] for column in output.columns + output.by)
        check_kinds(output, [inputs[column].kind for column in output.columns])
        fitted = tuple(self._fitted(link, each, files) for link, each in zip(chain, saved["fitted"], strict=True))
        return FittedOutput(output, types, fitted, dtype)

    def _transform(self, saved: Mapping[str, Any]) -> ColumnTransform:
        given = {name: decoded(value) for name, value in saved.items() if name not in ("kind", "of")}
        if "of" in saved:
            given["of"] = self._transform(saved["of"])
        try:
            return ColumnTransform.from_dict({"kind": saved["kind"], **given})
        except DataLoaderUtilsError as error:
            raise self._error(
                f"this program has no transform {saved['kind']!r} as it was saved ({error}) Import the module that "
                "defines it before, or install the version that saved it"
            ) from error

    def _fitted(self, link: ColumnTransform, saved: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        made = {name: decoded(value) for name, value in saved.items() if name != "vocabulary"}
        if "vocabulary" in saved:
            made |= _encoded(saved["vocabulary"], self._vocabulary(saved["vocabulary"], files))
        link.check_fitted(made)
        return made

    def _vocabulary(self, saved: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        if "file" in saved:
            return self._in_file(saved["file"], saved["type"], files)
        values = decoded(saved["values"])
        if None in values or len(set(values)) < len(values):
            raise ValueError("a vocabulary holds a null, or a value twice")
        made: dict[str, Any] = {"vocabulary": Vocabulary(saved["type"], values)}
        if "encoding" in saved:
            made["encoding"] = np.array(saved["encoding"], np.float64)
        if "counts" not in saved:
            return made
        counts = np.array(saved["counts"], np.int64)
        if counts.shape != (len(values),) or (counts < 1).any():
            raise ValueError("a vocabulary has other counts than values")
        return {**made, "counts": counts}

    def _in_file(self, name: str, type_: str, files: Mapping[str, Any]) -> dict[str, Any]:
        """The vocabulary in a file beside the JSON, which is parsed only if its bytes are those that were saved."""
        size, digest = files[name]
        if type(size) is not int or posixpath.basename(name) != name or set(name) & set("\\/:") or name in (".", ".."):
            raise ValueError(f"{name!r} is no name of a file beside it")
        folder = posixpath.dirname(self._path) if "://" in self._path else os.path.dirname(self._path)
        data = self._bytes(posixpath.join(folder, name) if folder else name, size)
        if data is None:
            raise self._error(f"the file {name!r} is missing beside it: copy it there, too, or save it again")
        if len(data) != size or digest_of_bytes(data) != digest:
            raise self._error(f"the file {name!r} beside it is not the one that was saved with it: save it again")
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(pa.BufferReader(data))
        values = table.column("value").combine_chunks()
        if str(values.type) != type_ or values.null_count or len(values.unique()) < len(values):
            raise ValueError(f"the vocabulary in {name!r} holds a null, or a value twice, or is of another type")
        if not np.array_equal(table.column("id").to_numpy(), np.arange(len(table))):
            raise ValueError(f"the vocabulary in {name!r} is in another order")
        found: dict[str, Any] = {"vocabulary": Vocabulary(type_, array=values)}
        if "encoding" in table.column_names:
            found["encoding"] = table.column("encoding").combine_chunks().flatten().to_numpy()
        return {**found, "counts": table.column("count").to_numpy()} if "count" in table.column_names else found


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
    zone = values.partition(", tz=")[2].removesuffix("]") or None
    kind = "zoned" if zone is not None else _KINDS.get(values)
    if kind is None:
        raise ValueError(f"the type {text!r}")
    return ColumnType(text, ColumnKind(kind, nested), zone)


_KINDS = {
    "int64": "number",
    "double": "number",
    "bool": "number",
    "string": "text",
    "binary": "bytes",
    "date32[day]": "date",
    "time64[us]": "time",
    "timestamp[us]": "timestamp",
    "null": "other",
}
