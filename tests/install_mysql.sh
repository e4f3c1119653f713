#!/bin/sh
# Unpacks a real MySQL server for the tests into .eo/mysql, beside the jars. MariaDB calls itself
# MySQL and is another program: what one refuses, the other may take.
#
# The system is not touched, and nobody need be root: apt-get fetches Debian's own packages (from
# the mirror that this machine uses) with lists and a cache of its own, dpkg-deb unpacks them, and
# the server is run by the dynamic linker that came with them. Does nothing where it is done already.
set -eu

home="$(cd "$(dirname "$0")/.." && pwd)/.eo"
target="$home/mysql"
[ ! -e "$target/unpacked" ] || exit 0

fail() {
    echo "tests/install_mysql.sh: $1" >&2
    exit 1
}

for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null 2>&1 ||
        fail "the tests need MySQL's server from Debian's packages, and there is no $tool here"
done

# Debian has MySQL in its unstable suite only, Ubuntu in every release.
. /etc/os-release
suite="$VERSION_CODENAME"
mirror="$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
    awk -v suite="$suite" '$2 == suite { print $1; exit }')"
[ -n "$mirror" ] || fail "apt-get names no mirror for $suite: look at apt's sources"
[ "$ID" != debian ] || suite=sid

work="$home/mysql.new"
rm -rf "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/tree"
echo "deb $mirror $suite main" >"$work/sources.list"

apt_get() {
    apt-get -qq -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$work/lists" -o Dir::State::status=/dev/null \
        -o Dir::Cache="$work/cache" -o Debug::NoLocking=true -o APT::Sandbox::User= \
        -o APT::Get::List-Cleanup=false -o Acquire::Retries=5 -o Acquire::Languages=none \
        -o APT::Default-Release= "$@"
}

echo "Fetching MySQL's server (once) ..."
apt_get update || fail "the list of packages of $suite could not be fetched from $mirror"
package="$(apt-cache -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache" \
    pkgnames mysql-server-core | sort -V | tail -n 1)"
[ -n "$package" ] || fail "$suite at $mirror has no package mysql-server-core"
apt_get install --yes --download-only --no-install-recommends "$package" ||
    fail "$package could not be fetched from $mirror"
for deb in "$work"/cache/archives/*.deb; do
    dpkg-deb --extract "$deb" "$work/tree" || fail "$deb cannot be unpacked"
done
[ -x "$work/tree/usr/sbin/mysqld" ] || fail "$package has no usr/sbin/mysqld"

rm -rf "$target"
mv "$work/tree" "$target"
rm -rf "$work"
touch "$target/unpacked"
