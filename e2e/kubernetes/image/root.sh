#!/bin/sh
# Makes the root file system of the test images: a small Debian with the programs that Kubernetes' tests run in their containers.
# Needs two minutes, once.
#
#   root.sh FOLDER
set -eu
root=$1
[ ! -d "$root/usr" ] || exit 0

codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '/^URIs:/ { print $2; exit } /^deb / { print $2; exit }')
rm -rf "$root.new"
debootstrap --variant=minbase \
    --include=bash,curl,bind9-dnsutils,netcat-openbsd,iproute2,iperf,util-linux,nftables,iptables,conntrack,procps,hostname,libc-bin \
    "$codename" "$root.new" "$mirror" >"$root.log" 2>&1 || { tail -n 5 "$root.log" >&2; exit 1; }
rm -rf "$root.new"/var/cache/apt/* "$root.new"/var/lib/apt/lists/* "$root.new"/usr/share/doc/* "$root.new"/usr/share/man/* \
    "$root.new"/usr/share/locale/* "$root.new"/usr/share/info/*
mkdir -p "$root.new/uploads"
mv "$root.new" "$root"
