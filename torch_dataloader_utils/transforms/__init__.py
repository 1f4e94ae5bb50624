"""Ready-made functions for `transform=`: images to tensors, text to token ids; and random ones, for `random=True`."""

from torch_dataloader_utils.reading.row_generator import RowGenerator
from torch_dataloader_utils.transforms.augmentation import ColumnDropout, GaussianNoise, RandomCrop, RandomFlip
from torch_dataloader_utils.transforms.images import DecodeImages
from torch_dataloader_utils.transforms.tokens import Tokenize

__all__ = [
    "ColumnDropout",
    "DecodeImages",
    "GaussianNoise",
    "RandomCrop",
    "RandomFlip",
    "RowGenerator",
    "Tokenize",
]
