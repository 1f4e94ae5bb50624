"""`tdu fit`: a Preprocess, fitted on the rows and saved."""

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


def run(data: Data, output: Output, *, spec: Path, out: str, dtype: str, quantiles: str) -> Result:
    """The digest and the outputs of what was saved."""
    expected = "columns, each with a transform or a list of them, such as 'age: {kind: standardize}'"
    prep = Preprocess(config_of(spec, expected), dtype=cast(Literal["float32", "float64"], dtype))  # it checks the text
    if "://" not in out and (Path(out).is_dir() or not Path(out).parent.is_dir()):  # said before the scan
        raise OptionError(f"--output {out}: expected the path of a file in a folder that exists, such as prep.json.")
    with output.warnings_of_package():
        _, dataset = data.but("transform", num_ranks=1, rank=0).open(output_format="arrow")
        prep.fit(dataset, quantiles=_number_of(quantiles))
    prep.save(out)
    values = {"path": redacted(out), "digest": prep.digest, "outputs": prep.outputs, "sizes": prep.sizes()}
    values["quantile_errors"] = prep.quantile_errors()
    said = f"wrote {redacted(out)}: {plural(len(prep.outputs), 'output')}, digest {prep.digest}"
    return Result(values, lambda screen: screen.line(said, GOOD))


def _number_of(quantiles: str) -> Any:
    """The number, if it is one; `fit` checks it."""
    try:
        return float(quantiles)
    except ValueError:
        return quantiles
