//! [`Host`]: the eBPF programs and maps of this host, pinned in a BPF file system. They work without this process, so that a
//! restart changes nothing.
//!
//! ```text
//!  BPFFS/localnet-ebpf/maps-LAYOUT/MAP                 the maps; LAYOUT changes if the layout of keys or values changes
//!  BPFFS/localnet-ebpf/links-PROGRAMS-CGROUP/PROGRAM   the attachments of this version's programs to this cgroup
//! ```
//! After an update, the new programs are attached and their maps are filled before the old ones are detached. While both are attached, the programs that
//! run second find no VIP, because the first have already replaced it.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs::{self, File},
    io, mem,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow, bail, ensure};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Map, MapData},
    programs::{CgroupAttachMode, CgroupSockAddr, links::FdLink},
};
use localnet_linux::sockets;
use rustix::fs::{FsWord, statfs};
use sha2::{Digest as _, Sha256};
use tracing::{debug, info};

use crate::{
    kernel::{Change, Content, Kernel},
    layout::Socket,
    maps::{Maps, one_line},
};

/// The compiled programs. `make ebpf` builds them from `programs/main.rs`.
static PROGRAMS: &[u8] = include_bytes!("../programs/programs.o");
/// The usual mount point of the BPF file system.
pub const BPFFS: &str = "/sys/fs/bpf";
/// The names of the programs.
pub const NAMES: [&str; 8] =
    ["connect4", "connect6", "sendmsg4", "sendmsg6", "recvmsg4", "recvmsg6", "getpeername4", "getpeername6"];
/// The names of the maps.
const MAPS: [&str; 5] = ["vips", "endpoints", "members", "clients", "origins"];
/// The folder with all pins.
const FOLDER: &str = "localnet-ebpf";
/// The folder of the maps. Its number changes with the layout of the maps.
const MAPS_FOLDER: &str = "maps-2";
/// How the names of the folders of attachments begin.
const LINKS: &str = "links-";
/// `BPF_FS_MAGIC`
const BPF_FS: FsWord = 0xcafe_4a11;
/// `CGROUP2_SUPER_MAGIC`
const CGROUP2: FsWord = 0x6367_7270;

/// The programs and maps of this host.
#[derive(Debug)]
pub struct Host {
    folder: PathBuf,
    cgroup: File,
    links: PathBuf,
    maps: Option<Maps>,
    /// The folders of other versions. Their programs serve until the maps of this version are filled.
    old: Vec<PathBuf>,
}

impl Host {
    /// Opens the cgroup and the BPF file system, and changes nothing.
    ///
    /// # Errors
    /// Returns an error if one of the paths is no such file system.
    pub fn open(bpffs: &Path, cgroup: &Path) -> anyhow::Result<Self> {
        check_bpffs(bpffs)?;
        let shown = cgroup.display();
        let is_cgroup2 = statfs(cgroup).with_context(|| format!("--cgroup {shown}"))?.f_type == CGROUP2;
        ensure!(is_cgroup2, "--cgroup {shown} is not a folder of cgroup v2: pass the mount point of cgroup2");
        let cgroup = File::open(cgroup).with_context(|| format!("--cgroup {shown}"))?;
        let mut version = String::new();
        Sha256::digest(PROGRAMS).iter().take(4).for_each(|byte| _ = write!(version, "{byte:02x}"));
        let folder = bpffs.join(FOLDER);
        let links = folder.join(format!("{LINKS}{version}-{}", cgroup.metadata()?.ino()));
        Ok(Self { folder, cgroup, links, maps: None, old: Vec::new() })
    }

    /// Opens the pinned maps for reading, and attaches nothing.
    ///
    /// # Errors
    /// Returns an error if the maps are not pinned, or cannot be opened.
    pub fn pinned(bpffs: &Path) -> anyhow::Result<Content> {
        check_bpffs(bpffs)?;
        let folder = bpffs.join(FOLDER).join(MAPS_FOLDER);
        let open = |name: &str| {
            let path = folder.join(name);
            let map = MapData::from_pin(&path);
            map.and_then(Map::from_map_data).map_err(one_line).with_context(|| {
                format!("cannot open the map {}: does localnet-ebpf run with the same --bpffs?", path.display())
            })
        };
        Maps::of(open)?.read()
    }

    /// The names of the programs with a pinned attachment, in any version.
    ///
    /// # Errors
    /// Returns an error if the pins cannot be read.
    pub fn attached(bpffs: &Path) -> anyhow::Result<Vec<String>> {
        let mut names = BTreeSet::new();
        for pins in entries(&bpffs.join(FOLDER))?.iter().filter(|pins| name(pins).starts_with(LINKS)) {
            names.extend(entries(pins)?.iter().map(|pin| name(pin)));
        }
        Ok(names.into_iter().collect())
    }

    /// Deletes all pins, which detaches the programs.
    ///
    /// # Errors
    /// Returns an error if a pin cannot be deleted.
    pub fn remove_pins(bpffs: &Path) -> anyhow::Result<()> {
        check_bpffs(bpffs)?;
        let folder = bpffs.join(FOLDER);
        // The folders of attachments precede those of maps, so no program runs without its maps.
        for pins in entries(&folder)? {
            remove_folder(&pins)?;
        }
        ignore_missing(fs::remove_dir(&folder)).with_context(|| folder.display().to_string())
    }

