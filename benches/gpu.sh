#!/usr/bin/env bash
# The card: exactness first, then speed beside llama.cpp, one program at a time.
#
#   benches/gpu.sh --model FILE [--bin FOLDER] [--seats FOLDER] [--golden FOLDER] [--peer LLAMA_CPP/build/bin]
#                  [--out FOLDER] [--rounds N] [--quick] [--only PART[,PART...]]
#
# PART is one of: machine exact golden load profile decode streams prompt cold memory.
# --bin names a folder with bloomery-bench and bloomery-serve; without it they are built here (which needs cargo and nothing of CUDA).
# --golden names the kit of small models. Raw output goes to --out (default: ./gpu-out), the table to the standard output.
set -u -o pipefail

model="" bin="" seats="" golden="" peer="" out="gpu-out" rounds=3 quick=0 only=""
while [ $# -gt 0 ]; do
  case "$1" in
    --model) model=$2; shift 2 ;;
    --bin) bin=$2; shift 2 ;;
    --seats) seats=$2; shift 2 ;;
    --golden) golden=$2; shift 2 ;;
    --peer) peer=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --quick) quick=1; shift ;;
    --only) only=$2; shift 2 ;;
    *) sed -n '2,11p' "$0" >&2; exit 2 ;;
  esac
done
mkdir -p "$out"
wants() { [ -z "$only" ] || case ",$only," in *",$1,"*) true ;; *) false ;; esac; }

if [ -z "$bin" ]; then
  here=$(cd "$(dirname "$0")/.." && pwd)
  (cd "$here" && cargo build --release -p bloomery-bench -p bloomery-serve -p seat-qwen3) || exit 1
  bin=${CARGO_TARGET_DIR:-$here/target}/release
  seats=${seats:-$bin}
fi
seats=${seats:-$bin}
export BLOOMERY_SEATS="$seats"
failed=0
say() { printf '\n## %s\n\n' "$*"; }
keep() { tee -a "$out/$1"; }

if wants machine; then
  say "Machine"
  { date -u +%FT%TZ; nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,clocks.max.sm --format=csv
    grep -m1 'model name' /proc/cpuinfo; nproc; grep MemTotal /proc/meminfo; "$bin/bloomery-serve" --list-devices; } 2>&1 | keep machine.txt
fi

if wants exact; then
  say "Exactness: experts of every weight type, card against processor"
  "$bin/bloomery-bench" gpu-check 2>"$out/exact.err" | keep exact.txt || failed=1
fi

