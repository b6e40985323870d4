#!/bin/sh
# The first program of the guest: mounts the system's file systems, finds the drives by their serial numbers, and runs /run.sh.
#   $P  the PCI address of the provider, whose controller memory buffer is in a BAR     $A  the source
#   $C  the sink      $D  the drive with ext4, mounted on /mnt/ext4      $E  another, empty
#   $V  a virtio drive with the bytes of the source; $M  the drive that marks are read from
export PATH=/bin:/sbin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /mnt/ext4 /mnt/tmp /tmp /run
mount -t tmpfs tmp /tmp
mount -t tmpfs tmp /mnt/tmp
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
ip link set lo up
for module in $(cat /modules.wanted); do modprobe "$module"; done
# Some modules provide configfs.
mount -t configfs config /sys/kernel/config 2>/dev/null
drive() {
    for controller in /sys/class/nvme/nvme*; do
        [ "$(tr -d ' ' <"$controller/serial")" = "$1" ] || continue
        for block in "$controller"/nvme*n*; do [ -e "$block/size" ] && echo "/dev/${block##*/}" && return; done
    done
}
for _ in $(seq 100); do
    A=$(drive A) B=$(drive B) C=$(drive C) D=$(drive D) E=$(drive E) M=$(drive M) V=/dev/vda
    [ -b "$A" ] && [ -b "$B" ] && [ -b "$C" ] && [ -b "$D" ] && [ -b "$E" ] && [ -b "$M" ] && break
    sleep 0.1
done
P=$(readlink -f "/sys/block/${B##*/}/device/device")
P=${P##*/}
export A C D E M P V
# Marks the beginning or the end of case $1 in QEMU's trace, by a read.
mark() { dd if="$M" of=/dev/null bs=4096 skip="$1" count=1 iflag=direct 2>/dev/null; }
mount -t ext4 -o noatime "$D" /mnt/ext4
echo "guest: up after $(cut -d' ' -f1 /proc/uptime) s, Linux $(uname -r), provider $P"
. /run.sh
echo "guest: done after $(cut -d' ' -f1 /proc/uptime) s"
umount /mnt/ext4 2>/dev/null
sync
poweroff -f
