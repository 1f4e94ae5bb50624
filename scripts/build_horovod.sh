#!/usr/bin/env bash
# Build Horovod 0.28.1, the last release, for the torch of a virtual environment: scripts/build_horovod.sh [.venv]
#
# As released it does not build against a current torch, whose headers need C++20. Reductions go over gloo: no MPI, no NCCL.
# Needs a C++ compiler, make, and in the environment torch and cmake (extra `test-launchers`). 6 minutes on two cores.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "${1:-$root/.venv}/bin" && pwd)
export PATH="$bin:$PATH"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python -m pip download -qq --no-deps --no-build-isolation --no-binary :all: --dest "$folder" horovod==0.28.1
tar -xzf "$folder"/horovod-0.28.1.tar.gz -C "$folder"
cd "$folder/horovod-0.28.1"
sed -i 's/set(CMAKE_CXX_STANDARD 1[0-9])/set(CMAKE_CXX_STANDARD 20)/' CMakeLists.txt horovod/torch/CMakeLists.txt

export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
export HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_WITHOUT_MPI=1
export CMAKE_POLICY_VERSION_MINIMUM=3.5  # CMake 4 refuses what its third-party libraries ask for
export MAKEFLAGS=-j$(nproc)
python -m pip install -qq --disable-pip-version-check -c "$root/constraints.txt" --no-build-isolation .
HOROVOD_LOG_LEVEL=error horovodrun --check-build
