#!/bin/sh
# The first program of a guest without drives: mounts the system's file systems and runs /run.sh.
export PATH=/bin:/sbin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /tmp /run /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs tmp /dev/shm
ip link set lo up
echo "guest: up after $(cut -d' ' -f1 /proc/uptime) s, Linux $(uname -r)"
. /run.sh
echo "guest: done after $(cut -d' ' -f1 /proc/uptime) s"
sync
poweroff -f
