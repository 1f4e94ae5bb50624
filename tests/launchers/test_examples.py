"""Each launcher's example, run as its first lines say: every flight once an epoch over the ranks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable

import pytest

from tests.launchers.conftest import ENDED, EXAMPLES, LEAVES_GLOO, NOTHING_COMPILED, Rows

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
Launch = Callable[..., Rows]
Check = Callable[[Rows, int], None]


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ddp(launch: Launch, check: Check, num_ranks: int) -> None:
    check(launch(*TORCHRUN, f"--nproc_per_node={num_ranks}", ENDED, EXAMPLES / "ddp_train.py"), num_ranks)


@pytest.mark.slow
def test_fsdp(launch: Launch, check: Check) -> None:
    check(launch(*TORCHRUN, "--nproc_per_node=2", LEAVES_GLOO, EXAMPLES / "fsdp_train.py"), 2)


@pytest.mark.slow
def test_deepspeed(launch: Launch, check: Check) -> None:
    needs("deepspeed")
    script = EXAMPLES / "deepspeed_train.py"
    check(launch(*TORCHRUN, "--nproc_per_node=2", NOTHING_COMPILED, script, DS_ACCELERATOR="cpu"), 2)


@pytest.mark.slow
def test_horovod(launch: Launch, check: Check) -> None:
    needs("horovod")
    check(launch("horovodrun", "-np", "2", sys.executable, EXAMPLES / "horovod_train.py"), 2)


@pytest.mark.slow
def test_ray(launch: Launch, check: Check) -> None:
    needs("ray")
    check(launch(sys.executable, EXAMPLES / "ray_train.py"), 2)


@pytest.mark.slow
def test_spark(launch: Launch, check: Check) -> None:
    needs("pyspark")
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("pyspark needs Java, and there is none")
    check(launch(sys.executable, EXAMPLES / "spark_train.py", SPARK_LOCAL_IP="127.0.0.1"), 2)


@pytest.mark.parametrize("change", ["half", "twice", "other epoch"])
def test_the_check_can_fail(expected: Callable[[int], Rows], check: Check, change: str) -> None:
    good = expected(2)
    check(good, 2)
    bad = {
        "half": [epoch[:1] for epoch in good],
        "twice": [[epoch[0], epoch[0]] for epoch in good],
        "other epoch": [good[0], good[0]],
    }
    with pytest.raises(AssertionError):
        check(bad[change], 2)
