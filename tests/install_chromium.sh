#!/bin/sh
# Installs the browser that tests/dagster/test_in_the_browser.py drives: Debian's Chromium. Does
# nothing where one is there already; CHROMIUM names one that is somewhere else.
set -eu

[ -z "${CHROMIUM:-}" ] || exit 0
for name in chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null 2>&1 || exit 0
done

if ! command -v apt-get >/dev/null 2>&1; then
    echo "The tests of Dagster's pages need a Chromium: install one, or name it by CHROMIUM." >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "The tests need a Chromium. As root: apt-get install --yes chromium" >&2
        exit 1
    fi
    as_root="sudo"
fi
echo "Installing chromium (once) ..."
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium
