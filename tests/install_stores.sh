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

. "$(dirname "$0")/apt.sh"
# shellcheck disable=SC2086
apt_or_say "Install by your system's own means, then run again:$missing" $missing

# invoke-rc.d asks this script whether it may start a service (101: no)
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
    trap '$as_root rm -f "$policy"' EXIT
fi
# shellcheck disable=SC2086
apt_install $missing
