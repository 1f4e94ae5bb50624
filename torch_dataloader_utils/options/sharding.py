"""`sharding=`: how ranks share rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from typing import Any, Literal, TypeAlias

from torch_dataloader_utils.errors import Example, OptionError, leave_out, use
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Checked, Value, flag, maybe, one_of, option, setting, whole


class Rotate(Value):
    """Ranks read contiguous shards, and move on to the next ones in each epoch (DALI's and ESPnet3's rotation).

    Raises:
        OptionError: a field cannot have this value, or two exclude each other.
    """

    total_shards: int | None = setting(
        default=None,
        check=maybe(whole(1)),
        doc="the number of shards, of which a rank reads one per epoch; None: one for each rank",
        kw_only=False,
    )
    stick_to_shard: bool = setting(default=False, check=flag, doc="whether each rank keeps its shard in all epochs")
    full_rotation: bool = setting(
        default=False, check=flag, doc="whether every rank reads each of the total_shards in turn"
    )

    def check(self) -> None:
        """Check fields that depend on each other."""
        if self.full_rotation and self.total_shards is None:
            raise OptionError(
                "Rotate: full_rotation=True without total_shards, the number of shards that rotate.",
                remedies=[
                    use(sharding=Example("Rotate(n, full_rotation=True)", self.replace(total_shards=2))),
                    leave_out("sharding"),
                ],
            )
        if self.total_shards is not None and self.stick_to_shard:
            raise OptionError(
                "Rotate: total_shards and stick_to_shard=True exclude each other: one rotates, the other stays.",
                remedies=[
                    use(sharding=self.replace(total_shards=None)),
                    use(sharding=self.replace(stick_to_shard=False)),
                ],
            )


class Strided(Value):
    """Ranks take rows in turn, one by one or in blocks.

    Raises:
        OptionError: `unit` is none of the words.
    """

    unit: Literal["row", "batch", "split_batch"] = setting(
        default="row",
        check=one_of("row", "batch", "split_batch"),
        doc='what ranks take in turn: single rows, whole batches, or with "split_batch" equal parts of each batch',
        kw_only=False,
    )


ShardingLike: TypeAlias = str | Rotate | Strided | Mapping[str, Any] | Callable[..., Any]

_VALUES: Mapping[str, type[Rotate | Strided]] = {"rotate": Rotate, "strided": Strided}
WORDS = ("interleave", "contiguous", "auto")  # those without fields


def settled(name: str, given: Any) -> Any:
    """The `sharding` with a word or dict for `Rotate` and `Strided` as this value; any other one as it is.

    Raises:
        OptionError: a field cannot have its value, or does not exist.
    """
    if isinstance(given, str) and given in _VALUES:
        return _VALUES[given]()
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        return given
    kind, fields = given["kind"].lower(), [field for field in given if field != "kind"]
    if kind in _VALUES:
        return _VALUES[kind].from_dict(given)
    if kind in WORDS:
        check_names(kind, fields, ())
        return kind
    return dict(given)


def of_sharding(name: str, given: Any) -> Any:
    """What may be given to a loader, settled."""
    known = isinstance(given, (str, Rotate, Strided)) or callable(given)
    if not known and not (isinstance(given, Mapping) and isinstance(given.get("kind"), str)):
        raise OptionError(
            f"{name}={shown(given)}: expected the name of a policy, Rotate(...), Strided(...), a function, or a dict "
            "such as {'kind': 'rotate', 'total_shards': 8}."
        )
    return settled(name, given)


@dataclass(frozen=True, kw_only=True)
class ShardingOptions(Checked):
    """How ranks share rows, as a plan has it: also a policy that is an object."""

    sharding: Any = option("interleave", settled)

    @property
    def rotation(self) -> Rotate:
        """How shards rotate; as by default if they do not."""
        return self.sharding if isinstance(self.sharding, Rotate) else Rotate()

    @property
    def total_shards(self) -> int | None:
        """The number of shards that rotate; None if they are not numbered."""
        return self.rotation.total_shards

    @property
    def unit(self) -> str:
        """What ranks take in turn."""
        return self.sharding.unit if isinstance(self.sharding, Strided) else "row"


def name_of(sharding: Any) -> str:
    """The name of a policy in a word: of a value its kind, of a function its own."""
    chosen = sharding["kind"] if isinstance(sharding, Mapping) else sharding
    if isinstance(chosen, str):
        return chosen
    if isinstance(chosen, Value):
        return type(chosen).__name__.lower()
    return str(getattr(chosen, "__name__", type(chosen).__name__))


def sharding_of(held: Any) -> Any:
    """A `sharding` as it can be given: in a word if that says all."""
    return name_of(held) if isinstance(held, Value) and not held.given() else held


def split_sharding(sharding: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The policy named in a dict, and its options."""
    options = dict(sharding)
    return options.pop("kind"), options


def check_names(policy: object, given: Iterable[str], options: Sequence[Field[Any]]) -> None:
    """Check that a policy has the options given for it.

    Raises:
        OptionError: it does not have one; the message lists those that it has, with their defaults.
    """
    for name in given:
        if name not in {item.name for item in options}:
            has = [item.name if item.default is MISSING else f"{item.name}={item.default!r}" for item in options]
            raise OptionError(
                f"sharding={{'kind': {policy!r}, {name!r}: ...}}: the policy has no option {name!r}; it has "
                f"{', '.join(has) or 'none'}."
            )
