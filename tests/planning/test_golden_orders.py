"""The orders of all policies, frozen: a state of an older release must go on in the same order.

Whoever changes an order on purpose raises `PLAN_VERSION` (`REST_VERSION` where only the rest of a resumed epoch
changes), so that older states are refused with a clear error, and writes the new digests down (the failing test prints
them).
"""

import hashlib
import itertools
from dataclasses import replace

import pytest

from tests.planning.helpers import data_files, make_plan, phase, row_ids
from torch_dataloader_utils.planning.phases import plan_of_rest
from torch_dataloader_utils.planning.plan import PLAN_VERSION, REST_VERSION, Plan

FILES = [[5, 3, 4], [7], [2, 2, 2, 2], [6, 1], [9, 9, 1], [4], [3, 8]]
POLICIES = {
    "interleave": {},
    "contiguous": {"sharding": "contiguous"},
    "rotate": {"sharding": "rotate"},
    "stick": {"sharding": "rotate", "stick_to_shard": True},
    "total_shards": {"sharding": "rotate", "total_shards": 6},
    "full_rotation": {"sharding": "rotate", "total_shards": 6, "full_rotation": True},
    "strided": {"sharding": "strided"},
    "shard_batches": {"sharding": "strided", "shard_batches": True},
    "split_batches": {"sharding": "strided", "split_batches": True},
    "auto": {"sharding": "auto"},
}
ENDS = {"none": {}, "drop": {"even": "drop"}, "pad": {"even": "pad"}, "wrap": {"last_batch": "wrap"}}
ROWS = {
    "splits": {},
    "windows": {"buffer_rows": 12, "open_splits": 3},
    "bytes": {"window_bytes": 240},
    "all": {"window_bytes": 240, "open_splits": "all"},
}


def order_digest(plan: Plan, epochs: tuple[int, ...]) -> str:
    """Of all rows of all workers of all ranks, in order of delivery."""
    state = hashlib.blake2b(digest_size=6)
    for epoch, rank in itertools.product(epochs, range(plan.num_ranks)):
        for lap in (0, 1) if plan.options.steps_per_epoch else (0,):
            for worker, shard in enumerate(plan.rank(epoch, rank, lap).shards):
                rows = [(row, piece.pad) for piece in shard for row in row_ids([piece])]
                state.update(repr((epoch, rank, lap, worker, rows)).encode())
    return state.hexdigest()


def task_digest(plan: Plan) -> str:
    """Of the tasks of all workers: if rows are known only after reading, a state counts them."""
    tasks = [[[row_ids(task.pieces) for task in plan.rank(0, r).tasks(w)] for w in range(2)] for r in range(2)]
    return hashlib.blake2b(repr(tasks).encode(), digest_size=6).hexdigest()


def big_plan(rows: str) -> Plan:
    """Row groups around the limits of a task: small ones share one, large ones have one each."""
    files = data_files([[40_000, 20_000, 10_000, 70_000, 5_000], [30_000] * 5])
    options = {"shuffle": True, "num_shards": 2, **ROWS[rows]}
    if rows == "windows":
        options["buffer_rows"] = 50_000
    elif rows != "splits":
        options["window_bytes"] = 1_000_000
    return make_plan(files, 2, split_rows=150_000, exact=False, **options)


def plan_of(policy: str, end: str, rows: str, **more: object) -> Plan:
    options = {
        "shuffle": True,
        "seed": 42,
        "batch_size": 4,
        "num_shards": 2,
        **POLICIES[policy],
        **ENDS[end],
        **ROWS[rows],
    }
    return make_plan(data_files(FILES), 2, split_rows=8, **{**options, **more})


