"""Prints an Envoy configuration: envoy_config.py KEYS PORT BARE_PORT UPSTREAM_PORT WASM. The filter, with keys sk-0,
sk-1, …, is on PORT; BARE_PORT is the same without it."""

import hashlib
import json
import os
import sys

keys, port, bare_port, upstream = map(int, sys.argv[1:5])
wasm = os.path.abspath(sys.argv[5])
settings = {
    "keys": [
        {"sha256": hashlib.sha256(f"sk-{i}".encode()).hexdigest(), "tenant": f"tenant-{i // 3}", "tier": "pro"}
        for i in range(keys)
    ]
}
TYPE = "type.googleapis.com/envoy.extensions.filters."
filter_ = {
    "name": "switchyard",
    "typed_config": {
        "@type": TYPE + "http.wasm.v3.Wasm",
        "config": {
            "name": "switchyard",
            "failure_policy": "FAIL_RELOAD",
            "vm_config": {"runtime": "envoy.wasm.runtime.v8", "code": {"local": {"filename": wasm}}},
            "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": json.dumps(settings, separators=(",", ":")),
            },
        },
    },
}
router = {"name": "router", "typed_config": {"@type": TYPE + "http.router.v3.Router"}}


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def listener(name, port, filters):
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}]
    manager = {
        "@type": TYPE + "network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    }
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    return {"name": name, "address": address(port), "filter_chains": [chain]}


endpoints = [{"lb_endpoints": [{"endpoint": {"address": address(upstream)}}]}]
json.dump(
    {
        "static_resources": {
            "listeners": [listener("with", port, [filter_, router]), listener("without", bare_port, [router])],
            "clusters": [{"name": "upstream", "load_assignment": {"cluster_name": "upstream", "endpoints": endpoints}}],
        }
    },
    sys.stdout,
)
