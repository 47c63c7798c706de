//! Tests the package of `packaging/deb.sh`: its content, and the effects of its installation, upgrade and removal on a system.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use localnet_packaging::{COMMAND, programs};
use tempfile::TempDir;

use crate::{arch, folder, output, put_programs, put_stand_ins, root};

/// Builds a package from the programs in a folder. Returns the folder and the path of the package.
fn make(programs: &Path, umask: &str) -> anyhow::Result<(TempDir, PathBuf)> {
    let made = folder()?;
    let manual = made.path().join("manual");
    output(Command::new(localnet_e2e::program("localnet-manual")?).arg(&manual))?;
    let lines = format!("umask {umask}; exec packaging/deb.sh of \"$@\"");
    let mut shell = Command::new("sh");
    let arch = arch()?;
    shell.args(["-euc", &lines, "sh"]).args([programs, &manual, Path::new(&arch), made.path()]).current_dir(root());
    output(shell.env("COMPRESSION", "none"))?;
    let package = made.path().join(format!("localnet_{}_{arch}.deb", env!("CARGO_PKG_VERSION")));
    Ok((made, package))
}

fn names() -> Vec<String> {
    programs().iter().map(|program| program.get_name().to_owned()).collect()
}

#[test]
fn the_package_contains_the_files_of_each_program() -> anyhow::Result<()> {
    let stand_ins = folder()?;
    let names = names();
    put_stand_ins(&names.iter().map(String::as_str).collect::<Vec<_>>(), stand_ins.path())?;
    let (_made, package) = make(stand_ins.path(), "022")?;
    let (_again, second) = make(stand_ins.path(), "077")?;
    assert_eq!(fs::read(&package)?, fs::read(second)?, "made twice");

    let mut expected: BTreeSet<String> = [
        "etc/default/localnet",
        "etc/localnet/config.yaml",
        "usr/bin/kubectl-localnet",
        "usr/lib/sysusers.d/localnet.conf",
    ]
    .map(str::to_owned)
    .into();
    for name in &names {
        expected.insert(format!("usr/bin/{name}"));
        expected.insert(format!("usr/share/bash-completion/completions/{name}"));
        expected.insert(format!("usr/share/zsh/vendor-completions/_{name}"));
        expected.insert(format!("usr/share/fish/vendor_completions.d/{name}.fish"));
        expected.insert(format!("usr/share/man/man8/{name}.8.gz"));
        if name != COMMAND {
            expected.insert(format!("usr/lib/systemd/system/{name}.service"));
        }
    }
    let listing = output(Command::new("dpkg-deb").arg("--contents").arg(&package))?;
    let mut seen = BTreeSet::new();
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (rights, owner, path) = (words[0], words[1], words[5].trim_start_matches("./"));
        assert_eq!(owner, "root/root", "{line}");
        let right = match rights.chars().next() {
            Some('d') => "drwxr-xr-x",
            Some('l') => "lrwxrwxrwx",
            _ if path.starts_with("usr/bin/") => "-rwxr-xr-x",
            _ => "-rw-r--r--",
        };
        assert_eq!(rights, right, "{line}");
        // The package also has manuals of subcommands, licences and examples.
        let subcommand = path.starts_with("usr/share/man/man8/") && !expected.contains(path);
        if !rights.starts_with('d') && !path.starts_with("usr/share/doc/localnet/") && !subcommand {
            seen.insert(path.to_owned());
        }
    }
    assert_eq!(seen, expected);
    assert!(listing.contains("usr/share/man/man8/localnet-nft-cleanup.8.gz"), "{listing}");
    let field = |name: &str| output(Command::new("dpkg-deb").arg("--field").arg(&package).arg(name));
    assert_eq!(field("Version")?.trim(), env!("CARGO_PKG_VERSION"));
    assert_eq!(field("Architecture")?.trim(), arch()?);
    // Other programs split these as Debian's policy requires.
    let maintainer = field("Maintainer")?;
    let address = maintainer.trim().strip_prefix("localnet maintainers <").and_then(|rest| rest.strip_suffix('>'));
    let domain = address.and_then(|address| address.split_once('@')).context("NAME <ADDRESS>")?.1;
    assert!(domain.contains('.'), "{maintainer} names a user of this machine");
    assert_eq!(field("Homepage")?.trim(), env!("CARGO_PKG_REPOSITORY"));
    Ok(())
}

