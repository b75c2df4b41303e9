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
# One text for an architecture: compile ARCHITECTURE OUT.ptx [FLAG...]
compile() {
  local architecture=$1 out=$2
  shift 2
  local rustc=("$core/root/usr/bin/rustc" --edition 2024 --target nvptx64-nvidia-cuda -C opt-level=3 -C "target-cpu=$architecture"
    -C target-feature=+ptx78 -C panic=abort -C codegen-units=1 -C llvm-args=--unroll-threshold=750 --cap-lints allow
    --extern core="$core/nvptx/libcore.rlib" -L "$core/nvptx" "$@")
  "${rustc[@]}" --crate-type rlib --crate-name bloomery_formats \
    --emit=link="$work/libbloomery_formats.rlib",asm="$work/formats.ptx" "$here/../../kernels-cpu/formats/src/lib.rs"
  "${rustc[@]}" --crate-type lib --crate-name bloomery_kernels_device --emit=asm -o "$work/kernels.ptx" \
    --extern bloomery_formats="$work/libbloomery_formats.rlib" "$here/src/lib.rs"
  python3 "$here/tools/join-tables.py" "$work/kernels.ptx" "$work/formats.ptx" "$out"
}
compile sm_80 "$here/../ptx/sm_80.ptx"
if [ $# -gt 1 ]; then
  # Launches that overlap need sm_90.
  compile sm_90 "$work/sm_90.ptx" --cfg overlap
  "$2" -arch=sm_90 -O3 "$work/sm_90.ptx" -o "$here/../ptx/sm_90.cubin"
fi
