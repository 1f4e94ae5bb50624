"""The loaders of the race: what to install for each, and what it can do."""

from __future__ import annotations

from dataclasses import dataclass

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Peer:
    """A loader.

    Attributes:
        name: of its module in `loaders`, and of its environment.
        label: as in tables.
        requirements: what pip installs; the version of the first (of `alone`, if given) is shown.
        alone: what is installed afterwards without what it requires, because that excludes a current torch.
        processes: whether it can use worker processes.
        shuffles: whether it can shuffle rows.
        tables: those that it can read; None for all.
        own_format: whether it reads a format of its own, into which the table is written beforehand.
        note: what a reader of the figures must know.
        decodes: whether it only decodes and discards; raced on request, to compare decoders.
    """

    name: str
    label: str
    requirements: tuple[str, ...]
    alone: tuple[str, ...] = ()
    processes: bool = True
    shuffles: bool = True
    tables: tuple[str, ...] | None = None
    own_format: bool = False
    note: str = ""
    decodes: bool = False


FLAT = ("wide", "narrow")

PEERS = {
    peer.name: peer
    for peer in (
        Peer("limit", "LIMIT", (), processes=False, shuffles=False, note="decodes on all cores and discards"),
        Peer("ours", "torch-dataloader-utils, this version", (), note="strings as bytes; threads, or worker processes"),
        Peer("hand_written", "hand-written `IterableDataset`", ()),
        Peer("tdu_020", "torch-dataloader-utils", ("torch-dataloader-utils==0.2.0", TORCH)),
        Peer("hf_batched", "HF datasets, batched", ("datasets==5.2.0", "numpy", TORCH)),
        Peer("hf_rows", "HF datasets, by row", ("datasets==5.2.0", "numpy", TORCH)),
        Peer("polars_scan", "Polars", ("polars==2.1.0", "pyarrow==26.0.1", "numpy", TORCH), processes=False),
        Peer(
            "torchdata_nodes",
            "torchdata.nodes",
            ("torchdata==0.11.0", "pyarrow==26.0.1", "numpy", TORCH),
            processes=False,
        ),
        Peer("ray_data", "Ray Data", ("ray[data]==2.60.0", "pydantic", "fsspec[http]", TORCH), processes=False),
        Peer("daft_arrow", "Daft", ("daft==0.7.26", "pyarrow", "numpy", TORCH), processes=False),
        Peer("lance", "Lance", ("pylance==14.0.2", "pyarrow==26.0.1", "numpy", TORCH), own_format=True),
        Peer("litdata_parquet", "LitData", ("litdata==0.2.76", "polars==2.1.0", "pyarrow==26.0.1", "numpy", TORCH)),
        Peer(
            "mosaic",
            "MosaicML Streaming",
            ("mosaicml-streaming==0.13.0", "pyarrow==26.0.1", "numpy", TORCH),
            own_format=True,
            note="of the first rows only",
        ),
        Peer("grain_parquet", "Grain", ("grain==0.2.18", "pyarrow==26.0.1", "numpy", TORCH)),
        Peer(
            "jollyjack",
            "jollyjack",
            ("jollyjack==0.26.1", "numpy", TORCH),
            processes=False,
            tables=FLAT,
            own_format=True,
            note="copies of the files without dictionaries and nulls",
        ),
        Peer(
            "petastorm",
            "petastorm",
            (
                *("pyarrow<14", "numpy<2", "pandas<3", "dill", "diskcache", "future", "psutil", "pyspark", "pyzmq"),
                *("six", "fsspec", "packaging", TORCH),
            ),
            alone=("petastorm==0.13.1",),
            tables=FLAT,
        ),
        *(
            Peer(f"decode_{name}", label, requirements, processes=False, shuffles=False, decodes=True)
            for name, label, requirements in (
                ("columns", "pyarrow, column by column", ()),
                ("polars", "Polars", ("polars==2.1.0",)),
                ("rust", "arro3 (Rust's parquet)", ("arro3-io", "arro3-core")),
                ("duckdb", "DuckDB", ("duckdb", "pyarrow==26.0.1")),
            )
        ),
    )
}
