"""The orders of all policies, frozen: a state of an older release must go on in the same order.

Whoever changes an order on purpose raises `PLAN_VERSION` (`REST_VERSION` where only the rest of a resumed epoch
changes, `MIX_VERSION` where only mixes do), so that older states are refused with a clear error, and writes the new
digests down (the failing test prints them).
"""

import hashlib
import itertools
from dataclasses import replace
from fractions import Fraction

import pytest

from tests.planning.helpers import data_files, make_plan, phase, row_ids
from tests.planning.test_curricula import batches_of
from tests.planning.test_mixing import combined, files_of
from torch_dataloader_utils import Rotate, Strided
from torch_dataloader_utils.mixing.curriculum import Curriculum, WeightPhase
from torch_dataloader_utils.mixing.feature import Mixing
from torch_dataloader_utils.planning.phases import Phase, plain_options, plan_of_rest
from torch_dataloader_utils.planning.plan import MIX_VERSION, PLAN_VERSION, REST_VERSION, Plan

FILES = [[5, 3, 4], [7], [2, 2, 2, 2], [6, 1], [9, 9, 1], [4], [3, 8]]
POLICIES = {
    "interleave": {},
    "contiguous": {"sharding": "contiguous"},
    "rotate": {"sharding": "rotate"},
    "stick": {"sharding": Rotate(stick_to_shard=True)},
    "total_shards": {"sharding": Rotate(6)},
    "full_rotation": {"sharding": Rotate(6, full_rotation=True)},
    "strided": {"sharding": "strided"},
    "shard_batches": {"sharding": Strided("batch")},
    "split_batches": {"sharding": Strided("split_batch")},
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


F0, F1 = Fraction(0), Fraction(1)
MIXED = [[[5, 3, 4], [7], [6, 1]], [[4, 4]], [[3]]]
COURSES = {
    "once": Curriculum.constant((19, 8, 3), rows=(26, 8, 3)),
    "ended": Curriculum.constant((1, 3, 2), rows=(26, 8, 3)),
    "run": Curriculum.constant((Fraction("0.7"), Fraction("0.2"), Fraction("0.1")), total=41),
    "curriculum": Curriculum((WeightPhase(0, (F1, F1, F0)), WeightPhase(30, (F1, F0, Fraction(1, 3)))), 41),
}


def mixed_plan(course: str, end: str, rows: str, batches: str = "proportional") -> Plan:
    options = {"shuffle": True, "seed": 42, "batch_size": 3, "sharding": "contiguous", **ENDS[end], **ROWS[rows]}
    plan = combined(files_of(MIXED), 3, None, 4, **options)
    return replace(plan, features=Mixing({"batches": batches, **COURSES[course].plain}))


def mix_digest(plan: Plan, epochs: tuple[int, ...]) -> str:
    """Of the rows of each batch of all ranks."""
    found = [(e, r, list(batches_of(plan, e, r))) for e in epochs for r in range(plan.num_ranks)]
    return hashlib.blake2b(repr(found).encode(), digest_size=6).hexdigest()


def mixed_orders() -> dict[str, str]:
    found = {}
    for course, end, rows in itertools.product(COURSES, ("none", "drop", "pad"), ("splits", "windows")):
        plan = mixed_plan(course, end, rows)
        found[f"mix {course} {end} {rows}"] = mix_digest(plan, (0, 1, 7))
        rest = plan_of_rest(replace(plan, num_ranks=2), 1, [mix_phase(plan, 2)])
        found[f"mix rest {course} {end} {rows}"] = mix_digest(rest, (1,))
    for course in ("once", "ended", "run"):
        found[f"mix single {course}"] = mix_digest(mixed_plan(course, "none", "splits", "single"), (0, 1, 7))
    return found


def mix_phase(plan: Plan, batches: int) -> Phase:
    return Phase(plain_options(plan.options, plan.num_ranks, plan.features), batches)


def test_orders_are_frozen() -> None:
    found = {**found_orders(), **mixed_orders()}
    assert (PLAN_VERSION, REST_VERSION, MIX_VERSION) == FROZEN_VERSIONS
    changed = {case: digest for case, digest in found.items() if FROZEN.get(case) != digest}
    assert not changed, "\n".join(f'    "{case}": "{digest}",' for case, digest in changed.items())
    assert found.keys() == FROZEN.keys()


@pytest.mark.parametrize("seed", [0, 1, -5, 2**70])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    plan = plan_of("interleave", "none", "windows", seed=seed)
    assert sorted(row for rank in range(2) for shard in plan.rank(0, rank).shards for row in row_ids(shard)) == sorted(
        (f"{i:03d}.parquet", row) for i, groups in enumerate(FILES) for row in range(sum(groups))
    )


FROZEN_VERSIONS = 4, 5, 6
FROZEN = {
    "tasks splits": "93d5d6a20268",
    "tasks windows": "db35bfba75bc",
    "interleave none splits": "03147322f84f",
    "interleave none windows": "b398552c36ba",
    "interleave drop splits": "a54954715047",
    "interleave drop windows": "37f090579944",
    "interleave pad splits": "afa94a632399",
    "interleave pad windows": "f0f74c978c3b",
    "interleave wrap splits": "ea1c25e2b2d5",
    "interleave wrap windows": "3dda6b753a37",
    "contiguous none splits": "e8adea51876b",
    "contiguous none windows": "2d7ad30e8e8a",
    "contiguous drop splits": "34f8077fb0a6",
    "contiguous drop windows": "989ae0eaa178",
    "contiguous pad splits": "d2d93d32f1a9",
    "contiguous pad windows": "19bd4122d052",
    "contiguous wrap splits": "8eedf8a42b66",
    "contiguous wrap windows": "b4e49927c227",
    "rotate none splits": "e6dc39822a8f",
    "rotate none windows": "e5565783faf5",
    "rotate drop splits": "ca3facb85203",
    "rotate drop windows": "f155c9e2a3ed",
    "rotate pad splits": "cf12b440e800",
    "rotate pad windows": "e0362705476a",
    "rotate wrap splits": "b72b3954b9ff",
    "rotate wrap windows": "1286006f8a07",
    "stick none splits": "5259bfa9a2ff",
    "stick none windows": "bf0ffa469797",
    "stick drop splits": "de9701a1c9a3",
    "stick drop windows": "ea87c80eac67",
    "stick pad splits": "e79040acc4df",
    "stick pad windows": "94c0c298fa0f",
    "stick wrap splits": "1950101bebcb",
    "stick wrap windows": "fb962fc4a984",
    "total_shards none splits": "574c75264c2a",
    "total_shards none windows": "8caa046c9b88",
    "total_shards drop splits": "cc3547e25021",
    "total_shards drop windows": "9b28b0eb2913",
    "total_shards pad splits": "2227b4b11a72",
    "total_shards pad windows": "20016d2c5eb2",
    "total_shards wrap splits": "44fe265adcf4",
    "total_shards wrap windows": "2d5486272f20",
    "full_rotation none splits": "574c75264c2a",
    "full_rotation none windows": "8caa046c9b88",
    "full_rotation drop splits": "cc3547e25021",
    "full_rotation drop windows": "9b28b0eb2913",
    "full_rotation pad splits": "2227b4b11a72",
    "full_rotation pad windows": "20016d2c5eb2",
    "full_rotation wrap splits": "44fe265adcf4",
    "full_rotation wrap windows": "2d5486272f20",
    "strided none splits": "f70e01a8f55e",
    "strided none windows": "585c79b90ea8",
    "strided drop splits": "863d5b3dceaa",
    "strided drop windows": "92b4cd8a285d",
    "strided pad splits": "66f6b50aaf65",
    "strided pad windows": "674d750e6267",
    "strided wrap splits": "9cb187ca00f1",
    "strided wrap windows": "d1eee6930b90",
    "shard_batches none splits": "deaa0d6ab075",
    "shard_batches none windows": "0c3524c986dc",
    "shard_batches drop splits": "31590246a8f5",
    "shard_batches drop windows": "aaeac4b706e6",
    "shard_batches pad splits": "603e97c33ad4",
    "shard_batches pad windows": "81c0a77637fc",
    "shard_batches wrap splits": "deaa0d6ab075",
    "shard_batches wrap windows": "0c3524c986dc",
    "split_batches none splits": "ab505b719170",
    "split_batches none windows": "49ea8f3fe167",
    "split_batches drop splits": "ab505b719170",
    "split_batches drop windows": "49ea8f3fe167",
    "split_batches pad splits": "ab505b719170",
    "split_batches pad windows": "49ea8f3fe167",
    "split_batches wrap splits": "ab505b719170",
    "split_batches wrap windows": "49ea8f3fe167",
    "auto none splits": "03147322f84f",
    "auto none windows": "b398552c36ba",
    "auto drop splits": "a54954715047",
    "auto drop windows": "37f090579944",
    "auto pad splits": "afa94a632399",
    "auto pad windows": "f0f74c978c3b",
    "auto wrap splits": "ea1c25e2b2d5",
    "auto wrap windows": "3dda6b753a37",
    "unshuffled splits": "5693428435a8",
    "laps splits": "ed1566fc7628",
    "unknown splits": "af36648a661b",
    "canonical interleave splits": "0e74fc19b3c5",
    "rest interleave splits": "b664b239e6f8",
    "canonical contiguous splits": "2f2b1967a7a2",
    "rest contiguous splits": "ee3a1bde99ad",
    "canonical strided splits": "7f9d5e15932b",
    "rest strided splits": "fdc7e3457b8d",
    "unshuffled windows": "c36df1f04d21",
    "laps windows": "29a8b014086d",
    "unknown windows": "d872d66ebc6a",
    "canonical interleave windows": "08c445f7a142",
    "rest interleave windows": "495e5231ae57",
    "canonical contiguous windows": "f0b90c9674c0",
    "rest contiguous windows": "90073318a25d",
    "canonical strided windows": "82dfa126f4fb",
    "rest strided windows": "6867631ce7e3",
    "interleave none all": "52b77501be1e",
    "interleave drop bytes": "0654ee265fe8",
    "interleave drop all": "f209bacfc2ec",
    "interleave pad bytes": "420432871ad1",
    "interleave pad all": "c6d6f3d6bbc0",
    "interleave wrap bytes": "cfc8600754e5",
    "interleave wrap all": "cfa82219f5e4",
    "contiguous none bytes": "d36bc04cc8b7",
    "contiguous none all": "f6b15b324c6a",
    "contiguous drop bytes": "62dc470a8e58",
    "contiguous drop all": "702f1d85f5d1",
    "contiguous pad bytes": "0ebc7e55f6c5",
    "contiguous pad all": "d029692b1cf8",
    "contiguous wrap bytes": "7c105f3bde90",
    "contiguous wrap all": "c6b1eeabf1c6",
    "rotate none bytes": "dc23f4a080cf",
    "rotate none all": "06cbcc9c4b9e",
    "rotate drop bytes": "888d3c43e215",
    "rotate drop all": "ab0fd526799b",
    "rotate pad bytes": "b16a23e72b81",
    "rotate pad all": "bf7ddeadc210",
    "rotate wrap bytes": "00e4210e0e0d",
    "rotate wrap all": "a4ce76772b9c",
    "stick none bytes": "d83803332b90",
    "stick none all": "5302e01e8a05",
    "stick drop bytes": "3c5a09254aaf",
    "stick drop all": "58b7308afb01",
    "stick pad bytes": "3652ef7512ea",
    "stick pad all": "57d15da36f47",
    "stick wrap bytes": "93eee72f20a9",
    "stick wrap all": "ea55377b6ff1",
    "total_shards none bytes": "826fbdf3931a",
    "total_shards none all": "0d4823ad8ea0",
    "total_shards drop bytes": "d613fb826bc9",
    "total_shards drop all": "766cc21998da",
    "total_shards pad bytes": "b1733ea79e9a",
    "total_shards pad all": "0f0ad8201554",
    "total_shards wrap bytes": "df97c14e3425",
    "total_shards wrap all": "0ae8325ec883",
    "full_rotation none bytes": "826fbdf3931a",
    "full_rotation none all": "0d4823ad8ea0",
    "full_rotation drop bytes": "d613fb826bc9",
    "full_rotation drop all": "766cc21998da",
    "full_rotation pad bytes": "b1733ea79e9a",
    "full_rotation pad all": "0f0ad8201554",
    "full_rotation wrap bytes": "df97c14e3425",
    "full_rotation wrap all": "0ae8325ec883",
    "strided none bytes": "8c78843a2080",
    "strided none all": "841bedd6f3fd",
    "strided drop bytes": "0a0c675d3a06",
    "strided drop all": "1b1cfa618398",
    "strided pad bytes": "5d1ce01c0c72",
    "strided pad all": "a2c7c06ce8e2",
    "strided wrap bytes": "f2358be6a2e3",
    "strided wrap all": "a0034e1fbc70",
    "shard_batches none bytes": "756b9e3b63c2",
    "shard_batches none all": "bd5ae42f161d",
    "shard_batches drop bytes": "5c03fa6bbeed",
    "shard_batches drop all": "598854f50c20",
    "shard_batches pad bytes": "8b70c25e46ae",
    "shard_batches pad all": "7768e974d7b1",
    "shard_batches wrap bytes": "756b9e3b63c2",
    "shard_batches wrap all": "bd5ae42f161d",
    "split_batches none bytes": "be44c3367b30",
    "split_batches none all": "12040b2ec973",
    "split_batches drop bytes": "be44c3367b30",
    "split_batches drop all": "12040b2ec973",
    "split_batches pad bytes": "be44c3367b30",
    "split_batches pad all": "12040b2ec973",
    "split_batches wrap bytes": "be44c3367b30",
    "split_batches wrap all": "12040b2ec973",
    "auto none bytes": "773dd0d63609",
    "auto none all": "52b77501be1e",
    "auto drop bytes": "0654ee265fe8",
    "auto drop all": "f209bacfc2ec",
    "auto pad bytes": "420432871ad1",
    "auto pad all": "c6d6f3d6bbc0",
    "auto wrap bytes": "cfc8600754e5",
    "auto wrap all": "cfa82219f5e4",
    "unshuffled bytes": "20953a8e825b",
    "laps bytes": "e6598d9ac42f",
    "unknown bytes": "06d5a952e49d",
    "tasks bytes": "b9e76ed34932",
    "canonical interleave bytes": "ad9fac40a10c",
    "rest interleave bytes": "897cb87e23b0",
    "canonical contiguous bytes": "6e28b69753f4",
    "rest contiguous bytes": "1730067aaf82",
    "canonical strided bytes": "c46d40fb1f93",
    "rest strided bytes": "a38fcb89505d",
    "unshuffled all": "2a5d25d6bfa1",
    "laps all": "fda6974fbf68",
    "unknown all": "99b449b090b9",
    "tasks all": "fe0a4c44fb4d",
    "canonical interleave all": "800246f45a11",
    "rest interleave all": "55d9f5c14405",
    "canonical contiguous all": "41ef7708449e",
    "rest contiguous all": "15736ab19ae0",
    "canonical strided all": "1f8acf1f63be",
    "rest strided all": "250fd8791858",
    "interleave none bytes": "773dd0d63609",
    "mix once none splits": "8c33b71ad0cc",
    "mix rest once none splits": "d29e15e7320c",
    "mix once none windows": "a3343e0075e8",
    "mix rest once none windows": "c1fb8a815380",
    "mix once drop splits": "a40832a09a9a",
    "mix rest once drop splits": "ffdc6e9325e5",
    "mix once drop windows": "a6bc1685f0bc",
    "mix rest once drop windows": "f8a773cf3d56",
    "mix once pad splits": "e8a3adbd8b78",
    "mix rest once pad splits": "e25e275926a2",
    "mix once pad windows": "ff7f503f5257",
    "mix rest once pad windows": "361655a49702",
    "mix ended none splits": "f14d96b586cb",
    "mix rest ended none splits": "e650abb80018",
    "mix ended none windows": "a2b2709ad630",
    "mix rest ended none windows": "cebb72cb0e99",
    "mix ended drop splits": "875b31fcc141",
    "mix rest ended drop splits": "2d738592a376",
    "mix ended drop windows": "ee87b31f8124",
    "mix rest ended drop windows": "995dee6dccd2",
    "mix ended pad splits": "ecfdb0d26787",
    "mix rest ended pad splits": "93ed17cf45e0",
    "mix ended pad windows": "95e93cd91c55",
    "mix rest ended pad windows": "2d68d6450e2c",
    "mix run none splits": "2924a77e363b",
    "mix rest run none splits": "f49cf2fe0438",
    "mix run none windows": "5e1e338e17c4",
    "mix rest run none windows": "16e958f27f90",
    "mix run drop splits": "e9e4a4c4386a",
    "mix rest run drop splits": "0ebee85468d0",
    "mix run drop windows": "85e593623d1a",
    "mix rest run drop windows": "6a226c8e62fc",
    "mix run pad splits": "2924a77e363b",
    "mix rest run pad splits": "f49cf2fe0438",
    "mix run pad windows": "5e1e338e17c4",
    "mix rest run pad windows": "16e958f27f90",
    "mix curriculum none splits": "aaf2364e2beb",
    "mix rest curriculum none splits": "a0496367d55b",
    "mix curriculum none windows": "9a6e092fc3e2",
    "mix rest curriculum none windows": "46110a5946a0",
    "mix curriculum drop splits": "713caf80c7c5",
    "mix rest curriculum drop splits": "21c091ceff8a",
    "mix curriculum drop windows": "9d6301be043f",
    "mix rest curriculum drop windows": "25f8f67a040b",
    "mix curriculum pad splits": "aaf2364e2beb",
    "mix rest curriculum pad splits": "a0496367d55b",
    "mix curriculum pad windows": "9a6e092fc3e2",
    "mix rest curriculum pad windows": "46110a5946a0",
    "mix single once": "77341afe707c",
    "mix single ended": "0415c6726361",
    "mix single run": "ad9143fd621d",
}