def found_orders() -> dict[str, str]:
    found = {
        " ".join(case): order_digest(plan_of(*case), (0, 1, 7)) for case in itertools.product(POLICIES, ENDS, ROWS)
    }
    for rows in ROWS:
        found[f"unshuffled {rows}"] = order_digest(plan_of("interleave", "none", rows, shuffle=False), (0, 1))
        found[f"laps {rows}"] = order_digest(plan_of("interleave", "none", rows, steps_per_epoch=40), (0, 1))
        found[f"unknown {rows}"] = order_digest(replace(plan_of("interleave", "none", rows), exact=False), (0, 1))
        found[f"tasks {rows}"] = task_digest(big_plan(rows))
        for policy in ("interleave", "contiguous", "strided"):
            plan = plan_of(policy, "none", rows, canonical_ranks=4)
            found[f"canonical {policy} {rows}"] = order_digest(plan, (0, 1))
            first = plan_of(policy, "none", rows)
            past = [phase(first.options, 2, 3), phase(replace(first.options, num_shards=3), 2, 1)]
            rest = plan_of_rest(replace(first, num_ranks=3), 1, past)
            found[f"rest {policy} {rows}"] = order_digest(rest, (1,))
    return found


def test_orders_are_frozen() -> None:
    found = found_orders()
    assert (PLAN_VERSION, REST_VERSION) == FROZEN_VERSIONS
    changed = {case: digest for case, digest in found.items() if FROZEN.get(case) != digest}
    assert not changed, "\n".join(f'    "{case}": "{digest}",' for case, digest in changed.items())
    assert found.keys() == FROZEN.keys()


@pytest.mark.parametrize("seed", [0, 1, -5, 2**70])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    plan = plan_of("interleave", "none", "windows", seed=seed)
    assert sorted(row for rank in range(2) for shard in plan.rank(0, rank).shards for row in row_ids(shard)) == sorted(
        (f"{i:03d}.parquet", row) for i, groups in enumerate(FILES) for row in range(sum(groups))
    )


