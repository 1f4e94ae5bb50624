"""Builds what is released: an sdist, and from it a wheel for each platform, and one without compiled libraries.

    pip install build ziglang
    python scripts/build_wheels.py dist [--only manylinux_2_28_x86_64 ...]

One machine builds them all: zig compiles for any platform. Wheels hold no extension modules, only libraries without a
Python or NumPy interface, so that one serves all versions of Python.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
PURE = "any"  # for all other platforms: numpy and pyarrow do what the libraries do
# Of each wheel, for which target zig compiles; glibc 2.28 and macOS 11 are the oldest that torch's wheels run on.
TARGETS: Mapping[str, str | None] = {
    "manylinux_2_28_x86_64": "x86_64-linux-gnu.2.28",
    "manylinux_2_28_aarch64": "aarch64-linux-gnu.2.28",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
    PURE: None,
}


def build_sdist(out: Path) -> Path:
    """Build the sdist of this checkout."""
    before = set(out.glob("*.tar.gz"))
    subprocess.run([sys.executable, "-m", "build", "--sdist", "--outdir", str(out), str(ROOT)], check=True)
    (made,) = set(out.glob("*.tar.gz")) - before
    return made


def build_wheel(sdist: Path, platform: str, out: Path) -> Path:
    """Build a platform's wheel from an sdist, in a folder of its own.

    Raises:
        RuntimeError: the wheel does not have the libraries that it must have.
    """
    target = TARGETS[platform]
    environment = {name: value for name, value in os.environ.items() if name not in ("CC", "WHEEL_PLATFORM")}
    if target is None:
        environment["CC"] = "none"
    else:
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", target]
        environment |= {"CC": shlex.join(zig), "WHEEL_PLATFORM": platform}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as packed:
            packed.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(Path(folder, "wheel")), str(source)]
        subprocess.run(command, env=environment, check=True)
        (made,) = Path(folder, "wheel").glob("*.whl")
        _check(made, platform, len(list(source.glob("torch_dataloader_utils/kernels/*.c"))))
        return Path(shutil.copy(made, out))


def _check(wheel: Path, platform: str, sources: int) -> None:
    """Check a wheel's tag, and that it has a library and its digest for each source, or none at all."""
    found = [name for name in ZipFile(wheel).namelist() if name.endswith((".library", ".sha256"))]
    expected = 0 if TARGETS[platform] is None else 2 * sources
    if not wheel.name.endswith(f"-py3-none-{platform}.whl") or len(found) != expected:
        raise RuntimeError(f"{wheel.name}: {len(found)} compiled files for {platform}, expected {expected}.")


def main() -> None:
    """Build into the folder named on the command line, and say how large each file is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), help="these platforms")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(given.out)
    made = [sdist, *(build_wheel(sdist, platform, given.out) for platform in given.only)]
    for file in made:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")


if __name__ == "__main__":
    main()
