"""What both examples fit on the flights; and the same fit on one machine, to compare with.

The flights are those of flights/make_data.py: `python examples/flights/make_data.py` (or `make demo`) comes first.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from flights.places import FILES

from torch_dataloader_utils.preprocess import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    Hash,
    Impute,
    Preprocess,
    Standardize,
)

SPEC = {
    "distance": [Clip(quantiles=(0.01, 0.99)), Standardize()],
    "dep_delay": [Impute("median", indicator=True), Standardize()],
    "hour": Bucketize([6, 12, 18]),
    "carrier": Categorize(min_count=100),
    "dest": Categorize(max_size=50),
    ("origin", "dest"): Cross(Hash(10_000)),
}


def compare(prep, where):
    """Print the digest of a fit and that of one machine: of two with one digest, all outputs are equal."""
    alone = Preprocess(SPEC).fit(FILES)
    print(f"{where}: {prep}\none machine: {alone}")
    if prep.digest != alone.digest:
        sys.exit("the digests differ")
