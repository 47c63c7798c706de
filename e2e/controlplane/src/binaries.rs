//! Finds the programs that `make controlplane` builds.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// The path of a program that `make controlplane` builds: `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-proxy` or
/// `grpcurl`; or of `kube-proxy-previous`, which `make differential PEER=previous` builds, or `kube-apiserver-oldest` of `make oldest`.
///
/// # Errors
/// Returns an error if the program is not built. The error names the command that builds it.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let path = cache()?.join("controlplane/bin").join(name);
    ensure!(path.is_file(), "{name} is not built ({} is missing): run `make controlplane`", path.display());
    Ok(path)
}

/// The output folder of `build.sh`: `$LOCALNET_CACHE`, or `.cache` at the root of the repository.
fn cache() -> anyhow::Result<PathBuf> {
    if let Some(cache) = env::var_os("LOCALNET_CACHE") {
        return Ok(cache.into());
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    Ok(repository.context("the crate is not two folders below the repository's root")?.join(".cache"))
}
