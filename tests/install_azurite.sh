#!/bin/sh
# Installs Azure's emulator into .eo/azurite for the tests, by npm (370 MB); does nothing where it is
# there already. Where there is no Node.js, Debian's (and Ubuntu's) is installed.
set -eu

version=3.37.0
target="$(cd "$(dirname "$0")/.." && pwd)/.eo/azurite"
[ ! -e "$target/installed" ] || exit 0

if ! command -v npm >/dev/null 2>&1; then
    . "$(dirname "$0")/apt.sh"
    apt_or_say "The tests need Node.js and npm, for Azure's emulator: install them, then run again." nodejs npm
    apt_install nodejs npm
fi

echo "Fetching Azure's emulator (once) ..."
rm -rf "$target"
mkdir -p "$target"
npm install --silent --no-audit --no-fund --no-progress --ignore-scripts --prefix "$target" "azurite@$version" || {
    echo "tests/install_azurite.sh: npm could not fetch azurite $version; check the network and run again" >&2
    exit 1
}
touch "$target/installed"
