"""Ready-made functions for `transform=`: images to tensors, text to token ids."""

from torch_dataloader_utils.transforms.images import DecodeImages
from torch_dataloader_utils.transforms.tokens import Tokenize

__all__ = ["DecodeImages", "Tokenize"]
