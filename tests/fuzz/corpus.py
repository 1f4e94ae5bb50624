"""Small files of many shapes: each type, encoding, compression and layout that a mutation can damage."""

import bz2
import datetime
import gzip
import io
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tests.formats.avro_writing import write_avro

ROWS = 60
COMPRESSIONS = ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]
WHEN = datetime.datetime(2024, 1, 1, 12, 30, 0, 123456)

Files = Iterator[tuple[str, bytes]]  # names and contents


def _column(make: Callable[[int], object], kind: pa.DataType | None = None) -> pa.Array:
    """One value per row, every seventh of them null."""
    return pa.array([None if i % 7 == 0 else make(i) for i in range(ROWS)], kind)


TABLE = pa.table(
    {
        "i": _column(lambda i: i * 3),
        "f": _column(lambda i: i / 7),
        "b": _column(lambda i: i % 3 == 0),
        "s": _column(lambda i: f"text {i % 9}"),
        "l": _column(lambda i: [i, None]),
        "st": _column(lambda i: {"x": i, "y": str(i)}),
        "m": _column(lambda i: [(f"k{i}", i)], pa.map_(pa.string(), pa.int32())),
        "d": _column(lambda i: Decimal(i) / 100, pa.decimal128(10, 2)),
        "t": _column(lambda i: WHEN + datetime.timedelta(hours=i), pa.timestamp("us")),
    }
)
_FLAT = TABLE.select(["i", "f", "b", "s"])
_NANOS = TABLE.set_column(8, "t", TABLE["t"].cast(pa.timestamp("ns")))


def parquet_files() -> Files:
    """Files of pages of both versions, each compression and encoding, with and without an index and checksums."""
    plain = {"use_dictionary": False, "compression": "none"}
    for compression in COMPRESSIONS:
        yield f"{compression}.parquet", _parquet(TABLE, compression=compression)
    yield "plain.parquet", _parquet(TABLE, **plain)
    yield "flat.parquet", _parquet(_FLAT, **plain, store_schema=False)
    yield "pages-v2.parquet", _parquet(TABLE, compression="zstd", data_page_version="2.0", write_batch_size=4)
    yield "index.parquet", _parquet(TABLE, write_page_index=True, data_page_size=64, write_batch_size=4)
    encodings = {"DELTA_BINARY_PACKED": "i", "DELTA_LENGTH_BYTE_ARRAY": "s", "DELTA_BYTE_ARRAY": "s", "RLE": "b"}
    for encoding, name in encodings.items():
        yield f"{encoding}.parquet", _parquet(TABLE.select([name]), column_encoding=encoding, **plain)
    coded = TABLE["s"].dictionary_encode().combine_chunks()
    nested = pa.StructArray.from_arrays([coded], ["x"])
    dictionaries = pa.table({"i": TABLE["i"], "s": coded, "n": nested})
    # In one row group: pyarrow reads no dictionary in a struct from several at once.
    yield "dictionaries.parquet", _parquet(dictionaries, compression="none", row_group_size=1000)
    split = _parquet(TABLE.select(["f", "d"]), column_encoding="BYTE_STREAM_SPLIT", **plain)
    yield "BYTE_STREAM_SPLIT.parquet", split
    nanos = _NANOS.select(["t"])
    yield "int96.parquet", _parquet(nanos, use_deprecated_int96_timestamps=True)
    for version in ("1.0", "2.0"):
        checked = _parquet(TABLE, write_page_checksum=True, data_page_version=version)
        yield f"checksums-{version}.parquet", checked


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"row_group_size": 25, **options})
    content: bytes = sink.getvalue().to_pybytes()
    return content


def orc_files() -> Files:
    """Files of each compression, of one and of several stripes."""
    for compression in ("uncompressed", "snappy", "zlib", "zstd", "lz4"):
        sink = pa.BufferOutputStream()
        orc.write_table(_NANOS, sink, compression=compression)
        yield f"{compression}.orc", sink.getvalue().to_pybytes()
    sink = pa.BufferOutputStream()
    with orc.ORCWriter(sink, stripe_size=1, batch_size=25, dictionary_key_size_threshold=1.0) as writer:
        for start in range(0, ROWS, 25):
            writer.write(_NANOS.slice(start, 25))
    yield "stripes.orc", sink.getvalue().to_pybytes()


def ipc_files() -> Files:
    """Files and streams, with dictionaries, views and runs, compressed or not."""
    table = TABLE.append_column("dict", TABLE["s"].dictionary_encode())
    table = table.append_column("sv", pa.array(TABLE["s"].to_pylist(), pa.string_view()))
    table = table.append_column("ree", pc.run_end_encode(pa.array([7] * ROWS)))
    kinds = {"arrow": pa.ipc.new_file, "arrows": pa.ipc.new_stream}
    for compression in (None, "lz4", "zstd"):
        for suffix, kind in kinds.items():
            for shape, rows in {"all": table, "flat": _FLAT}.items():
                sink = pa.BufferOutputStream()
                with kind(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
                    writer.write_table(rows, max_chunksize=25)
                yield f"{shape}-{compression}.{suffix}", sink.getvalue().to_pybytes()


def avro_files(folder: Path) -> Files:
    """Files of each codec in blocks of 25 rows."""
    for codec in ("null", "deflate", "snappy", "zstandard", "bzip2"):
        path = folder / f"{codec}.avro"
        write_avro(TABLE, path, 25, codec)
        yield path.name, path.read_bytes()


_WORDS = ["plain", 'with, "quotes"', "", "ünïcode 漢字", "12", "2024-01-01", "true", "NaN", "1e5"]


def csv_files() -> Files:
    """Files with and without quotes, in several encodings and compressions."""
    lines = [f"{i},{i / 4},{i % 2 == 0},{_quoted(_WORDS[i % 9])},2024-01-{i % 28 + 1:02}" for i in range(40)]
    text = "\n".join(["i,f,b,s,d", *lines, ""])
    yield "quoted.csv", text.encode()
    yield "returns.csv", text.replace("\n", "\r\n").encode()
    yield "numbers.csv", b"".join([b"a,b\n", *(b"%d,%d\n" % (i, i * i) for i in range(40))])
    yield "tabs.tsv", b"a\tb\n1\tx\n2\t\n\n3\tz"
    yield "mark.csv", b"\xef\xbb\xbf" + text.encode()
    yield "packed.csv.gz", gzip.compress(text.encode(), mtime=0)
    yield "packed.csv.bz2", bz2.compress(text.encode())
    yield "packed.csv.zst", pa.compress(text.encode(), "zstd", asbytes=True)


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if set('",') & set(word) else word


def json_files() -> Files:
    """Lines, consecutive documents and arrays, flat and nested, compressed or not."""
    flat: list[dict[str, Any]] = [{"i": i, "f": i / 4, "s": _WORDS[i % 9], "b": i % 2 == 0} for i in range(30)]
    deep: list[dict[str, Any]] = [
        {"l": [i, i + 1], "st": {"x": i, "y": [{"z": str(i)}]}, "n": None, "e": []} for i in range(30)
    ]
    for shape, rows in {"flat": flat, "deep": deep}.items():
        lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
        yield f"{shape}.jsonl", lines
        yield f"{shape}.json", json.dumps(rows, indent=1).encode()
        yield f"{shape}.jsonl.gz", gzip.compress(lines, mtime=0)
    yield "documents.json", b"\n".join(json.dumps(row, indent=1).encode() for row in flat)


def read_avro(content: bytes) -> list[dict[str, Any]]:
    """The records of an Avro file, as fastavro has them."""
    import fastavro

    return list(fastavro.reader(io.BytesIO(content)))
