"""Stores and their files: local disks, object stores, web servers, archives; listed, checked and read."""

from torch_dataloader_utils.storage.cores import usable_cores
from torch_dataloader_utils.storage.errors import Decoding, Naming, damaged
from torch_dataloader_utils.storage.hub_client import Commits
from torch_dataloader_utils.storage.opening import open_storage
from torch_dataloader_utils.storage.remote import REMOTE_GAP, RemoteFile, coalesced, confirm_unchanged, prefetch
from torch_dataloader_utils.storage.renewal import Renewal
from torch_dataloader_utils.storage.storage import Storage
from torch_dataloader_utils.storage.versions import Stored

__all__ = [
    "REMOTE_GAP",
    "Commits",
    "Decoding",
    "Naming",
    "RemoteFile",
    "Renewal",
    "Storage",
    "Stored",
    "coalesced",
    "confirm_unchanged",
    "damaged",
    "open_storage",
    "prefetch",
    "usable_cores",
]
