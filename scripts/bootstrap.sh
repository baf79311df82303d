#!/usr/bin/env bash
# Prepares a checkout on a fresh Debian or Ubuntu machine: `scripts/bootstrap.sh [all|python|engine]`.
# Needs Python 3.11 to 3.13 and, as root, nothing else. Every step looks first and does only what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

goal=${1:-all}
export DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
exec </dev/null

say() { printf '[setup] %s\n' "$*"; }
fail() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

# --- Python ---------------------------------------------------------------------------------------------------
find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# --- Debian packages ------------------------------------------------------------------------------------------
# need PACKAGE TEST...: remember PACKAGE if TEST fails.
missing=()
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! is_root || ! command -v apt-get >/dev/null; then
        fail "missing: ${missing[*]} (as root on Debian or Ubuntu: apt-get install ${missing[*]})"
    fi
    say "apt-get install ${missing[*]}"
    local log
    log=$(mktemp)
    apt-get update -q >"$log" 2>&1 || say "apt-get update failed: trying with the package lists at hand"
    if ! apt-get install -y --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "apt-get failed; its whole output is in $log"
    fi
    rm -f "$log"
    missing=()
}

python=$(find_python) || fail "Python 3.11, 3.12 or 3.13 is needed: install one, or name it (make PYTHON=/path/to/python3.12)"

if [ ! -x .venv/bin/python ]; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    need "python$version-venv" "$python" -c 'import ensurepip, venv'
fi
if [ "$goal" = all ]; then
    need bubblewrap command -v bwrap
    need debootstrap command -v debootstrap
fi
if [ "$goal" != python ]; then
    need iptables test -x /usr/sbin/iptables
    if is_root && [ "${ROLLBOOK_INSTALL_DOCKER:-1}" != 0 ] && [ -z "${DOCKER_HOST:-}" ]; then
        need docker.io command -v dockerd
        if grep -qs Y /sys/module/apparmor/parameters/enabled; then
            # The engine starts no container on a kernel with AppArmor when this tool is missing.
            need apparmor test -x /usr/sbin/apparmor_parser
        fi
    fi
fi
if ! is_root; then
    # An ordinary user needs none of these when the engine is there and the image can be pulled: doctor reports them.
    hard=()
    for package in ${missing[@]+"${missing[@]}"}; do
        case $package in debootstrap | iptables) ;; *) hard+=("$package") ;; esac
    done
    missing=(${hard[@]+"${hard[@]}"})
fi
install_missing

# --- the Docker engine ------------------------------------------------------------------------------------------
engine_answers() { .venv/bin/python -c 'import docker; docker.from_env(timeout=10).ping()' >/dev/null 2>&1; }

# Use the engine that answers, else start the installed one. One that is started here outlives this script; its process
# is written down, so that `rollbook down --engine` stops it and no other.
ensure_engine() {
    if engine_answers; then return; fi
    [ -z "${DOCKER_HOST:-}" ] || fail "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST: start it, or unset DOCKER_HOST"
    is_root || fail "no Docker engine answers: start it, and join its group (sudo usermod -aG docker \$USER)"
    local dockerd state
    dockerd=$(PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v dockerd) ||
        fail "Docker is not installed and ROLLBOOK_INSTALL_DOCKER is 0: apt-get install docker.io iptables apparmor"
    say "starting the Docker engine"
    if [ -d /run/systemd/system ]; then
        systemctl start docker
        wait_for_engine "journalctl -u docker"
        return
    fi
    state=$(.venv/bin/python -c 'from rollbook.config.settings import load_settings as s
from rollbook.stack.state import StateDir
print(StateDir.made(s()).root)')
    # The engine outlives this shell: it keeps no key of its environment, only the way to registries.
    local name engine_env=(PATH="$PATH:/usr/sbin:/usr/local/sbin" HOME="${HOME:-/root}")
    for name in HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy SSL_CERT_FILE SSL_CERT_DIR TMPDIR; do
        [ -z "${!name:-}" ] || engine_env+=("$name=${!name}")
    done
    # --fork: the engine is not a child of this script and leaves no zombie.
    (cd / && env -i "${engine_env[@]}" setsid --fork "$dockerd" >>"$state/logs/dockerd.log" 2>&1)
    wait_for_engine "$state/logs/dockerd.log"
    .venv/bin/python -c 'import sys
from rollbook.config.settings import load_settings
from rollbook.stack.lifecycle import record_engine
record_engine(load_settings(), int(sys.argv[1]))' "$(cat /var/run/docker.pid)"
}

wait_for_engine() {
    local _
    for _ in $(seq 120); do
        if engine_answers; then return; fi
        sleep 0.5
    done
    fail "the Docker engine does not start: see $1"
}

if [ "$goal" = engine ] && [ -x .venv/bin/rollbook ]; then
    ensure_engine
    exit
fi

# --- .venv ----------------------------------------------------------------------------------------------------
if [ ! -x .venv/bin/python ]; then
    say "creating .venv with $("$python" --version)"
    rm -rf .venv
    "$python" -m venv .venv
fi

stamp=.venv/rollbook-setup
wanted=$({ cat requirements/dev.txt scripts/uv.txt pyproject.toml; .venv/bin/python --version; pwd; } | sha256sum)
# uv does not read pip's configuration: hand the package index on.
index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "installing requirements/dev.txt and the project into .venv"
    .venv/bin/python -m pip install --quiet --require-hashes --no-deps -r scripts/uv.txt
    .venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes --compile-bytecode -r requirements/dev.txt
    .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e .
    printf '%s\n' "$wanted" >"$stamp"
else
    say ".venv is up to date"
fi
[ "$goal" != python ] || exit 0

say "Docker engine"
ensure_engine
[ "$goal" = all ] || exit 0

# --- the evaluator, the desktop image -----------------------------------------------------------------------------
say "evaluator environment (.venv-osworld)"
.venv/bin/python -m rollbook.osworld.environment
say "desktop image (the first build takes some minutes)"
.venv/bin/python -m rollbook.sandboxes.docker.image
say "ready"
