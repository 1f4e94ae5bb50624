"""The options of the sharding policies, each declared once, as a field of its policy's class.

Each field defines the flat keyword (`total_shards=8`), the option in `sharding={"policy": "rotate", ...}`, the check,
the row in the documentation and the option of a plan. Custom policies declare their options in the same way, as the
fields of their own dataclass (see `planning.sharding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from torch_dataloader_utils.errors import Example, OptionError, leave_out, use
from torch_dataloader_utils.printing import shown
from torch_dataloader_utils.values import Checked, flag, maybe, option, whole


@dataclass(frozen=True, kw_only=True)
class RotateOptions(Checked):
    """The options of `sharding="rotate"`."""

    stick_to_shard: bool = option(False, flag, doc="each rank keeps its shard in all epochs")
    full_rotation: bool = option(False, flag, doc="every rank reads each of the `total_shards` in turn")
    total_shards: int | None = option(None, maybe(whole(1)), doc="the number of shards; a rank reads one per epoch")


@dataclass(frozen=True, kw_only=True)
class StridedOptions(Checked):
    """The options of `sharding="strided"`."""

    shard_batches: bool = option(False, flag, doc="ranks take turns by batch, not by row")
    split_batches: bool = option(False, flag, doc="each batch is split among the ranks")


POLICY_OPTIONS: dict[str, type[Checked]] = {"rotate": RotateOptions, "strided": StridedOptions}


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(StridedOptions, RotateOptions):
    """The options of all policies of the package."""

    def check_policy(self, sharding: object) -> None:
        """Check that the options belong to the policy and do not exclude each other.

        Raises:
            OptionError: an option belongs to another policy, or options exclude each other.
        """
        for policy, kind in POLICY_OPTIONS.items():
            for item in fields(kind):
                value = getattr(self, item.name)
                if value != item.default and sharding != policy:
                    raise OptionError(
                        f"{item.name}={value!r} with sharding={sharding!r}: the option belongs to sharding={policy!r}.",
                        remedies=[use(sharding=policy), leave_out(item.name)],
                    )
        if self.full_rotation and self.total_shards is None:
            raise OptionError(
                "full_rotation=True without total_shards, the number of shards that rotate.",
                remedies=[use(total_shards=Example("n", 2)), leave_out("full_rotation")],
            )
        if self.total_shards is not None and self.stick_to_shard:
            raise OptionError(
                "total_shards and stick_to_shard=True exclude each other: one rotates, the other stays.",
                remedies=[leave_out("total_shards"), leave_out("stick_to_shard")],
            )
        if self.shard_batches and self.split_batches:
            raise OptionError(
                "shard_batches=True and split_batches=True exclude each other.",
                remedies=[leave_out("shard_batches"), leave_out("split_batches")],
            )


def flat_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords, with `sharding={"policy": name, option: value}` replaced by the equivalent flat keywords.

    A custom policy has no flat keywords, so its dict is kept.

    Raises:
        OptionError: a dict names no policy, the policy does not have an option, or an option has two different values.
    """
    sharding = keywords.get("sharding")
    if not isinstance(sharding, Mapping):
        return dict(keywords)
    policy, given = split_sharding(sharding)
    if not given:
        return {**keywords, "sharding": policy}
    if not isinstance(policy, str) or policy not in (*POLICY_OPTIONS, "auto"):
        return dict(keywords)
    check_names(policy, given, fields(POLICY_OPTIONS[policy]) if policy in POLICY_OPTIONS else ())
    for name, value in given.items():
        if name in keywords and keywords[name] != value:
            raise OptionError(
                f"{name}={keywords[name]!r} and sharding={sharding!r} were both given.", remedies=[leave_out(name)]
            )
    return {**keywords, **given, "sharding": policy}


def split_sharding(sharding: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The policy named in a dict, and its options.

    Raises:
        OptionError: the dict names no policy.
    """
    options = dict(sharding)
    if "policy" not in options:
        raise OptionError(f"sharding={shown(options)}: expected {{'policy': name, option: value}}.")
    return options.pop("policy"), options


def check_names(policy: object, given: Iterable[str], options: Sequence[Field[Any]]) -> None:
    """Check that a policy has the options given for it.

    Raises:
        OptionError: it does not have one; the message lists those that it has, with their defaults.
    """
    for name in given:
        if name not in {item.name for item in options}:
            shown = [item.name if item.default is MISSING else f"{item.name}={item.default!r}" for item in options]
            raise OptionError(
                f"sharding={{'policy': {policy!r}, {name!r}: ...}}: the policy has no option {name!r}; it has "
                f"{', '.join(shown) or 'none'}."
            )
