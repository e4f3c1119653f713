#!/bin/sh
# Installs what the tests of the MariaDB and Redis sinks start: Debian's (and Ubuntu's) servers.
# Does nothing where both are there already. The servers that the packages would run by themselves
# are not needed and are told not to start.
set -eu

PATH="$PATH:/usr/sbin:/usr/local/sbin"
missing=""
command -v mariadbd >/dev/null 2>&1 || missing="$missing mariadb-server"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "Install by your system's own means, then run again:$missing" >&2
    exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "The tests need$missing. As root: apt-get install --yes$missing" >&2
        exit 1
    fi
    as_root="sudo"
fi

# invoke-rc.d asks this script whether it may start a service (101: no)
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
    trap '$as_root rm -f "$policy"' EXIT
fi
echo "Installing$missing (once) ..."
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $missing
