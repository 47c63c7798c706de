//! `localnet-manual FOLDER`: writes manual pages and completions for packages.

use std::{env, path::Path};

use anyhow::Context as _;

fn main() -> anyhow::Result<()> {
    let folder = env::args_os().nth(1).context("usage: localnet-manual FOLDER")?;
    localnet_packaging::write(Path::new(&folder))
}
