#!/usr/bin/env bash
# A Python that this system does not have, from Debian unstable, in a folder of its own below build/, and the tests of
# the command line and of the language server with it. Debian and root only; nothing of the system is changed.
#   scripts/next_python.sh [3.14] [TESTS...]
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-3.14}
shift || true
TESTS=("$@")
[ ${#TESTS[@]} -gt 0 ] || TESTS=(
	tests/shared_analysis/source
	tests/server/cli/test_check.py
	tests/server/cli/test_fix.py
	tests/server/cli/test_pages.py
	tests/server/lsp/test_product.py
	tests/server/lsp/test_features.py
)
here=$PWD/build/python$version
root=$here/root
apt=(apt-get -o Dir="$here/apt" -o Dir::State::status="$here/apt/status" -o Dir::Cache="$here/apt/cache"
	-o Acquire::Languages=none -o APT::Install-Recommends=0 -o Debug::NoLocking=1 -qq)

if [ ! -x "$root/usr/bin/python$version" ]; then
	mkdir -p "$here"/apt/{cache/archives/partial,etc/apt/apt.conf.d,etc/apt/preferences.d,var/lib/apt/lists/partial} "$root"
	touch "$here/apt/status"
	# how the mirror is reached
	grep -l Acquire:: /etc/apt/apt.conf.d/* 2>/dev/null | xargs -r cp -t "$here/apt/etc/apt/apt.conf.d" || true
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -1)
	keys=/usr/share/keyrings/debian-archive-keyring.gpg
	echo "deb [signed-by=$keys] $mirror sid main" >"$here/apt/etc/apt/sources.list"
	"${apt[@]}" update
	"${apt[@]}" --yes --download-only install "python$version" "python$version-venv" bash coreutils git patch diffutils
	for package in "$here"/apt/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
	ln -sf bash "$root/usr/bin/sh"
	mkdir -p "$root"/{tmp,dev,proc,src}
	mknod -m 666 "$root/dev/null" c 1 3
	mknod -m 666 "$root/dev/urandom" c 1 9
fi

libraries=$root/opt/libraries
rm -rf "$libraries" "$root/src"
mkdir -p "$root/src" "$root/usr/local/lib/python$version/dist-packages"
git archive HEAD | tar x -C "$root/src"
# whatever the system below, its wheels are those of a current Linux
.venv/bin/python -m pip install --quiet --disable-pip-version-check --target "$libraries" --python-version "$version" \
	--only-binary=:all: --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	'libcst>=1.8' 'pygls>=2.1,<3' 'jedi<0.21' rich pytest hypothesis jsonschema pytest-asyncio pytest-lsp pyyaml
printf '%s\n' /src/server /src/shared_analysis /src/memory_model /opt/libraries \
	>"$root/usr/local/lib/python$version/dist-packages/torchwise.pth"
inside() {
	chroot "$root" /usr/bin/env -i HOME=/tmp PATH=/usr/bin:/bin PYTHONUTF8=1 PYTHONDONTWRITEBYTECODE=1 "$@"
}
if mount -t proc proc "$root/proc" 2>/dev/null; then trap 'umount "$root/proc"' EXIT; fi
inside "python$version" --version
inside bash -c 'cd /src && exec "$@"' bash "python$version" -m pytest -q -p no:cacheprovider "${TESTS[@]}"
