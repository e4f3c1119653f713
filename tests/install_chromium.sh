#!/bin/sh
# Installs the browser that tests/dagster/test_in_the_browser.py drives: Debian's Chromium. Does
# nothing where one is there already; CHROMIUM names one that is somewhere else.
set -eu

[ -z "${CHROMIUM:-}" ] || exit 0
for name in chromium chromium-browser google-chrome; do
    ! command -v "$name" >/dev/null 2>&1 || exit 0
done

. "$(dirname "$0")/apt.sh"
apt_or_say "The tests of Dagster's pages need a Chromium: install one, or name it by CHROMIUM." chromium
apt_install chromium
