#!/usr/bin/env bash
# What the filter costs: one Envoy with it and without it, in turns, in front of the same pretend model server; and
# what 100,000 keys cost in time and memory. Compare the ratios, not the numbers.
#   ROUNDS=5 SECONDS_EACH=5 CONNECTIONS=32 KEYS=100000 ./tests/bench-filter.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/prerequisites.sh
need_build_tools
need_wasm_target
need_command wrk wrk
need_command python3 python3
need_envoy
rounds=${ROUNDS:-5} seconds=${SECONDS_EACH:-5} connections=${CONNECTIONS:-32} keys=${KEYS:-100000}

cargo build --locked --package switchyard-filter --profile wasm --target wasm32-wasip1 --target-dir target/wasm
if [ -z "${SWITCHYARD:-}" ]; then
    cargo build --locked --release --bin switchyard
    SWITCHYARD=target/release/switchyard
fi
dir=$(mktemp -d)
pids=()
finish() {
    kill "${pids[@]}" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
await() { # await PORT: until it answers
    for _ in $(seq 1200); do
        curl -fs -o /dev/null "http://127.0.0.1:$1/health" && return
        sleep 0.05
    done
    say "no answer on port $1; logs:"
    tail -n 20 "$dir"/*.log >&2
    exit 1
}

backend=$(free_port) few=$(free_port) many=$(free_port) bare=$(free_port) bare_beside_many=$(free_port)
"$SWITCHYARD" demo-backend --port "$backend" --model bench --load-time 0s --token-time 0s --slots 0 >"$dir/backend.log" 2>&1 &
pids+=($!)
await "$backend"

# envoy_with NAME KEYS PORT BARE_PORT: starts Envoy with the filter on one port and without it on another, and notes
# milliseconds until the first answer and resident KiB after it.
envoy_with() {
    python3 tests/bench/envoy_config.py "$2" "$3" "$4" "$backend" target/wasm/wasm32-wasip1/wasm/switchyard_filter.wasm \
        >"$dir/$1.json"
    local start
    start=$(date +%s%N)
    "$ENVOY" --config-path "$dir/$1.json" --use-dynamic-base-id --concurrency 1 --log-level error >"$dir/$1.log" 2>&1 &
    pids+=($!)
    local pid=$!
    await "$3"
    echo "$1 $((($(date +%s%N) - start) / 1000000)) $(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status")" >>"$dir/starts"
}
envoy_with few 10 "$few" "$bare"
envoy_with many "$keys" "$many" "$bare_beside_many"

load() { KEY=sk-7 wrk -t2 -c"$connections" -d"$1s" -s tests/bench/post.lua "http://127.0.0.1:$2" | sed -n 's/^RESULT //p'; }
for port in "$bare" "$few" "$many"; do load 2 "$port" >/dev/null; done
for _ in $(seq "$rounds"); do
    for name in bare few many; do
        echo "$name $(load "$seconds" "${!name}")" >>"$dir/results"
    done
done

python3 - "$dir/results" "$dir/starts" "$connections" "$keys" <<'PY'
import statistics
import sys

rows = [line.split() for line in open(sys.argv[1])]
values = lambda name, i: [float(row[i]) for row in rows if row[0] == name]
labels = {"bare": "without filter", "few": "10 keys", "many": f"{sys.argv[4]} keys"}
print(f"\nEnvoy with one worker, {sys.argv[3]} connections, medians of {len(values('bare', 1))} rounds in turns")
print(f"{'':16}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'errors':>10}")
for name, label in labels.items():
    rate, p50, p99 = (statistics.median(values(name, i)) for i in (1, 2, 3))
    print(f"{label:16}{rate:12.0f}{p50:10.2f}{p99:10.2f}{sum(values(name, 4)):10.0f}")
for name in ("few", "many"):
    ratios = [a / b for a, b in zip(values(name, 1), values("bare", 1))]
    print(f"{labels[name]} / without: {statistics.median(ratios):.2f} (each round: {', '.join(f'{r:.2f}' for r in ratios)})")
print()
starts = {name: (int(ms), int(kib)) for name, ms, kib in (line.split() for line in open(sys.argv[2]))}
for name, (ms, kib) in starts.items():
    print(f"{labels[name]}: first answer after {ms} ms, {kib / 1024:.0f} MiB resident")
PY