/// The life cycle of the package on a copy of this system, where systemd appears to run. A stand-in for `systemctl` records its
/// arguments.
const LIFE: &str = r#"
request=/run/request
expect_calls() {
    [ "$(cat $request)" = "$1" ] || { echo "systemctl was called with: $(cat $request); expected: $1" >&2; exit 1; }
    : >$request
}
each() { for unit in $units; do echo "$1 $unit"; done; }
stand_in() {
    rm -f /usr/bin/systemctl
    printf '#!/bin/sh\necho "$*" >>%s\n%s\n' $request "$1" >/usr/bin/systemctl
    chmod 755 /usr/bin/systemctl
}
: >$request
stand_in 'exit 0'

# Where systemd does not run, as in a container that is made.
dpkg --install "$1"
expect_calls ""
units=$(basename --multiple /usr/lib/systemd/system/localnet-*.service)
[ -z "$(dpkg --verify localnet)" ]
[ "$(getent passwd localnet | cut -d: -f 6,7)" = /nonexistent:/usr/sbin/nologin ]
[ "$(dpkg-query --show --showformat '${Conffiles}' localnet | awk '{ print $1 }' | sort | xargs)" = "/etc/default/localnet /etc/localnet/config.yaml" ]

# From the installed programs to an answer.
ip link set lo up
localnet-brain --source "file:$2" --node-name demo-node --listen unix:///run/brain.sock &
until [ -S /run/brain.sock ]; do sleep 0.1; done
localnet-nft --api unix:///run/brain.sock --once
localnet --api unix:///run/brain.sock get services -o name
kubectl-localnet --api unix:///run/brain.sock diff
localnet-nft cleanup
kill $!

# An upgrade where it does.
mkdir -p /run/systemd/system
echo '# mine' >>/etc/default/localnet
dpkg --force-confdef --force-confold --install "$1"
expect_calls "daemon-reload
$(each try-restart)"
tail -n 1 /etc/default/localnet | grep '# mine'

# If a program cannot be stopped, the package stays.
stand_in '[ "$1" != disable ] || exit 1'
if dpkg --remove localnet; then exit 1; fi
[ -x /usr/bin/localnet-nft ]
: >$request
stand_in 'exit 0'
dpkg --remove localnet
expect_calls "$(each 'disable --now')
daemon-reload"
[ ! -e /usr/bin/localnet-nft ]
[ -e /etc/default/localnet ]
dpkg --purge localnet
[ ! -e /etc/default/localnet ]
[ ! -e /etc/localnet ]
"#;

/// A temporary copy of this system with its own namespaces. `$3` is the folder to create it in.
const SYSTEM: &str = r#"
mount -t tmpfs tmpfs "$3"
mkdir "$3/upper" "$3/work" "$3/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$3/upper,workdir=$3/work" "$3/root"
for folder in proc dev; do mount --rbind /$folder "$3/root/$folder"; done
mount -t tmpfs tmpfs "$3/root/run"
exec chroot "$3/root" /bin/sh -euxc "$4" sh "$1" "$2"
"#;

#[test]
fn the_package_can_be_installed_and_removed() -> anyhow::Result<()> {
    let programs = folder()?;
    put_programs(&["localnet", "localnet-brain", "localnet-nft"], programs.path())?;
    let (made, package) = make(programs.path(), "022")?;
    let system = made.path().join("system");
    fs::create_dir(&system)?;
    let mut alone = Command::new("unshare");
    alone.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", SYSTEM, "sh"]);
    alone.arg(package).arg(root().join("examples")).arg(system).arg(LIFE);
    output(alone.env("LC_ALL", "C"))?;
    Ok(())
}
