# Read by the scripts beside it. Installs packages of Debian's and Ubuntu's, as root or by sudo.

# apt_or_say SENTENCE PACKAGE...: end with SENTENCE where there is no apt-get, or nobody may use it
apt_or_say() {
    sentence=$1
    shift
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "$sentence" >&2
        exit 1
    fi
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            echo "The tests need $*. As root: apt-get install --yes $*" >&2
            exit 1
        fi
        as_root="sudo"
    fi
}

# apt_install PACKAGE...: after apt_or_say
apt_install() {
    echo "Installing $* (once) ..."
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "$@"
}
