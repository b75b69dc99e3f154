#!/usr/bin/env bash
# Makes .venv, or brings it up to date with pyproject.toml. One line at least every ten seconds.
set -euo pipefail

beat=
python=${PYTHON:-python3}
installable=$([ "$(id -u)" = 0 ] && command -v apt-get || true)

busy() { # text, command…: run it, say that it goes on, show its output only if it fails
    local text=$1 log
    shift
    echo "==> $text"
    log=$(mktemp)
    (while sleep 10 >/dev/null 2>&1 </dev/null; do echo "    … still at it"; done) &
    beat=$!
    trap '[ -z "$beat" ] || kill "$beat" 2>/dev/null || true' EXIT
    if ! "$@" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "failed: $*   (whole output: $log)" >&2
        exit 1
    fi
    kill "$beat"
    beat=
    rm -f "$log"
}

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ -z "$installable" ]; then
        echo "Python with venv is missing; on Debian or Ubuntu as root: apt-get install python3-venv" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    busy "reading package lists" apt-get update
    busy "installing with apt-get: python3-venv" apt-get install -y --no-install-recommends python3-venv
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Python 3.11 or newer is needed; name one by: make PYTHON=/path/to/python" >&2
    exit 1
fi
# A checkout that was copied, not cloned, may have lost the link by which edits in providers/ are live.
[ -L .editable/vkubelet_providers ] || { mkdir -p .editable && ln -sfn ../providers .editable/vkubelet_providers; }
[ -x .venv/bin/python ] || busy "making .venv" "$python" -m venv .venv
# Without --no-compile, every module of every package is compiled now, also the many that nobody imports; the others are at their first import.
busy ".venv: installing what pyproject.toml names" \
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --no-compile -e '.[test,dev,docs,fast]'
touch .venv/.stamp
