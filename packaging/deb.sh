#!/bin/sh
# Builds the Debian package: programs, services, manuals and completions.
#
#   packaging/deb.sh [amd64|arm64]               writes target/localnet_VERSION_ARCH.deb
#   packaging/deb.sh of FOLDER MANUAL ARCH OUT   writes it to the folder OUT, with the programs in FOLDER and the output of localnet-manual in MANUAL
#   COMPRESSION=none …                           builds faster, but the package is larger
set -eu
umask 022

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
# Debian requires NAME <ADDRESS>. This is the no-reply address that GitHub gives the owner of the repository, which receives no mail. SECURITY.md
# and the issues of the repository say how to reach the maintainers.
maintainer="localnet maintainers <$(basename "$(dirname "$repository")")@users.noreply.github.com>"

if [ "${1-}" = of ]; then
    programs=${2:?the folder of the programs is missing}
    manual=${3:?the folder that localnet-manual wrote is missing}
    arch=${4:?the architecture is missing}
    out=${5:?the output folder is missing}
else
    own=$(dpkg --print-architecture)
    arch=${1:-$own}
    # Only a program for this machine's architecture can write the manual.
    if [ "$arch" = "$own" ]; then packaging/programs.sh "$arch"; else packaging/programs.sh "$own" "$arch"; fi
    programs=target/ship/$arch/bin
    manual=target/ship/manual
    out=target
fi
mkdir -p target/ship "$out"
tree=$(mktemp -d target/ship/deb.XXXXXX)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"

# put MODE FILE FOLDER [NAME]
put() {
    install -D -m "$1" "$2" "$tree/$3/${4:-$(basename "$2")}"
}

for program in "$programs"/*; do put 755 "$program" usr/bin; done
# kubectl runs the program of this name as `kubectl localnet`.
ln -s localnet "$tree/usr/bin/kubectl-localnet"
for unit in packaging/systemd/*.service; do put 644 "$unit" usr/lib/systemd/system; done
put 644 packaging/debian/localnet.sysusers usr/lib/sysusers.d localnet.conf
put 644 packaging/debian/localnet.default etc/default localnet
put 644 packaging/debian/config.yaml etc/localnet
put 644 packaging/debian/copyright usr/share/doc/localnet
[ ! -e "$programs/../../NOTICES.gz" ] || put 644 "$programs/../../NOTICES.gz" usr/share/doc/localnet
for rules in deploy/*; do put 644 "$rules" usr/share/doc/localnet/deploy; done
gzip --best --no-name --stdout CHANGELOG.md >"$tree/usr/share/doc/localnet/CHANGELOG.md.gz"
# Debian's changelog has one entry, which refers to CHANGELOG.md.
gzip --best --no-name --stdout >"$tree/usr/share/doc/localnet/changelog.gz" <<EOF
localnet ($version) unstable; urgency=medium

  * See CHANGELOG.md.

 -- $maintainer  $(LC_ALL=C date --utc --rfc-email --date="@$SOURCE_DATE_EPOCH")
EOF

for page in "$manual"/man/man8/*; do
    mkdir -p "$tree/usr/share/man/man8"
    gzip --best --no-name --stdout "$page" >"$tree/usr/share/man/man8/$(basename "$page").gz"
done
ln -s localnet.8.gz "$tree/usr/share/man/man8/kubectl-localnet.8.gz"
for script in "$manual"/completions/bash/*; do put 644 "$script" usr/share/bash-completion/completions; done
for script in "$manual"/completions/zsh/*; do put 644 "$script" usr/share/zsh/vendor-completions; done
for script in "$manual"/completions/fish/*; do put 644 "$script" usr/share/fish/vendor_completions.d; done

put 755 packaging/debian/postinst DEBIAN
put 755 packaging/debian/prerm DEBIAN
put 755 packaging/debian/postrm DEBIAN
printf '/etc/default/localnet\n/etc/localnet/config.yaml\n' >"$tree/DEBIAN/conffiles"
cat >"$tree/DEBIAN/control" <<EOF
Package: localnet
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Depends: systemd | systemd-standalone-sysusers
Recommends: iptables
Section: net
Homepage: $repository
Priority: optional
Description: Kubernetes service proxy that replaces kube-proxy
 On each node, a brain watches the cluster and computes what the node has
 to do for its Services. A backend programs nftables, iptables or IPVS
 accordingly. Both read kube-proxy's configuration file. The command
 localnet shows and explains the state of a node.
EOF
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -print0 | sort -z | xargs -0 md5sum | sed 's, \./, ,' >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Z"${COMPRESSION:-xz}" --build "$tree" "$out/localnet_${version}_$arch.deb"
