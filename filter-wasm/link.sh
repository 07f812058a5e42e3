#!/bin/sh
# The linker for wasm32-wasip1, see .cargo/config.toml: rust-lld, less the exports that the filter has no use for.
#
# The proxy-wasm SDK exports every callback there is, most of them empty here. A proxy enters the VM for each one that
# it finds, at headers, bodies and the end of every request, but skips those that a module does not export.
set -eu
export=
for argument; do
    shift
    case $export$argument in
    --export)
        # The name comes next.
        export=--export=
        continue
        ;;
    --export=proxy_on_memory_allocate | --export=proxy_on_vm_start | --export=proxy_on_configure) ;;
    # A context that is created must be deleted, or the SDK keeps it for ever.
    --export=proxy_on_context_create | --export=proxy_on_request_headers | --export=proxy_on_delete) ;;
    --export=proxy_on_*)
        export=
        continue
        ;;
    esac
    set -- "$@" "$export$argument"
    export=
done
exec rust-lld "$@"
