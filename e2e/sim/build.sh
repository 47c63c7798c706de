#!/bin/sh
# Builds localnet-sim, with localnet's crates optimized. The other crates are those of a debug build, so that they need no second
# build. Arguments are options of cargo.
set -eu

cd "$(dirname "$0")/../.."
for crate in sim brain client cluster linux linux-backend proto nft iptables ipvs win ebpf; do
    set -- "$@" --config "profile.dev.package.localnet-$crate.opt-level=2"
done
exec "${CARGO:-cargo}" build --locked "$@" --workspace --bin localnet-sim
