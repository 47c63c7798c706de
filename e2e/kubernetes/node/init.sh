#!/bin/sh
# The first process of a node: makes its mounts, then waits and reaps. When it ends, the whole node ends.
#
#   init.sh NODE FOLDER PAUSE
set -eu
node=$1 folder=$2 pause=$3

hostname "$node"
# /sys of this network namespace; mounting it hides the cgroups, so they are kept aside.
mount --rbind /sys/fs/cgroup "$folder/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$folder/cgroup" /sys/fs/cgroup
umount -l "$folder/cgroup"
# Pins of eBPF programs and maps. Only a kernel with eBPF has the folder.
[ ! -d /sys/fs/bpf ] || mount -t bpf bpf /sys/fs/bpf
# The kubelet and containerd propagate mounts to containers.
mount --make-rshared /
mount -t tmpfs tmpfs /run
mkdir -p /run/containerd /run/netns /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log/pods /var/log/containers /etc/cni/net.d
mount --bind "$folder/kubelet" /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount --bind "$folder/containerd" /var/lib/containerd
mount --bind "$folder/cni-state" /var/lib/cni
mount --bind "$folder/pods" /var/log/pods
mount --bind "$folder/containers" /var/log/containers
mount --bind "$folder/cni" /etc/cni/net.d
# The kubelet sets these for the whole machine. Here, it sets copies.
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    # A kernel may lack some of them.
    [ -e "/proc/sys/$setting" ] || continue
    mkdir -p "/run/sysctl/${setting%/*}"
    cat "/proc/sys/$setting" >"/run/sysctl/$setting"
    mount --bind "/run/sysctl/$setting" "/proc/sys/$setting"
done
touch "$folder/ready"
exec "$pause"
