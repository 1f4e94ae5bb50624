"""Which strings and bytes are read as dictionaries: those of which that is asked, where a row group has few of them.

A writer gives up its dictionary where that grows too large, and stores the values themselves from there on. pyarrow
makes a dictionary of these, too, which takes longer than all else that is done with them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from torch_dataloader_utils.formats.parquet.guards import delta_strings, names_above
from torch_dataloader_utils.formats.parquet.pages import chunk_start
from torch_dataloader_utils.formats.parquet.thrift import fields, signed
from torch_dataloader_utils.storage import RemoteFile

_KINDS = (pa.string(), pa.binary())
_CODED = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_HEADER = 128  # bytes that hold the header of a dictionary page
_DICTIONARY = 7  # its field of a page header
_LEVELS = 0.75  # bytes that the levels of a value take at most, and what the runs of its number are coded in
_FEW_WORDS = 4  # bytes a value: two of a number, and two that its word adds
_PAGES = 1 << 16  # bytes of the headers of all pages of a chunk, about


def dictionary_leaves(metadata: pq.FileMetaData, wanted: pa.Schema) -> dict[str, int]:
    """The leaf column of each of the file's columns that is requested as dictionaries, or as lists of dictionaries."""
    depths = {item.name: depth for item in wanted if (depth := _depth(item.type)) is not None}
    if not depths:
        return {}
    below: dict[str, list[int]] = {}
    for leaf in range(metadata.num_columns):
        for name in depths.keys() & names_above(metadata.schema.column(leaf).path):
            below.setdefault(name, []).append(leaf)
    found = {name: leaves[0] for name, leaves in below.items() if len(leaves) == 1}
    delta = delta_strings(metadata, found)  # pyarrow cannot build dictionaries of these
    return {name: leaf for name, leaf in found.items() if name not in delta and _fits(metadata, leaf, depths[name])}


def _depth(kind: pa.DataType) -> int | None:
    """How many lists are around dictionaries of strings or bytes: 0 or 1; None for all else."""
    of_lists = pt.is_list(kind) or pt.is_large_list(kind)
    values = kind.value_type if of_lists else kind
    return int(of_lists) if pt.is_dictionary(values) and values.value_type in _KINDS else None


def _fits(metadata: pq.FileMetaData, leaf: int, depth: int) -> bool:
    column = metadata.schema.column(leaf)
    return bool(column.physical_type == "BYTE_ARRAY" and column.max_repetition_level == depth)


def columns_of_few_words(metadata: pq.FileMetaData, number: int) -> set[str]:
    """The flat columns of strings or bytes that take up to four bytes a value in a row group.

    Of plain values each takes more, so these are numbers of words, and the words are few.
    """
    group, found = metadata.row_group(number), set()
    for leaf in range(metadata.num_columns):
        chunk, column = group.column(leaf), metadata.schema.column(leaf)
        flat = column.physical_type == "BYTE_ARRAY" and column.path == column.name
        if flat and chunk.total_uncompressed_size <= _FEW_WORDS * chunk.num_values:
            found.add(column.name)
    return found


def holds_codes(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, in_lists: bool) -> bool:
    """Whether a chunk has few words in its dictionary, and numbers of these words alone.

    Few are half as many as values; in lists an eighth, because dictionaries of lists take pyarrow longer.

    Args:
        source: the file; of a remote one, bytes that are not at hand are not fetched.
        chunk: of strings or bytes.
        in_lists: whether these are in lists.
    """
    if _CODED.isdisjoint(chunk.encodings):
        return False
    start, size = chunk_start(chunk), min(_HEADER, chunk.total_compressed_size)
    data = source.peek(start, size) if isinstance(source, RemoteFile) else source.read_at(size, start)
    try:
        header = {number: at for number, _, at in fields(data, 0)}
        inner = {number: at for number, _, at in fields(data, header[_DICTIONARY])}
        words, room = signed(data, inner[1]), signed(data, header[2])
    except (ValueError, LookupError):  # it is not at hand, or damaged, which its decoder finds
        return True
    bits = max(words - 1, 1).bit_length()
    numbers = chunk.num_values * (bits / 8 + _LEVELS) + _PAGES
    most = chunk.num_values // (8 if in_lists else 2)
    return bool(words <= most and chunk.total_uncompressed_size - room <= numbers)
