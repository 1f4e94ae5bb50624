"""A fitted `Preprocess` as files: one of JSON, and beside it one of Parquet for each large vocabulary."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.preprocess.encoding import encoded, python_type
from torch_dataloader_utils.preprocess.fit_state import StateParts
from torch_dataloader_utils.preprocess.fitted import FittedOutput
from torch_dataloader_utils.preprocess.transforms import HELD, Categorize, ColumnTransform, Cross
from torch_dataloader_utils.printing import in_bytes
from torch_dataloader_utils.redaction import printable

FORMAT = "torch_dataloader_utils.preprocess"
VERSION = 1
MOST_JSON = 64 << 20  # bytes
_INLINE = 1000  # values of a vocabulary that stand in the JSON itself,
_INLINE_BYTES = 256 << 10  # and what they may take there
_LONGEST_PART = 60  # characters of an output's name in that of its file: names of files have a limit


def save(
    path: str,
    options: Mapping[str, Any],
    outputs: Sequence[FittedOutput],
    facts: Mapping[str, Any],
    state: StateParts,
) -> None:
    """Write what was fitted: vocabularies first, the JSON last, so that a reader finds all of it or the one before.

    Args:
        path: of the JSON file.
        options: `storage_options` of its store, if it needs any.
        outputs: what was fitted.
        facts: what else stands in the JSON.
        state: what an update goes on from.

    Raises:
        OptionError: the path is that of a folder, or what was fitted has no form in JSON, or takes more than 64 MiB.
    """
    # Not at the top, because loading a JSON needs no pyarrow.
    from torch_dataloader_utils.storage import open_storage

    storage, place = open_storage(path, options)
    parent, name = posixpath.split(place)
    if not name or str(path).endswith("/"):
        raise OptionError(f"save({printable(str(path))!r}): expected the path of a file, such as 'prep.json'.")
    files: dict[str, bytes] = {}
    stem = name.removesuffix(".json")
    inputs = {column: type_.text for each in outputs for column, type_ in each.inputs.items()}
    made = [{**_output(each, stem, files), **_own_types(each, inputs)} for each in outputs]
    for each, counted in zip(made, state.plain, strict=bool(state.plain)):
        each |= {} if counted is None else {"counted": counted}
    content = {
        "format": FORMAT,
        "version": VERSION,
        **facts,
        "inputs": inputs,
        "outputs": made,
        "state": _state(state, stem, files),
        "files": {file: [len(data), digest_of_bytes(data)] for file, data in files.items()},
    }
    text = json.dumps({**content, "checksum": checksum_of(content)}, indent=1, ensure_ascii=False, allow_nan=False)
    data = text.encode()
    if len(data) > MOST_JSON:
        raise OptionError(f"save(): the JSON would have {in_bytes(len(data))}; {in_bytes(MOST_JSON)} is the limit.")
    for file, part in [*files.items(), (name, data)]:
        storage.write(posixpath.join(parent, file), part)


def checksum_of(content: Mapping[str, Any]) -> str:
    """By which an edit of the JSON is found, but not another layout: of all that it holds but this."""
    plain = {name: value for name, value in content.items() if name != "checksum"}
    return digest_of_bytes(json.dumps(plain, sort_keys=True, allow_nan=False).encode())


def digest_of_bytes(data: bytes) -> str:
    """By which a file beside the JSON is known again."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _state(state: StateParts, stem: str, files: dict[str, bytes]) -> dict[str, Any]:
    """Where the rest of what was counted is; adds its file."""
    if state.absent:
        return {"absent": state.absent}
    return {"file": None if state.data is None else _beside(stem, "state", state.data, files)}


def _beside(stem: str, of: str, data: bytes, files: dict[str, bytes]) -> str:
    """The name of a file beside the JSON, which is added to the files."""
    safe = "".join(sign if sign.isalnum() or sign in "-_" else "_" for sign in of)
    name = f"{stem}.{safe[:_LONGEST_PART]}.{digest_of_bytes(data)[:8]}.parquet"
    files[name] = data
    return name


def _output(each: FittedOutput, stem: str, files: dict[str, bytes]) -> dict[str, Any]:
    """An output with what it learned; adds the files that its vocabularies become."""
    fitted = []
    for learned in each.fitted:
        # What an `OwnTransform` has learned is what JSON holds.
        plain = {n: value if n == "own" else encoded(value) for n, value in learned.items() if n not in HELD}
        if "vocabulary" in learned:
            plain["vocabulary"] = _vocabulary(each.output.name, stem, learned, files)
        fitted.append(plain)
    chain = [_link(link) for link in each.output.chain]
    return {"name": each.output.name, "columns": list(each.output.columns), "chain": chain, "fitted": fitted}


def _own_types(each: FittedOutput, inputs: Mapping[str, str]) -> dict[str, Any]:
    """The types that an output takes some columns to have, where others differ: those of nothing but nulls."""
    own = {column: type_.text for column, type_ in each.inputs.items() if type_.text != inputs[column]}
    return {"types": own} if own else {}


def _link(link: ColumnTransform) -> dict[str, Any]:
    kind = type(link).__name__.lower()
    if isinstance(link, Cross):
        return {"kind": kind, "of": _link(link.of)}
    if isinstance(link, Categorize):
        link = link.replace(values=None)  # they are its vocabulary
    return {"kind": kind, **{name: encoded(value) for name, value in link.given().items()}}


def _vocabulary(output: str, stem: str, learned: Mapping[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
    vocabulary, counts, encoding = learned["vocabulary"], learned.get("counts"), learned.get("encoding")
    made: dict[str, Any] = {"type": vocabulary.type}
    if encoding is not None:
        made |= {"folds": encoding.shape[1] - 1, "others": encoding[-2:].tolist()}  # of unseen values and null
        encoding = encoding[:-2]
    if len(vocabulary) <= _INLINE and python_type(vocabulary.type) is not None:
        inline = {**made, "values": encoded(vocabulary.values)}
        if counts is not None:
            inline["counts"] = [int(count) for count in counts]
        if encoding is not None:
            inline["encoding"] = encoding.tolist()
        if len(json.dumps(inline)) <= _INLINE_BYTES:
            return inline
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"value": vocabulary.array, "id": pa.array(np.arange(len(vocabulary)))}
    if counts is not None:
        columns["count"] = pa.array(np.asarray(counts, np.int64))
    if encoding is not None:
        flat = encoding.reshape(len(encoding), -1)
        columns["encoding"] = pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return {**made, "file": _beside(stem, output, sink.getvalue().to_pybytes(), files)}
