"""`tdu fit`: a Preprocess, fitted on the rows or updated by them, and saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from torch_dataloader_utils.cli.data import Data
from torch_dataloader_utils.cli.output import GOOD, Output, Result
from torch_dataloader_utils.cli.texts import config_of
from torch_dataloader_utils.errors import OptionError
from torch_dataloader_utils.preprocess import Preprocess
from torch_dataloader_utils.printing import plural
from torch_dataloader_utils.redaction import redacted


def run(
    data: Data,
    output: Output,
    *,
    out: str,
    spec: Path | None,
    dtype: str | None,
    update: str | None,
    only_ids: bool,
    quantiles: str,
) -> Result:
    """The digest and the outputs of what was saved."""
    prep = _begun(spec, dtype, update, only_ids)
    before = {} if update is None else prep.sizes()
    if "://" not in out and (Path(out).is_dir() or not Path(out).parent.is_dir()):  # said before the scan
        raise OptionError(f"--output {out}: expected the path of a file in a folder that exists, such as prep.json.")
    with output.warnings_of_package():
        _, dataset = data.but("transform", num_ranks=1, rank=0).open(output_format="arrow")
        how: Any = False if update is None else "ids" if only_ids else True
        prep.fit(dataset, update=how, quantiles=_number_of(quantiles))
    prep.save(out)
    grown = {name: size - before[name] for name, size in prep.sizes().items() if size > before.get(name, size)}
    values: dict[str, Any] = {
        "path": redacted(out),
        "digest": prep.digest,
        "outputs": prep.outputs,
        "sizes": prep.sizes(),
    }
    values |= {"generation": prep.generation, "grown": grown, "quantile_errors": prep.quantile_errors()}
    said = f"wrote {redacted(out)}: {plural(len(prep.outputs), 'output')}, digest {prep.digest}"
    more = "".join(f"; {name} has {plural(ids, 'more id')}" for name, ids in grown.items())
    return Result(values, lambda screen: screen.line(said + more, GOOD))


def _begun(spec: Path | None, dtype: str | None, update: str | None, only_ids: bool) -> Preprocess:
    """The Preprocess that is to be fitted or updated."""
    if (spec is None) == (update is None):
        raise OptionError("tdu fit: expected --spec FILE to fit anew, or --update FILE to update a saved Preprocess.")
    if update is not None:
        if dtype is not None:
            raise OptionError("--dtype: the saved Preprocess has one: leave it out.")
        return Preprocess.load(update)
    if only_ids:
        raise OptionError("--only-ids says how --update learns: leave it out, or give --update FILE.")
    assert spec is not None
    expected = "columns, each with a transform or a list of them, such as 'age: {kind: standardize}'"
    # It checks the text.
    return Preprocess(config_of(spec, expected), dtype=cast(Literal["float32", "float64"], dtype or "float32"))


def _number_of(quantiles: str) -> Any:
    """The number, if it is one; `fit` checks it."""
    try:
        return float(quantiles)
    except ValueError:
        return quantiles
