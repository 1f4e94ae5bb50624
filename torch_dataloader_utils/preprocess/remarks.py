"""What a fit says of columns in the log: one line for all columns of a kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from torch_dataloader_utils.printing import listed

if TYPE_CHECKING:
    from torch_dataloader_utils.preprocess.learning import Learning

Remark: TypeAlias = Literal["infinite", "empty", "undefined", "large", "rough", "no target"]

LARGE = 1_000_000  # values of a vocabulary

_TEXTS: Mapping[Remark, str] = {
    "infinite": "fit: infinite numbers of {} are left out of what is learned, and stay infinite. Put Clip(low, high) "
    "before to give them a value.",
    "empty": "fit: nothing can be learned of {}, where all values are missing or infinite: means, medians, fills and "
    "encodings are 0 or empty, deviations 1, vocabularies and bounds empty.",
    "undefined": "fit: Log1p makes NaN of the numbers below -1 of {}. Log1p(signed=True) takes them.",
    "large": "fit: the vocabularies of {} have more than 1,000,000 values. max_size= and min_count= of Categorize keep "
    "fewer, and Hash(n) needs none.",
    "rough": "fit: the ranks of quantiles of {} may be off by more than was allowed, even after another scan: "
    "quantile_errors() says how far. fit(quantiles='exact') takes as many scans as are needed.",
}


def lines_of(outputs: Sequence[Learning]) -> list[str]:
    """The lines for what outputs remarked."""
    lines = []
    for remark, text in _TEXTS.items():
        columns = dict.fromkeys(name for each in outputs for name in _columns(each, remark))
        if columns:
            lines.append(text.format(listed(map(repr, columns))))
    return lines


def _columns(each: Learning, remark: Remark) -> Iterator[str]:
    """The columns of an output of which this is remarked."""
    yield from each.output.columns if remark in each.remarks else ()
    if remark == "empty" and "no target" in each.remarks and each.output.target is not None:
        yield each.output.target.target
