#!/bin/sh
# Makes the Debian package: programs, services, manuals and completions.
#
#   packaging/deb.sh [amd64|arm64]    target/localnet_VERSION_ARCH.deb
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cd "$here/.."
arch=${1:-$(dpkg --print-architecture)}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

packaging/programs.sh "$arch"
cargo build --quiet --locked -p localnet-packaging
tree=$(mktemp -d target/ship/deb.XXXXXX)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"

# put MODE FILE FOLDER [NAME]
put() {
    install -D -m "$1" "$2" "$tree/$3/${4:-$(basename "$2")}"
}

for program in "target/ship/$arch/bin"/*; do put 755 "$program" usr/bin; done
# kubectl finds it by this name, as `kubectl localnet`.
ln -s localnet "$tree/usr/bin/kubectl-localnet"
for unit in packaging/systemd/*.service; do put 644 "$unit" usr/lib/systemd/system; done
put 644 packaging/debian/localnet.sysusers usr/lib/sysusers.d localnet.conf
put 644 packaging/debian/localnet.default etc/default localnet
put 644 packaging/debian/config.yaml etc/localnet
put 644 packaging/debian/copyright usr/share/doc/localnet
for rules in deploy/*; do put 644 "$rules" usr/share/doc/localnet/deploy; done
gzip --best --no-name --stdout CHANGELOG.md >"$tree/usr/share/doc/localnet/changelog.gz"
chmod 644 "$tree/usr/share/doc/localnet/changelog.gz"

target/debug/localnet-manual "$tree/manual"
for page in "$tree"/manual/man/man8/*; do
    gzip --best --no-name "$page"
    put 644 "$page.gz" usr/share/man/man8
done
for script in "$tree"/manual/completions/bash/*; do put 644 "$script" usr/share/bash-completion/completions; done
for script in "$tree"/manual/completions/zsh/*; do put 644 "$script" usr/share/zsh/vendor-completions; done
for script in "$tree"/manual/completions/fish/*; do put 644 "$script" usr/share/fish/vendor_completions.d; done
rm -r "$tree/manual"

put 755 packaging/debian/postinst DEBIAN
put 755 packaging/debian/prerm DEBIAN
printf '/etc/default/localnet\n/etc/localnet/config.yaml\n' >"$tree/DEBIAN/conffiles"
cat >"$tree/DEBIAN/control" <<EOF
Package: localnet
Version: $version
Architecture: $arch
Maintainer: localnet maintainers <localnet@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f 1)
Recommends: iptables
Section: net
Priority: optional
Description: Kubernetes Services on a node, in place of kube-proxy
 A brain watches the cluster and serves the state of one node; a backend programs
 nftables, iptables or IPVS with it. It reads kube-proxy's configuration.
EOF
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -print0 | sort -z | xargs -0 md5sum | sed 's, \./, ,' >DEBIAN/md5sums)
chmod 644 "$tree/DEBIAN/md5sums" "$tree/DEBIAN/conffiles" "$tree/DEBIAN/control"
dpkg-deb --root-owner-group --build "$tree" "target/localnet_${version}_$arch.deb"
