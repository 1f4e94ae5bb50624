#!/usr/bin/env bash
# Build Horovod 0.28.1, the last release, for the torch of a virtual environment: scripts/build_horovod.sh [.venv]
#
# As released it does not build against a current torch, whose headers need C++20. Reductions go over gloo: no MPI, no NCCL.
# Needs a C++ compiler, make, and in the environment torch and cmake (extra `test-launchers`). 6 minutes on two cores, once:
# the wheel is kept in the user's cache for the next environment with the same Python and torch.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "${1:-$root/.venv}/bin" && pwd)
export PATH="$bin:$PATH"

versions=$(python -c 'import sys, torch; print(f"{sys.implementation.cache_tag}-torch{torch.__version__}")')
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/torch-dataloader-utils/horovod-$versions-$(cksum <"$root/scripts/build_horovod.sh" | cut -d " " -f 1)

build() {
    mkdir -p "$(dirname "$wheels")"
    folder=$(mktemp -d -p "$(dirname "$wheels")")
    trap 'rm -rf "$folder"' EXIT
    python -m pip download -qq --no-deps --no-build-isolation --no-binary :all: --dest "$folder" horovod==0.28.1
    tar -xzf "$folder"/horovod-0.28.1.tar.gz -C "$folder"
    cd "$folder/horovod-0.28.1"
    sed -i 's/set(CMAKE_CXX_STANDARD 1[0-9])/set(CMAKE_CXX_STANDARD 20)/' CMakeLists.txt horovod/torch/CMakeLists.txt

    export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
    export HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_WITHOUT_MPI=1
    export CMAKE_POLICY_VERSION_MINIMUM=3.5  # CMake 4 refuses what its third-party libraries ask for
    export MAKEFLAGS=-j$(nproc)
    python -m pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$folder/wheels" .
    mv -T "$folder/wheels" "$wheels"  # whole or not at all
}

if [ ! -d "$wheels" ]; then build; fi
python -m pip install -qq --disable-pip-version-check -c "$root/constraints.txt" "$wheels"/*.whl
HOROVOD_LOG_LEVEL=error horovodrun --check-build
