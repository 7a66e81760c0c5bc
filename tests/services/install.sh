#!/usr/bin/env bash
# Install the servers that tests start for themselves: a Slurm cluster, a message broker, a
# browser. Only as root on Debian and its kin; elsewhere it says what to install, and tests that
# need it are skipped with the same words. It never fails: what cannot be had is named.
set -uo pipefail
packages=(slurm-wlm munge rabbitmq-server chromium)

missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null \
        | grep -qx installed || missing+=("$package")
done
((${#missing[@]})) || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "Some tests are skipped without: apt-get install ${missing[*]}" >&2
    exit 0
fi

# Nothing is started by the installation: tests run servers of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
    trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install --quiet=2 --yes --no-install-recommends "$1" >/dev/null 2>&1; }
updated=
for package in "${missing[@]}"; do
    echo "installing $package" >&2
    install "$package" && continue
    [ -n "$updated" ] || apt-get update --quiet=2 >/dev/null 2>&1
    updated=yes
    install "$package" \
        || echo "$package cannot be installed; tests that need it are skipped" >&2
done
exit 0