    fn missing_programs(&self) -> Vec<&'static str> {
        NAMES.into_iter().filter(|name| !self.links.join(name).exists()).collect()
    }

    fn has_maps(&self) -> bool {
        MAPS.iter().all(|name| self.folder.join(MAPS_FOLDER).join(name).exists())
    }

    fn attach_program(&self, ebpf: &mut Ebpf, name: &str) -> anyhow::Result<()> {
        let program = ebpf.program_mut(name).with_context(|| format!("this build has no program {name}"))?;
        let program: &mut CgroupSockAddr = program.try_into()?;
        program.load().map_err(one_line).with_context(|| {
            format!("the kernel refuses the program {name}: CAP_BPF, CAP_NET_ADMIN and Linux 5.18 with CONFIG_CGROUP_BPF are needed")
        })?;
        // The kernel refuses flags of links, and always permits further programs at the same cgroup.
        let link = program.attach(&self.cgroup, CgroupAttachMode::Single).map_err(one_line);
        let link = program.take_link(link.with_context(|| format!("cannot attach the program {name}"))?)?;
        let link: FdLink = link.try_into().map_err(|_| anyhow!("the kernel has no links of cgroups"))?;
        let path = self.links.join(name);
        link.pin(&path).map_err(one_line).with_context(|| format!("cannot pin {}", path.display()))?;
        Ok(())
    }
}

impl Kernel for Host {
    fn attach(&mut self) -> anyhow::Result<()> {
        if !self.has_maps() {
            // Programs that are attached use maps that no longer have a name.
            self.maps = None;
            remove_folder(&self.links)?;
        }
        let missing = self.missing_programs();
        if self.maps.is_some() && missing.is_empty() {
            return Ok(());
        }
        let maps = self.folder.join(MAPS_FOLDER);
        for folder in [&self.folder, &maps, &self.links] {
            let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(folder);
            made.with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let loaded = EbpfLoader::new().default_map_pin_directory(&maps).load(PROGRAMS).map_err(one_line);
        let mut ebpf =
            loaded.context("cannot create the eBPF maps: CAP_BPF, CAP_NET_ADMIN and CONFIG_BPF_SYSCALL are needed")?;
        for name in &missing {
            self.attach_program(&mut ebpf, name)?;
        }
        if !missing.is_empty() {
            info!(programs = missing.len(), cgroup = %self.links.display(), "eBPF programs attached");
        }
        self.old = entries(&self.folder)?.into_iter().filter(|other| *other != self.links && *other != maps).collect();
        self.maps =
            Some(Maps::of(|name| ebpf.take_map(name).with_context(|| format!("this build has no map {name}")))?);
        Ok(())
    }

    fn is_attached(&mut self) -> bool {
        self.has_maps() && self.missing_programs().is_empty()
    }

    fn read(&mut self) -> anyhow::Result<Content> {
        self.maps()?.read()
    }

    fn apply(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        self.maps()?.apply(changes)?;
        for folder in mem::take(&mut self.old) {
            remove_folder(&folder)?;
        }
        Ok(())
    }

    fn end_sockets(&mut self, is_stale: &dyn Fn(&Socket, &Socket) -> bool) -> anyhow::Result<()> {
        let stale = self.maps()?.stale(is_stale)?;
        if stale.is_empty() {
            return Ok(());
        }
        let ended = sockets::end_udp(&stale.iter().map(|key| key.cookie).collect())?;
        debug!(sockets = ended.sockets, "UDP sockets of deleted endpoints ended");
        if let Some(error) = ended.error {
            let count = ended.unsearched;
            bail!("cannot search {count} network namespaces: CAP_SYS_ADMIN and CAP_SYS_PTRACE are needed ({error})");
        }
        let maps = self.maps()?;
        stale.iter().try_for_each(|key| maps.remove_origin(key))
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        self.maps = None;
        Self::remove_pins(self.folder.parent().unwrap_or(&self.folder))
    }
}

impl Host {
    fn maps(&mut self) -> anyhow::Result<&mut Maps> {
        self.maps.as_mut().context("the maps are not open")
    }
}

fn check_bpffs(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let is_bpffs = statfs(path).with_context(|| format!("--bpffs {shown}"))?.f_type == BPF_FS;
    ensure!(is_bpffs, "--bpffs {shown} is not a BPF file system: mount one with `mount -t bpf bpf {shown}`");
    Ok(())
}

/// The entries of a folder, sorted.
fn entries(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| folder.display().to_string())?,
    };
    let mut entries = Vec::new();
    for entry in read {
        entries.push(entry?.path());
    }
    entries.sort();
    Ok(entries)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Deletes a folder and the pins in it; a missing folder is no error.
fn remove_folder(folder: &Path) -> anyhow::Result<()> {
    let removed = || {
        for entry in fs::read_dir(folder)? {
            fs::remove_file(entry?.path())?;
        }
        fs::remove_dir(folder)
    };
    ignore_missing(removed()).with_context(|| format!("cannot delete {}", folder.display()))
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `make test` builds the object file again. This test needs no compiler for eBPF.
    #[test]
    fn the_object_file_was_built_from_these_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let record = fs::read_to_string(root.join("backend-ebpf/programs/programs.txt")).unwrap();
        let mut files = Vec::new();
        for line in record.lines().skip(1) {
            let (recorded, file) = line.split_once("  ").unwrap();
            let digest: String = Sha256::digest(fs::read(root.join(file)).unwrap())
                .iter()
                .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
            assert_eq!(digest, recorded, "{file} has changed: run `make ebpf`");
            files.push(file);
        }
        assert!(files.len() == 5 && files.contains(&"backend-ebpf/programs/programs.o"), "{files:?}");
    }
}
