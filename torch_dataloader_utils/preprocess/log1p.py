"""log(1 + x) by additions, multiplications and divisions alone, which all machines and libraries round alike.

That of the C library differs in its last bit from platform to platform, and ONNX has none. This is fdlibm's algorithm,
with an error below one unit in the last place: 1 + x = 2**k (1 + f), and log(1 + f) by a polynomial of f / (2 + f).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT_HALF = 0.5**0.5  # 1 + f is kept from here to its double
LEAST, GREATEST = ROOT_HALF - 1, 2 * ROOT_HALF - 1  # in between, f is x itself
CONSTANTS = (
    6.93147180369123816490e-01,  # log(2), rounded so that k times it is exact
    1.90821492927058770002e-10,  # the rest of log(2)
    # The polynomial's coefficients, that of the highest power first.
    1.479819860511658591e-01,
    1.531383769920937332e-01,
    1.818357216161805012e-01,
    2.222219843214978396e-01,
    2.857142874366239149e-01,
    3.999999999940941908e-01,
    6.666666666666735130e-01,
)


def combined(f: Any, rest: Any, k: Any, constants: Sequence[Any] = CONSTANTS) -> Any:
    """log(2**k (1 + f)) + rest, of floats, arrays or tensors."""
    log2, log2_rest, polynomial, *coefficients = constants
    half = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    for coefficient in coefficients:
        polynomial = polynomial * z + coefficient
    return k * log2 - ((half - (s * (half + polynomial * z) + (k * log2_rest + rest))) - f)


def log1p(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """log(1 + x) of each number; -infinity of -1, NaN below it."""
    u = 1.0 + x
    fraction, exponent = np.frexp(u)
    low = fraction < ROOT_HALF
    fraction = np.where(low, fraction + fraction, fraction)
    exponent -= low
    rest = np.where(u >= 2.0, 1.0 - (u - x), x - (u - 1.0)) / u
    near = (x > LEAST) & (x < GREATEST)
    f = np.where(near, x, fraction - 1.0)
    found: npt.NDArray[np.float64] = combined(
        f, np.where(near, 0.0, rest), np.where(near, 0, exponent).astype(np.float64)
    )
    np.copyto(found, x, where=x == math.inf)
    np.copyto(found, -math.inf, where=x == -1.0)
    np.copyto(found, math.nan, where=~(x >= -1.0))
    return found


def one_log1p(x: float) -> float:
    """The same of one number."""
    if LEAST < x < GREATEST:
        return float(combined(x, 0.0, 0.0))
    if not x > -1.0 or x == math.inf:
        return -math.inf if x == -1.0 else x if x == math.inf else math.nan
    u = 1.0 + x
    fraction, exponent = math.frexp(u)
    if fraction < ROOT_HALF:
        fraction, exponent = fraction + fraction, exponent - 1
    rest = (1.0 - (u - x) if u >= 2.0 else x - (u - 1.0)) / u
    return float(combined(fraction - 1.0, rest, float(exponent)))
