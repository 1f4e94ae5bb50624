"""Preprocessing of columns: fitted in one scan, applied where rows are read, and the same at inference.

from torch_dataloader_utils.preprocess import Categorize, Impute, Keep, Preprocess, Standardize

prep = Preprocess({"age": [Impute("median"), Standardize()], "city": Categorize(min_count=10), "label": Keep()})
prep.fit("train/")
loader = tdu.stream("train/", transform=prep)
"""

from torch_dataloader_utils.preprocess.own import OwnTransform
from torch_dataloader_utils.preprocess.preprocess import Preprocess
from torch_dataloader_utils.preprocess.target import TargetEncode
from torch_dataloader_utils.preprocess.transforms import (
    Bucketize,
    Categorize,
    Clip,
    Cross,
    DateParts,
    Drop,
    Hash,
    Impute,
    Keep,
    Log1p,
    MinMax,
    Robust,
    Standardize,
)

__all__ = [
    "Bucketize",
    "Categorize",
    "Clip",
    "Cross",
    "DateParts",
    "Drop",
    "Hash",
    "Impute",
    "Keep",
    "Log1p",
    "MinMax",
    "OwnTransform",
    "Preprocess",
    "Robust",
    "Standardize",
    "TargetEncode",
]
