#!/usr/bin/env bash
# Envoy with the filter in front of the gateway's demo. Everything runs until this is stopped.
#   LISTEN=127.0.0.1:10000 GATEWAY=127.0.0.1:8080 ADMIN=127.0.0.1:9901 ./examples/envoy/run.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/prerequisites.sh
need_build_tools
need_wasm_target
need_command curl curl
need_envoy
listen=${LISTEN:-127.0.0.1:10000} gateway=${GATEWAY:-127.0.0.1:8080} admin=${ADMIN:-127.0.0.1:9901}

cargo build --locked --package switchyard-filter --profile wasm --target wasm32-wasip1 --target-dir target/wasm
if [ -z "${SWITCHYARD:-}" ]; then
    cargo build --locked --release --bin switchyard
    SWITCHYARD=target/release/switchyard
fi

# A folder of its own, so that keys can be tried without touching the example.
dir=target/envoy-example
mkdir -p "$dir/keys"
cp target/wasm/wasm32-wasip1/wasm/switchyard_filter.wasm "$dir"
cp examples/envoy/keys/filter.yaml "$dir/keys"
cp examples/envoy/tiers.yaml examples/envoy/apply-keys.sh "$dir"
address() { echo "address: ${1%:*}, port_value: ${1##*:}"; }
sed -e "s/address: 127.0.0.1, port_value: 10000/$(address "$listen")/" \
    -e "s/address: 127.0.0.1, port_value: 8080/$(address "$gateway")/" \
    -e "s/address: 127.0.0.1, port_value: 9901/$(address "$admin")/" examples/envoy/envoy.yaml >"$dir/envoy.yaml"

pids=()
finish() {
    trap - EXIT INT TERM
    kill "${pids[@]}" 2>/dev/null || true
    wait
}
trap finish EXIT
trap 'exit 0' INT TERM
"$SWITCHYARD" serve --listen "$gateway" &
pids+=($!)
(cd "$dir" && exec "$ENVOY" --config-path envoy.yaml --use-dynamic-base-id --log-level warning) &
pids+=($!)
# /health needs no key, and says that the filter has its settings.
until curl -fs -o /dev/null "http://$listen/health"; do
    kill -0 "${pids[@]}" || exit 1
    sleep 0.1
done
cat <<TEXT

Envoy listens on $listen, the gateway on $gateway; keys are in $dir/tiers.yaml. Try:

  curl http://$listen/v1/models                                             # 401: no key
  curl -i http://$listen/v1/chat/completions -H 'Authorization: Bearer demo-max' \\
    -H 'X-LlamaSwap-Priority: batch' -d '{"model":"fast","messages":[{"role":"user","content":"Hello"}]}'
  curl 'http://$listen/api/activity?limit=5' -H 'x-api-key: demo-ops'       # priority -98, tenant bigco
  curl -s http://$admin/stats/prometheus | grep switchyard_filter

Or with a key of your own:

  $SWITCHYARD keys new --tenant me --tier pro      # paste what it prints at the end of $dir/tiers.yaml
  SWITCHYARD=$(realpath "$SWITCHYARD") $dir/apply-keys.sh
TEXT
wait -n "${pids[@]}"
