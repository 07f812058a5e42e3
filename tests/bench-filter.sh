#!/usr/bin/env bash
# What the filter costs: Envoy with it and without it, in turns, before the gateway as in examples/envoy, and before a
# pretend model server alone, which shows the most that it can cost; and what 100,000 keys cost in time and memory.
# Compare the ratios, not the numbers: all of it shares this machine with the load.
#   ROUNDS=20 SECONDS_EACH=1 CONNECTIONS=32 KEYS=100000 ./tests/bench-filter.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/bench-lib.sh
need_wasm_target
need_envoy
keys=${KEYS:-100000}

wasm=${FILTER:-target/wasm/wasm32-wasip1/wasm/switchyard_filter.wasm}
if [ -z "${FILTER:-}" ]; then
    cargo build --locked --package switchyard-filter --profile wasm --target wasm32-wasip1 --target-dir target/wasm
fi
switchyard=${SWITCHYARD:-target/release/switchyard}
if [ -z "${SWITCHYARD:-}" ]; then
    cargo build --locked --release --bin switchyard
fi

pretend_model backend --model bench --token-time 0s
cat >"$dir/switchyard.yaml" <<YAML
models:
  bench:
    proxy: http://127.0.0.1:${port[backend]}
    concurrencyLimit: 10000
YAML
port[gateway]=$(free_port)
start gateway "$switchyard" serve --config "$dir/switchyard.yaml" --listen "127.0.0.1:${port[gateway]}"
await "${port[gateway]}"

# envoy NAME KEYS UPSTREAM: Envoy with the filter, as NAME, and without it, as NAME-without. Says how long it took to
# the first answer, and how much memory it had then.
envoy() {
    local name=$1 begin
    port[$name]=$(free_port) port[$name-without]=$(free_port)
    python3 tests/bench/envoy_config.py "$2" "${port[$name]}" "${port[$name-without]}" "${port[$3]}" "$wasm" >"$dir/$name.json"
    begin=$(date +%s%N)
    start "$name" "$ENVOY" --config-path "$dir/$name.json" --use-dynamic-base-id --concurrency 1 --log-level error
    await "${port[$name]}"
    pid[$name-without]=${pid[$name]}
    echo "$2 keys: first answer after $((($(date +%s%N) - begin) / 1000000)) ms," \
        "$(awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/${pid[$name]}/status") MiB resident"
}
envoy few 10 gateway
envoy many "$keys" gateway
envoy alone 10 backend

export KEY=sk-7
measure few-without few many alone-without alone
report "Envoy with one worker before the gateway, $connections connections" few-without=without "few=10 keys" "many=$keys keys"
report "Before a pretend model server alone" alone-without=without "alone=10 keys"