if wants golden && [ -n "$golden" ]; then
  say "Exactness: golden models, card against processor"
  models=()
  for file in "$golden"/qwen3moe/*.gguf "$golden"/real/*.gguf; do [ -f "$file" ] && models+=("$file"); done
  "$bin/bloomery-bench" gpu-check --only-models "--seats-dir=$seats" "${models[@]}" 2>"$out/golden.err" | keep golden.txt || failed=1
fi

[ -n "$model" ] || { echo "no --model: nothing is timed"; exit $failed; }
# Both sides read from the page cache.
cat "$model" > /dev/null

if wants load; then
  say "Plan and load"
  "$bin/bloomery-serve" -m "$model" --seats-dir "$seats" --backend cuda --plan 2>&1 | keep plan.txt
  "$bin/bloomery-bench" -m "$model" --seats-dir "$seats" --backend cuda -p 0 -n 1 -r 1 --log 2>&1 | grep -E 'GB/s|on the card|NVIDIA' | keep load.txt
fi

if wants profile; then
  say "One decode step, by operator"
  "$bin/bloomery-bench" -m "$model" --seats-dir "$seats" --backend cuda -p 0 -n 1 -r 1 --profile 2>&1 | keep profile.txt
fi

ours() { "$bin/bloomery-bench" -m "$model" --seats-dir "$seats" --backend cuda "$@" 2>>"$out/ours.err" | grep -E '^\| ' | grep -vE '^\| (model|---)' | keep ours.txt; }
theirs() { [ -n "$peer" ] && LD_LIBRARY_PATH="$peer:${LD_LIBRARY_PATH:-}" "$peer/llama-bench" -m "$model" -ngl 99 -fa 1 "$@" 2>>"$out/peer.err" | grep -E '^\| ' | grep -vE '^\| (model|---)' | keep peer.txt; }
repeat=$([ $quick = 1 ] && echo 1 || echo 3)

for round in $(seq "$rounds"); do
  if wants decode; then
    say "Decode, round $round"
    ours -p 0 -n 128 -r "$repeat"; theirs -p 0 -n 128 -r "$repeat"
    ours -p 0 -n 64 -d 512,4096 -r "$repeat"; theirs -p 0 -n 64 -d 512,4096 -r "$repeat"
  fi
  if wants prompt; then
    say "Prompt, round $round"
    ours -p 512 -n 0 -r "$repeat"; theirs -p 512 -n 0 -r "$repeat"
    ours -p 4096,16384 -n 0 -b 4096 -ub 4096 -r "$repeat"; theirs -p 4096,16384 -n 0 -b 4096 -ub 4096 -r "$repeat"
  fi
  if wants streams; then
    say "Streams, round $round"
    ours -p 0 -n 64 -d 512 --npl 1,8,32 -r "$repeat"
    [ -n "$peer" ] && LD_LIBRARY_PATH="$peer:${LD_LIBRARY_PATH:-}" "$peer/llama-batched-bench" -m "$model" -ngl 99 -fa on -npp 512 -ntg 64 -npl 1,8,32 -c 20480 2>>"$out/peer.err" | grep -E '^\|' | keep peer-streams.txt
  fi
  [ $quick = 1 ] && break
done

# Seconds from the start of a process to its first token, and the card's memory by then.
cold() {
  local name=$1; shift
  local port=$((20000 + RANDOM % 20000)) from to used
  from=$(date +%s.%N)
  "$@" --port $port >"$out/cold-$name.log" 2>&1 &
  local child=$!
  for _ in $(seq 6000); do
    curl -sf "http://127.0.0.1:$port/completion" -H 'Content-Type: application/json' -d '{"prompt":[1,2,3,4,5,6,7,8],"n_predict":1,"temperature":0}' >/dev/null && break
    kill -0 $child 2>/dev/null || break
    sleep 0.02
  done
  to=$(date +%s.%N)
  used=$(nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits 2>/dev/null | head -1 | cut -d, -f2)
  [ -n "$used" ] || used=$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -1)
  kill $child 2>/dev/null; wait $child 2>/dev/null
  awk -v n="$name" -v a="$from" -v b="$to" -v u="$used" 'BEGIN { printf "| cold start %s | %.2f s | %s MiB on the card |\n", n, b - a, u }' | keep cold.txt
}
if wants cold; then
  say "Cold start (file in the page cache), and device memory for 8192 tokens"
  for _ in $(seq $([ $quick = 1 ] && echo 1 || echo 2)); do
    cold ours "$bin/bloomery-serve" -m "$model" --seats-dir "$seats" --backend cuda -c 8192 -np 1
    [ -n "$peer" ] && LD_LIBRARY_PATH="$peer:${LD_LIBRARY_PATH:-}" cold peer "$peer/llama-server" -m "$model" -ngl 99 -fa on -c 8192 -np 1
  done
fi

say "Medians"
python3 - "$out" <<'TABLE'
import re, statistics, sys
def rows(name):
    found = {}
    try:
        for line in open(f"{sys.argv[1]}/{name}"):
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if len(cells) < 3: continue
            ubatch = "4096" if name == "peer.txt" and "4096" in cells[4:7] else ""
            rate = re.match(r"([0-9.]+)", cells[-1])
            if rate: found.setdefault(cells[-2], []).append(float(rate.group(1)))
    except OSError: pass
    return {k: statistics.median(v) for k, v in found.items()}
def streams(name):
    found = {}
    try:
        for line in open(f"{sys.argv[1]}/{name}"):
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if len(cells) >= 8 and cells[0].isdigit(): found.setdefault(f"tg64 x{cells[2]} @ d512", []).append(float(cells[7]))
    except OSError: pass
    return {k.replace(" x1 ", " "): statistics.median(v) for k, v in found.items()}
ours, peer, batched = rows("ours.txt"), rows("peer.txt"), streams("peer-streams.txt")
peer.update({k: v for k, v in batched.items() if k not in peer})
print("| test | ours, tok/s | llama.cpp, tok/s | ratio |\n| --- | ---: | ---: | ---: |")
for test in ours:
    p = peer.get(test)
    print(f"| {test} | {ours[test]:.1f} | {f'{p:.1f}' if p else '-'} | {f'{ours[test]/p:.2f}' if p else '-'} |")
TABLE
exit $failed
