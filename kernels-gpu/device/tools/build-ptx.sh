#!/usr/bin/env bash
# The committed PTX and the ready code for sm_90.
#
#   build-ptx.sh CORE [PTXAS]
#
# CORE holds root/usr/bin/rustc and nvptx/libcore.rlib, built for nvptx64-nvidia-cuda; PTXAS assembles kernels-gpu/ptx/sm_90.cubin.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
core=$1
export LD_LIBRARY_PATH=$core/root/usr/lib/x86_64-linux-gnu RUSTC_BOOTSTRAP=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile() {
  "$core/root/usr/bin/rustc" --edition 2024 --target nvptx64-nvidia-cuda -C opt-level=3 -C target-cpu=sm_80 -C target-feature=+ptx78 \
    -C panic=abort -C codegen-units=1 -C llvm-args=--unroll-threshold=750 --cap-lints allow \
    --extern core="$core/nvptx/libcore.rlib" -L "$core/nvptx" "$@"
}
compile --crate-type rlib --crate-name bloomery_formats --emit=link="$work/libbloomery_formats.rlib",asm="$work/formats.ptx" \
  "$here/../../kernels-cpu/formats/src/lib.rs"
compile --crate-type lib --crate-name bloomery_kernels_device --emit=asm -o "$work/kernels.ptx" \
  --extern bloomery_formats="$work/libbloomery_formats.rlib" "$here/src/lib.rs"
python3 "$here/tools/join-tables.py" "$work/kernels.ptx" "$work/formats.ptx" "$here/../ptx/sm_80.ptx"
if [ $# -gt 1 ]; then "$2" -arch=sm_90 -O3 "$here/../ptx/sm_80.ptx" -o "$here/../ptx/sm_90.cubin"; fi
