#!/bin/sh
# Sends the packets of all Cases through the backends nft and iptables on the kernels of several Debian releases, each in the guest.
#
#   e2e/vm/kernels.sh [SUITE …]      bullseye bookworm trixie trixie-backports
#
# BACKENDS="nft …"       runs only these of nft, iptables-nft and iptables-legacy
# ONLY=packets/udp,…     runs only the Cases whose names contain one of these texts
# PROGRAMS=FOLDER        the programs to test; target/debug by default
#
# It prints a table with one line for each kernel and backend, and what `localnet doctor` says about the kernel. The output of the
# kit is in target/kernels. The package lists of the suites and the kernels are in ${LOCALNET_CACHE:-<repository>/.cache}/vm. This
# script installs nothing, and does not change this machine's package lists.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
repository=$(dirname "$(dirname "$here")")
cache=${LOCALNET_CACHE:-$repository/.cache}/vm
programs=${PROGRAMS:-$repository/target/debug}
results=$repository/target/kernels
backends=${BACKENDS:-nft iptables-nft iptables-legacy}

fail() {
    echo "failed to test the kernels: $1" >&2
    exit 1
}

# lists SUITE: makes package lists of this suite alone, and prints the path of their configuration.
lists() {
    root=$cache/apt/$1
    mkdir -p "$root/etc/apt.conf.d" "$root/etc/preferences.d" "$root/lists/partial" "$root/archives/partial"
    : >"$root/status"
    signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    echo "deb $signed http://deb.debian.org/debian $1 main" >"$root/etc/sources.list"
    # Kernels of a stable release get their fixes from the security archive. Backports have none.
    case $1 in
        *-backports) ;;
        *) echo "deb $signed http://deb.debian.org/debian-security $1-security main" >>"$root/etc/sources.list" ;;
    esac
    cat >"$root/apt.conf" <<CONF
Dir::Etc "$root/etc";
Dir::State "$root";
Dir::State::status "$root/status";
Dir::Cache "$root";
APT::Sandbox::User "root";
Acquire::Languages "none";
CONF
    APT_CONFIG=$root/apt.conf apt-get update -qq >&2 || fail "the package lists of $1 cannot be read"
    echo "$root/apt.conf"
}

# The commands of the guest.
inside() {
    cat <<SH
# The emulated processor's counter runs at a wrong speed if the machine was busy during the boot.
echo acpi_pm >/sys/devices/system/clocksource/clocksource0/current_clocksource
# On a busy machine, loading the modules takes a minute. No time limit of the kit should include that.
for module in nf_tables nft_chain_nat nft_nat nft_ct nft_numgen nft_masq nft_reject_ipv4 nft_reject_ipv6 nft_fib_ipv4 nft_fib_ipv6 \\
    nft_compat nf_conntrack_netlink veth bridge iptable_nat iptable_filter ip6table_nat ip6table_filter xt_addrtype xt_mark \\
    xt_conntrack xt_comment xt_statistic xt_recent xt_MASQUERADE xt_nat xt_nfacct ipt_REJECT ip6t_REJECT; do
    modprobe -q \$module
done
echo "== \$(uname -r) doctor"
$programs/localnet doctor | grep '^[a-zA-Z]* *kernel '
for backend in $backends; do
    echo "== \$(uname -r) \$backend"
    case \$backend in iptables-*) program="iptables --iptables-flavour \${backend#*-}" ;; *) program=\$backend ;; esac
    $programs/localnet-conformance --levels packets --at-a-time 1 --patience 900 ${ONLY:+--only $ONLY} \\
        --backend "sh $results/start $programs/localnet-\$program --api {api} {flags}"
done
SH
}

[ $# -gt 0 ] || set -- bullseye bookworm trixie trixie-backports
mkdir -p "$results"
# The Cases expect NodePorts on the primary addresses, as in kube-proxy's mode nftables.
echo 'case "$*" in *--nodeport-addresses*) exec "$@" ;; *) exec "$@" --nodeport-addresses=primary ;; esac' >"$results/start"
failed=
format='%-24s%-18s%8s%8s\n'
# shellcheck disable=SC2059
printf "$format" KERNEL BACKEND PASSED FAILED
for suite; do
    configuration=$(lists "$suite")
    package=$(APT_CONFIG=$configuration apt-cache show --no-all-versions linux-image-amd64 |
        sed -n 's/^Depends:.*\(linux-image-[0-9][^ ,]*\).*/\1/p' | head -n 1)
    [ -n "$package" ] || fail "$suite has no linux-image-amd64"
    APT_CONFIG=$configuration "$here/build.sh" "$package" >&2
    inside >"$results/$suite.sh"
    LOCALNET_VM_KERNEL=$package "$programs/localnet-vm" --timeout 36000 -- sh "$results/$suite.sh" >"$results/$suite.txt" 2>&1 && passed=yes || passed=
    # The last line of the kit's table: the level, and how many Cases passed and failed.
    awk -v format="$format" -v wanted="$(echo "$backends" | wc -w)" '
        /^== / { kernel = $2; backend = $3; next }
        backend == "doctor" && $2 == "kernel" { print kernel, "doctor:", $0 }
        /^packets +[0-9]/ { printf format, kernel, backend, $2, $3; lines++; bad += $3 }
        END { exit bad > 0 || lines != wanted }' "$results/$suite.txt" && [ -n "$passed" ] || failed="$failed $suite"
done
[ -z "$failed" ] || fail "see target/kernels for$failed"
