#!/usr/bin/env bash
# Installs requirements/LOCK.txt and this package into a virtual environment, which it makes if there is none.
# usage: tools/install.sh VENV LOCK
# settings: PYTHON       the interpreter
#           TORCH_INDEX  package index for torch, e.g. one that has the CPU build
#           WHEELS       folder with a wheel of every package; no index is asked then
set -euo pipefail
venv=$1 lock=requirements/$2.txt

fail() { echo "install: $*" >&2; exit 1; }

if [ ! -x "$venv/bin/python" ]; then
  python=${PYTHON:-}
  for name in python3.11 python3.12 python3; do
    if [ -z "$python" ] && "$name" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null
    then python=$name; fi
  done
  [ -n "$python" ] || fail "no Python 3.11 or 3.12 found; install one (Debian: apt-get install python3 python3-venv) or set PYTHON"
  "$python" -m venv "$venv" || fail "$python cannot make a virtual environment (Debian: apt-get install python3-venv)"
fi
export DS_BUILD_OPS=0  # DeepSpeed compiles its own kernels when they are first wanted
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

if [ -n "${WHEELS:-}" ]; then
  pip install --quiet --no-index --find-links "$WHEELS" --no-deps --requirement "$lock"
  pip install --quiet --no-index --no-deps --no-build-isolation --editable .
  exit
fi

# Two packages come as C and C++ source. They compile while torch is fetched.
build=()
for package in fast-downward-textworld jericho; do
  pin=$(grep "^$package==" "$lock")
  if [ "$(pip list --format freeze 2>/dev/null | tr '_' '-' | grep -cxF "$pin")" = 0 ]; then build+=("$pin"); fi
done
if [ ${#build[@]} -gt 0 ]; then
  command -v c++ >/dev/null && command -v make >/dev/null ||
    fail "a C++ compiler and make are needed for ${build[*]} (Debian: apt-get install build-essential)"
fi
jobs=()
for pin in "${build[@]}"; do
  pip wheel --quiet --no-deps --wheel-dir "$venv/wheels" "$pin" & jobs+=($!)
done
pip install --quiet --constraint "$lock" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
for job in "${jobs[@]}"; do wait "$job" || fail "could not compile one of ${build[*]}, see above"; done

pip install --quiet --no-deps --find-links "$venv/wheels" --requirement "$lock"
pip install --quiet --no-deps --no-build-isolation --editable .