FROZEN_VERSIONS = 2, 3
FROZEN = {
    "tasks splits": "93d5d6a20268",
    "tasks windows": "12743c805fa6",
    "interleave none splits": "03147322f84f",
    "interleave none windows": "5b005e94d0f8",
    "interleave drop splits": "a54954715047",
    "interleave drop windows": "801f6d16d2b9",
    "interleave pad splits": "afa94a632399",
    "interleave pad windows": "1b09edf5fd2a",
    "interleave wrap splits": "ea1c25e2b2d5",
    "interleave wrap windows": "cead4f9413cd",
    "contiguous none splits": "e8adea51876b",
    "contiguous none windows": "3f7e816a4e57",
    "contiguous drop splits": "34f8077fb0a6",
    "contiguous drop windows": "9a5b45da734d",
    "contiguous pad splits": "d2d93d32f1a9",
    "contiguous pad windows": "0a3947efa56b",
    "contiguous wrap splits": "8eedf8a42b66",
    "contiguous wrap windows": "2bb25a7fafb6",
    "rotate none splits": "e6dc39822a8f",
    "rotate none windows": "1b029abc9989",
    "rotate drop splits": "ca3facb85203",
    "rotate drop windows": "b7c7c3e6f40f",
    "rotate pad splits": "cf12b440e800",
    "rotate pad windows": "582079b34c31",
    "rotate wrap splits": "b72b3954b9ff",
    "rotate wrap windows": "a0cb1d7b2dca",
    "stick none splits": "5259bfa9a2ff",
    "stick none windows": "0406b5ca3fd7",
    "stick drop splits": "de9701a1c9a3",
    "stick drop windows": "201385eb9ded",
    "stick pad splits": "e79040acc4df",
    "stick pad windows": "ff6719480516",
    "stick wrap splits": "1950101bebcb",
    "stick wrap windows": "d30f4fb29c43",
    "total_shards none splits": "574c75264c2a",
    "total_shards none windows": "70bdf8760006",
    "total_shards drop splits": "cc3547e25021",
    "total_shards drop windows": "fe30aa493914",
    "total_shards pad splits": "6ccbe0fd9a4e",
    "total_shards pad windows": "cfcb49669d59",
    "total_shards wrap splits": "44fe265adcf4",
    "total_shards wrap windows": "3dd370796db6",
    "full_rotation none splits": "574c75264c2a",
    "full_rotation none windows": "70bdf8760006",
    "full_rotation drop splits": "cc3547e25021",
    "full_rotation drop windows": "fe30aa493914",
    "full_rotation pad splits": "6ccbe0fd9a4e",
    "full_rotation pad windows": "cfcb49669d59",
    "full_rotation wrap splits": "44fe265adcf4",
    "full_rotation wrap windows": "3dd370796db6",
    "strided none splits": "f70e01a8f55e",
    "strided none windows": "328121a1fd57",
    "strided drop splits": "863d5b3dceaa",
    "strided drop windows": "8463ebd672d3",
    "strided pad splits": "66f6b50aaf65",
    "strided pad windows": "cea6351dcdc3",
    "strided wrap splits": "9cb187ca00f1",
    "strided wrap windows": "3765c1100603",
    "shard_batches none splits": "deaa0d6ab075",
    "shard_batches none windows": "59a8bff1438a",
    "shard_batches drop splits": "31590246a8f5",
    "shard_batches drop windows": "8efba60db2ac",
    "shard_batches pad splits": "603e97c33ad4",
    "shard_batches pad windows": "dbb19a1e3ce8",
    "shard_batches wrap splits": "deaa0d6ab075",
    "shard_batches wrap windows": "59a8bff1438a",
    "split_batches none splits": "ab505b719170",
    "split_batches none windows": "89d0b6a835a5",
    "split_batches drop splits": "ab505b719170",
    "split_batches drop windows": "89d0b6a835a5",
    "split_batches pad splits": "ab505b719170",
    "split_batches pad windows": "89d0b6a835a5",
    "split_batches wrap splits": "ab505b719170",
    "split_batches wrap windows": "89d0b6a835a5",
    "auto none splits": "03147322f84f",
    "auto none windows": "5b005e94d0f8",
    "auto drop splits": "a54954715047",
    "auto drop windows": "801f6d16d2b9",
    "auto pad splits": "afa94a632399",
    "auto pad windows": "1b09edf5fd2a",
    "auto wrap splits": "ea1c25e2b2d5",
    "auto wrap windows": "cead4f9413cd",
    "unshuffled splits": "5693428435a8",
    "laps splits": "ed1566fc7628",
    "unknown splits": "af36648a661b",
    "canonical interleave splits": "0e74fc19b3c5",
    "rest interleave splits": "b664b239e6f8",
    "canonical contiguous splits": "2f2b1967a7a2",
    "rest contiguous splits": "ee3a1bde99ad",
    "canonical strided splits": "7f9d5e15932b",
    "rest strided splits": "fdc7e3457b8d",
    "unshuffled windows": "89f228005fd4",
    "laps windows": "a9377c7e656b",
    "unknown windows": "18a7ffc8111f",
    "canonical interleave windows": "404e9373a05d",
    "rest interleave windows": "93169a2482eb",
    "canonical contiguous windows": "d7711cbe8527",
    "rest contiguous windows": "0df65045a0d4",
    "canonical strided windows": "4bfc147d04d7",
    "rest strided windows": "4903ba8da65a",
    "interleave none all": "2a1a5fdc8b34",
    "interleave drop bytes": "a0dd1a8f96c9",
    "interleave drop all": "5a49b767564b",
    "interleave pad bytes": "7d04f226cd90",
    "interleave pad all": "4c5a8fa89b67",
    "interleave wrap bytes": "2b53fd55c473",
    "interleave wrap all": "b79bfc8e4fe9",
    "contiguous none bytes": "fbb88d7025a0",
    "contiguous none all": "83b3749ebcf2",
    "contiguous drop bytes": "6f6f4535e5b8",
    "contiguous drop all": "cc944e12fe0a",
    "contiguous pad bytes": "200b3aaf8dbd",
    "contiguous pad all": "eb83b06997b9",
    "contiguous wrap bytes": "6194cce5efae",
    "contiguous wrap all": "9d49babc95f2",
    "rotate none bytes": "49c231555db4",
    "rotate none all": "648aebb17e77",
    "rotate drop bytes": "260b1070d833",
    "rotate drop all": "4404b68bf75a",
    "rotate pad bytes": "22a474452cd7",
    "rotate pad all": "ad6aef9645e8",
    "rotate wrap bytes": "b57f8e163fab",
    "rotate wrap all": "c1f892f2e60e",
    "stick none bytes": "469681765f15",
    "stick none all": "f4055a225985",
    "stick drop bytes": "7a41a74aa51e",
    "stick drop all": "ec1a71d7723d",
    "stick pad bytes": "22ece9bc7424",
    "stick pad all": "e45a67bd1374",
    "stick wrap bytes": "4c31cb6958d2",
    "stick wrap all": "02b6cd69bf90",
    "total_shards none bytes": "70bdf8760006",
    "total_shards none all": "5f9ab757c963",
    "total_shards drop bytes": "8eaa22778797",
    "total_shards drop all": "78142ba6126b",
    "total_shards pad bytes": "949a58fe22d8",
    "total_shards pad all": "bfa42a970d04",
    "total_shards wrap bytes": "3dd370796db6",
    "total_shards wrap all": "1605b3d1b382",
    "full_rotation none bytes": "70bdf8760006",
    "full_rotation none all": "5f9ab757c963",
    "full_rotation drop bytes": "8eaa22778797",
    "full_rotation drop all": "78142ba6126b",
    "full_rotation pad bytes": "949a58fe22d8",
    "full_rotation pad all": "bfa42a970d04",
    "full_rotation wrap bytes": "3dd370796db6",
    "full_rotation wrap all": "1605b3d1b382",
    "strided none bytes": "c826afcfe80e",
    "strided none all": "cd4adf6060c0",
    "strided drop bytes": "8ba972f1b04c",
    "strided drop all": "c9f5323d17cb",
    "strided pad bytes": "43ec2f81bfe2",
    "strided pad all": "557b0fcb2d84",
    "strided wrap bytes": "e319bf70bfcd",
    "strided wrap all": "19e89ba3ba16",
    "shard_batches none bytes": "642c882c1ecd",
    "shard_batches none all": "d54f78f8fd40",
    "shard_batches drop bytes": "c69119d8fa44",
    "shard_batches drop all": "ef9f4ae30ff3",
    "shard_batches pad bytes": "e6222af1b9be",
    "shard_batches pad all": "0412ab630691",
    "shard_batches wrap bytes": "642c882c1ecd",
    "shard_batches wrap all": "d54f78f8fd40",
    "split_batches none bytes": "e3e0d6c8df92",
    "split_batches none all": "d84da775e46e",
    "split_batches drop bytes": "e3e0d6c8df92",
    "split_batches drop all": "d84da775e46e",
    "split_batches pad bytes": "e3e0d6c8df92",
    "split_batches pad all": "d84da775e46e",
    "split_batches wrap bytes": "e3e0d6c8df92",
    "split_batches wrap all": "d84da775e46e",
    "auto none bytes": "6a080af9ac50",
    "auto none all": "2a1a5fdc8b34",
    "auto drop bytes": "a0dd1a8f96c9",
    "auto drop all": "5a49b767564b",
    "auto pad bytes": "7d04f226cd90",
    "auto pad all": "4c5a8fa89b67",
    "auto wrap bytes": "2b53fd55c473",
    "auto wrap all": "b79bfc8e4fe9",
    "unshuffled bytes": "cc6ea555cb15",
    "laps bytes": "96bcbf46d18f",
    "unknown bytes": "2659394ea3f8",
    "tasks bytes": "a36388bf6ad8",
    "canonical interleave bytes": "6d63eec4becb",
    "rest interleave bytes": "76290716a503",
    "canonical contiguous bytes": "ad07c78faf68",
    "rest contiguous bytes": "6bf1723b5590",
    "canonical strided bytes": "d5e4c5d8051d",
    "rest strided bytes": "d7ae8ada778f",
    "unshuffled all": "e81996990241",
    "laps all": "90c9ce2402aa",
    "unknown all": "f11ea14dedc2",
    "tasks all": "52dabd073615",
    "canonical interleave all": "b227aecc6beb",
    "rest interleave all": "6f2cf93b4363",
    "canonical contiguous all": "720811ab075b",
    "rest contiguous all": "242bb1be49e4",
    "canonical strided all": "765eac271393",
    "rest strided all": "cd90f4a577b8",
    "interleave none bytes": "6a080af9ac50",
}
