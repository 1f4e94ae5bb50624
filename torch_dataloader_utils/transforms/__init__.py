"""Functions for `transform=`: images to tensors, chats and text to token ids; and random ones, for `random=True`."""

from torch_dataloader_utils.transforms.augmentation import ColumnDropout, GaussianNoise, RandomCrop, RandomFlip
from torch_dataloader_utils.transforms.chat.template import ChatTemplate
from torch_dataloader_utils.transforms.images import DecodeImages
from torch_dataloader_utils.transforms.tokens import Tokenize

__all__ = [
    "ChatTemplate",
    "ColumnDropout",
    "DecodeImages",
    "GaussianNoise",
    "RandomCrop",
    "RandomFlip",
    "Tokenize",
]
