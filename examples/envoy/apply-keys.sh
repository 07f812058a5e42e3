#!/usr/bin/env bash
# Puts the keys and tiers of tiers.yaml in force: writes them into keys/filter.yaml, in one move so that Envoy sees the
# change whole. Nothing happens when there is a mistake in them. SWITCHYARD names the binary where it is not on PATH.
set -euo pipefail
cd "$(dirname "$0")"
settings=$("${SWITCHYARD:-switchyard}" keys export --config tiers.yaml)
{
    sed '/ value: |$/q' keys/filter.yaml
    sed 's/^/            /' <<<"$settings"
} >keys.new
mv keys.new keys/filter.yaml
