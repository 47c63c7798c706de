//! The guest itself. These tests need `make vm`.
#![cfg(target_arch = "x86_64")]
#![expect(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use localnet_vm::{Guest, Network, Options};

const LIMIT: Duration = Duration::from_secs(60);

static GUEST: LazyLock<Guest> = LazyLock::new(|| {
    let guest = Guest::boot(&Options::default()).unwrap();
    println!("booted in {:.1?} ({})", guest.booted_in(), guest.accelerator());
    guest
});

/// Runs a shell script in the guest, which must succeed, and returns its output.
#[track_caller]
fn shell(script: &str) -> String {
    let output = GUEST.run(Command::new("sh").args(["-ec", script]), LIMIT).unwrap();
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}\n{} {text}{error}", output.status);
    text.trim_end().to_owned()
}

#[test]
fn its_kernel_has_the_features_that_this_one_may_lack() {
    shell("ip link add kube-ipvs0 type dummy");
    // The kernel loads its modules by itself.
    shell("ipvsadm -A -t 192.0.2.1:80 -s mh");
    assert!(shell("ipvsadm -Ln").contains("TCP  192.0.2.1:80 mh"));
    shell("nft add table inet t; nft add chain inet t c '{ type nat hook postrouting priority 100; }'");
    shell("nft add rule inet t c ip daddr 192.0.2.2 masquerade");
    let loaded = shell("modprobe sctp; cat /proc/modules");
    for module in ["dummy", "ip_vs", "ip_vs_mh", "nf_tables", "nft_masq", "sctp"] {
        assert!(loaded.lines().any(|line| line.starts_with(&format!("{module} "))), "{module} in:\n{loaded}");
    }
}

#[test]
fn a_program_s_output_and_exit_code_are_returned() {
    for (script, code, stdout, stderr) in [
        ("echo out; echo err >&2", 0, "out\n", "err\n"),
        ("printf 'no newline'; exit 7", 7, "no newline", ""),
        ("kill -9 $$", 137, "", ""),
        ("cat", 0, "", ""),
    ] {
        let output = GUEST.run(Command::new("sh").args(["-c", script]), LIMIT).unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "{script}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), stderr, "{script}");
    }
    let missing = GUEST.run(&Command::new("no-such-program"), LIMIT).unwrap();
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn a_program_sees_the_caller_s_folder_environment_and_files() {
    let here = std::env::current_dir().unwrap();
    assert_eq!(shell("pwd"), here.display().to_string());
    assert!(shell("cat Cargo.toml").contains("name = \"localnet-vm\""));
    assert_eq!(shell("echo $CARGO_PKG_NAME $LOCALNET_GUEST"), "localnet-vm 1");
    let mut command = Command::new("env");
    command.env("ADDED", "it's new");
    let output = GUEST.run(&command, LIMIT).unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).lines().any(|line| line == "ADDED=it's new"));
}

#[test]
fn changes_of_files_stay_in_the_guest() {
    let file = format!("{}/written-in-the-guest", env!("CARGO_TARGET_TMPDIR"));
    assert_eq!(shell(&format!("echo text >{file}; cat {file}")), "text");
    assert_eq!(shell(&format!("cat {file}")), "text");
    assert!(!Path::new(&file).exists());
}

#[test]
fn programs_run_concurrently() {
    // Each program waits for the other.
    let meet = |own: &str, other: &str| {
        let (own, other) = (format!("/run/{own}"), format!("/run/{other}"));
        let script = format!("mkfifo {own} 2>/dev/null; mkfifo {other} 2>/dev/null; echo here >{own} & cat {other}");
        shell(&script.replace("2>/dev/null;", "2>/dev/null || true;"))
    };
    std::thread::scope(|scope| {
        let left = scope.spawn(|| meet("left", "right"));
        assert_eq!(meet("right", "left"), "here");
        assert_eq!(left.join().unwrap(), "here");
    });
}

#[test]
fn a_program_that_exceeds_its_time_limit_is_killed() {
    let began = Instant::now();
    let mut command = Command::new("sh");
    command.args(["-c", "echo begun; exec sleep 1000"]);
    let error = format!("{:#}", GUEST.run(&command, Duration::from_secs(1)).unwrap_err());
    assert!(error.contains("not ended within 1s") && error.contains("begun"), "{error}");
    assert!(began.elapsed() < LIMIT);
    assert_eq!(shell("echo alive"), "alive");
}

#[test]
fn the_error_for_a_dead_guest_contains_its_kernel_s_log() {
    let guest = Guest::boot(&Options { memory_mib: 512, cpus: 1, network: None }).unwrap();
    let mut panic = Command::new("sh");
    panic.args(["-c", "echo c >/proc/sysrq-trigger"]);
    let error = format!("{:#}", guest.run(&panic, LIMIT).unwrap_err());
    assert!(error.contains("Kernel panic - not syncing: sysrq triggered crash"), "{error}");
    let error = format!("{:#}", guest.run(&Command::new("true"), LIMIT).unwrap_err());
    assert!(error.contains("the guest has ended"), "{error}");
}

#[test]
fn network_namespaces_have_an_ipvs_of_their_own() {
    shell(
        "for name in one two; do
            ip netns add $name
            ip netns exec $name ipvsadm -A -u 192.0.2.3:53 -s rr
        done
        ip netns exec one sh -c 'echo 1 >/proc/sys/net/ipv4/vs/conntrack; ipvsadm -C'",
    );
    assert!(!shell("ip netns exec one ipvsadm -Ln").contains("192.0.2.3"));
    assert!(shell("ip netns exec two ipvsadm -Ln").contains("UDP  192.0.2.3:53 rr"));
    assert_eq!(shell("ip netns exec two cat /proc/sys/net/ipv4/vs/conntrack"), "0");
    shell("ip netns del one; ip netns del two");
}

#[test]
fn a_guest_s_connections_come_from_its_network_s_namespace() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = std::thread::spawn(move || {
        listener.incoming().take(2).for_each(|stream| stream.unwrap().write_all(b"here\n").unwrap());
    });
    // The namespace of this test. QEMU's gateway is its loopback address.
    let network = Network { namespace: "/proc/self/ns/net".into(), nics: 2 };
    let guest = Guest::boot(&Options { memory_mib: 512, cpus: 1, network: Some(network) }).unwrap();
    let nic = |number| {
        format!(
            "ip address add 10.0.2.15/24 dev eth{number}; ip link set eth{number} up; exec bash -c 'cat </dev/tcp/10.0.2.2/{port}'"
        )
    };
    let (one, other) = (nic(0), nic(1));
    let scripts = [
        format!("modprobe virtio_net; {one}"),
        format!("ip netns add other; ip link set eth1 netns other; exec ip netns exec other sh -ec \"{other}\""),
    ];
    for script in scripts {
        let output = guest.run(Command::new("sh").args(["-ec", &script]), LIMIT).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "here\n",
            "{script}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    answers.join().unwrap();
}
