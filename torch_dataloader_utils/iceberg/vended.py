"""What a catalog says of the access to a table's files: credentials, several sets of them for parts of its storage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

# A property among those of a table's FileIO, which pyiceberg hands on unread.
_PROPERTY = "torch-dataloader-utils.storage-credentials"
_EXPIRY = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms")


@dataclass(frozen=True)
class Vended:
    """Credentials.

    Attributes:
        prefix: a URL; they are for this one, and for what is below it. A scheme alone, such as "s3", is that of all.
        properties: under the names of pyiceberg's FileIO.
    """

    prefix: str
    properties: Mapping[str, str] = field(repr=False)


def as_property(vended: Sequence[Vended]) -> dict[str, str]:
    """The property that carries them."""
    return {_PROPERTY: json.dumps([[one.prefix, dict(one.properties)] for one in vended])} if vended else {}


def parted(properties: Mapping[str, str]) -> tuple[dict[str, str], tuple[Vended, ...]]:
    """The properties of a FileIO without this one, and the credentials in it."""
    others = {name: value for name, value in properties.items() if name != _PROPERTY}
    return others, tuple(Vended(prefix, config) for prefix, config in json.loads(properties.get(_PROPERTY, "[]")))


@dataclass(frozen=True)
class TableAccess:
    """How the files of a table are reached.

    Attributes:
        location: the table's folder.
        properties: of its storage, under the names of pyiceberg's FileIO. May contain credentials.
        vended: credentials for parts of the storage, in place of those in `properties`.
    """

    location: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    vended: tuple[Vended, ...] = ()

    @property
    def from_catalog(self) -> bool:
        """Whether a catalog says anything of it."""
        return bool(self.properties or self.vended)

    @property
    def expires_at(self) -> float | None:
        """When the first credentials expire, in seconds since 1970; None if nothing says so."""
        every = [self.properties, *(one.properties for one in self.vended)]
        ends = [value for given in every for name, value in given.items() if name.startswith(_EXPIRY)]
        return min((int(value) / 1000 for value in ends if value.isdecimal()), default=None)

    def renewed(self, vended: Sequence[Vended]) -> TableAccess:
        """The same with newer credentials, which take the place of all that expire."""
        others = {name: value for name, value in self.properties.items() if not name.startswith(_EXPIRY)}
        return replace(self, properties=others, vended=tuple(vended))
