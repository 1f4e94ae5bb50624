"""Ready-made functions for `transform=`: images to tensors, text to token ids, several in a row."""

from torch_dataloader_utils.transforms.chains import Chain
from torch_dataloader_utils.transforms.images import DecodeImages
from torch_dataloader_utils.transforms.tokens import Tokenize

__all__ = ["Chain", "DecodeImages", "Tokenize"]
