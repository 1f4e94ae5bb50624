"""Compiles the package's C libraries when it is built or installed; without a C compiler, others do their work."""

import os
import runpy
import shlex
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

KERNELS = "torch_dataloader_utils/kernels"
# An implicit declaration cuts offsets of 64 bits; bytes of files are read as numbers of any width; a product and a sum
# that are rounded together have other bits than numpy's.
FLAGS = (
    *("-std=c99", "-O3", "-fno-strict-aliasing", "-ffp-contract=off", "-Werror=implicit-function-declaration"),
    *("-shared", "-fPIC", "-s"),
)


class CompiledKernels(BuildHookInterface[Any]):
    """Puts each library beside its source, for a wheel and for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the libraries, and tag the wheel by the machine that it runs on.

        `WHEEL_PLATFORM` names another one, for which `CC` compiles: such a wheel has all libraries, or is not built.
        """
        folder, platform = Path(self.root, KERNELS), os.environ.get("WHEEL_PLATFORM")
        for source, library in runpy.run_path(str(folder / "library.py"))["paths"]().items():
            if problem := compiled(source, library):
                if platform:
                    raise RuntimeError(f"{source.name} was not compiled for {platform}: {problem}")
                self.app.display_warning(f"{source.name} was not compiled, so the package is slower: {problem}")
                continue
            for old in set(folder.glob(f"{source.stem}-*.library*")) - {library, digest_of(library)}:
                old.unlink()
            build_data["artifacts"] += [f"{KERNELS}/{library.name}", f"{KERNELS}/{digest_of(library).name}"]
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform or next(sys_tags()).platform}"


def digest_of(library: Path) -> Path:
    """The file with the digest of a library, by which a damaged copy is told before it is loaded."""
    return library.with_name(f"{library.name}.sha256")


def _is_same(one: Path, other: Path) -> bool:
    """Whether both files exist and hold the same bytes."""
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


def compiled(source: Path, library: Path) -> str | None:
    """Compile a shared library; returns what went wrong."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        return f"there is no C compiler {compiler[0]!r}; name one by CC"
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, library.name)
        command = [*compiler, *FLAGS, "-o", str(made), str(source)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            return f"{shlex.join(command)} failed:\n{done.stderr}"
        digest = digest_of(made)
        digest.write_text(sha256(made.read_bytes()).hexdigest())
        if _is_same(made, library) and _is_same(digest, digest_of(library)):
            return None  # as it is, also for processes that load it now
        # At no moment a library is beside the digest of another: without any, numpy does its work.
        digest_of(library).unlink(missing_ok=True)
        made.replace(library)
        digest.replace(digest_of(library))
    return None
