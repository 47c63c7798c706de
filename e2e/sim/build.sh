#!/bin/sh
# Builds target/simulation/localnet-sim, with all crates optimized. Arguments are options of cargo.
set -eu

cd "$(dirname "$0")/../.."
exec "${CARGO:-cargo}" build --locked --profile simulation "$@" -p localnet-sim --bin localnet-sim
