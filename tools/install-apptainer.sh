#!/usr/bin/env bash
# Puts Apptainer below PREFIX on Debian 12, which has no package of it: unpacks the package of a newer Debian together
# with the C library that it wants, and leaves the machine's own libraries alone. Needs root and Debian's mirror.
# usage: tools/install-apptainer.sh PREFIX      then put PREFIX/bin on the PATH
# settings: SUITE   the Debian release to take it from (default: sid)
set -euo pipefail
prefix=$(realpath -m "${1:?usage: tools/install-apptainer.sh PREFIX}")
suite=${SUITE:-sid}
fail() { echo "install-apptainer: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || fail "needs root"
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "needs a Debian machine"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists" "$work/cache/archives/partial" "$work/debs" "$prefix/bin"

# An apt of its own, with the mirror that this machine uses and one more suite.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -v security | head -n 1)
[ -n "$mirror" ] || fail "apt knows no mirror: run apt-get update"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" > "$work/sources.list"
cat > "$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
END
export APT_CONFIG=$work/apt.conf
apt-get -qq update
(cd "$work/debs" && apt-get -qq download apptainer libc6 libseccomp2 libsqlite3-0)
unset APT_CONFIG
for package in "$work"/debs/*.deb; do dpkg-deb --extract "$package" "$prefix"; done

missing=()
for pair in mksquashfs:squashfs-tools squashfuse:squashfuse newuidmap:uidmap patchelf:patchelf fuse-overlayfs:fuse-overlayfs
do command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}"); done
if [ ${#missing[@]} -gt 0 ]; then
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

libraries=$prefix/usr/lib/x86_64-linux-gnu
for binary in "$prefix/usr/bin/apptainer" "$libraries/apptainer/bin/starter"; do
  patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath --set-rpath "$libraries" "$binary"
done
# Apptainer looks for its files beside its binary.
ln -sfn ../etc "$prefix/usr/etc"
ln -sfn ../../etc "$prefix/usr/lib/etc"
mkdir -p "$prefix/usr/var/lib/apptainer/mnt/session" "$prefix/usr/lib/var/lib/apptainer/mnt/session"
# root keeps the rights of a file's owner in a container, so that rules can write where Slurm runs as root
sed -i 's/^root default capabilities.*/root default capabilities = file/' "$prefix/etc/apptainer/apptainer.conf"
ln -sfn ../usr/bin/apptainer "$prefix/bin/apptainer"
ln -sfn ../usr/bin/apptainer "$prefix/bin/singularity"
"$prefix/bin/apptainer" --version
