"""Ready-made functions for `transform=`: images to tensors, chats and text to token ids."""

from torch_dataloader_utils.transforms.chat.template import ChatTemplate
from torch_dataloader_utils.transforms.images import DecodeImages
from torch_dataloader_utils.transforms.tokens import Tokenize

__all__ = ["ChatTemplate", "DecodeImages", "Tokenize"]
