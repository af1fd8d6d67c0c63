#!/usr/bin/env bash
# Installs the Debian packages that some tests need, where it may: as root, with apt-get. It never fails: tests whose
# programs are not there are skipped and say so.
set -uo pipefail
cd "$(dirname "$0")/.."
slurm=$(sed -n 's/^PACKAGES = "\(.*\)"$/\1/p' tests/cluster/sandbox.py)
groups=("chromium chromium-driver" "texlive-latex-base texlive-latex-recommended" "$slurm")

say() { echo "system packages: $*" >&2; }
installed() { [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
quietly() { DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -qq -o Acquire::Retries=2 -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@" 2>&1; }

missing=()
for group in "${groups[@]}"; do
  for package in $group; do
    installed "$package" || { missing+=("$group"); break; }
  done
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "not root, or no apt-get: tests that need ${missing[*]} will be skipped"
  exit 0
fi
quietly update >/dev/null || say "apt-get update failed, the lists of packages may be old"
for group in "${missing[@]}"; do
  if output=$(quietly install -y --no-install-recommends $group); then
    say "installed $group"
  else
    say "could not install $group, tests that need them will be skipped: $(tail -n 1 <<<"$output")"
  fi
done
